import {
  Agent,
  type ClientRequest,
  type IncomingMessage,
  type ServerResponse,
  request as send,
  validateHeaderName,
  validateHeaderValue,
} from 'node:http';
import type { Duplex } from 'node:stream';
import { TOKEN_PREFIX } from '../access/token.ts';
import type { Ports } from '../lease/ports.ts';
import { Refusal } from '../refusal.ts';
import { joinCrumbs } from './crumbs.ts';
import { hasBody } from './head.ts';

/** How long a connection without a request is kept for the next one. Servers end idle ones after 5 s at the least. */
const IDLE_MILLISECONDS = 3000;
const IDLE_COUNT_MAX = 8;
/** What a client of an upgraded connection sent before it ended its side still arrives. */
const END_MILLISECONDS = 1000;
/** Time that the client of an upgraded connection has to take what is on its way when the connection inside has ended. */
const FLUSH_MILLISECONDS = 5000;

/** The destination of a request to a port, and what its answer may be. */
type PortTarget = {
  /** The id that Purser's answer and its log give this request. */
  requestId: string;
  resourceId: string;
  port: number;
  /** Path and query as the server inside gets them. */
  path: string;
  /** The path below which the port is reached, without a slash at its end; empty on a host name of its own. */
  base: string;
  /** The origin of the port's own host name. Undefined under the origin of Purser, where the answer may do nothing in a browser. */
  origin: string | undefined;
  /** The cookie that a browser shows to Purser; the server inside neither sees nor sets it. */
  cookie: string;
};

/** Headers of one connection (RFC 9110, section 7.6.1). Each side of Purser has its own. */
const OF_CONNECTION = [
  'connection',
  'keep-alive',
  'proxy-authenticate',
  'proxy-authorization',
  'proxy-connection',
  'te',
  'trailer',
  'transfer-encoding',
  'upgrade',
];
/** The server inside is asked as `localhost`, as a client beside it would; what a proxy before Purser said is not its matter. */
const OF_REQUEST = new Set([
  ...OF_CONNECTION,
  'content-length', // The framing is written anew: a header that Connection names is not passed on, and a body needs it.
  'expect',
  'forwarded',
  'host',
  'via',
  'x-forwarded-for',
  'x-forwarded-host',
  'x-forwarded-port',
  'x-forwarded-proto',
  'x-real-ip',
]);
/** Under Purser's origin these belong to Purser. */
const OF_PURSER = new Set(['authorization', 'cookie', 'origin', 'referer', 'x-api-key']);
/** What reaches beyond the answer itself: other host names of the site, or where a browser connects. */
const BEYOND_ANSWER = new Set([
  ...OF_CONNECTION,
  'alt-svc',
  'clear-site-data',
  'cross-origin-resource-policy',
  'strict-transport-security',
  'x-request-id', // Every answer carries Purser's (design 2.21).
  // Orders to the proxy in front of Purser: to send a file of its own, to ask elsewhere.
  'fly-replay',
  'x-lighttpd-send-file',
  'x-lighttpd-send-tempfile',
  'x-reproxy-url',
  'x-sendfile',
  'x-sendfile2',
]);
/** Orders to the proxy in front of Purser, by their beginnings: nginx's, LiteSpeed's, Envoy's, and those to caches. */
const TO_PROXY = /^(x-accel-|x-litespeed-|x-envoy-|surrogate-|(cloudflare-)?cdn-|edge-)/;
/** What would act for the whole origin. */
const BEYOND_PATH =
  /^(set-cookie2?|set-login|speculation-rules|service-worker-allowed|access-control-.*|report-to|reporting-endpoints|nel|cache-control|refresh|www-authenticate|accept-ch|critical-ch|activate-storage-access|attribution-reporting-.*|observe-browsing-topics|origin-agent-cluster|use-as-dictionary)$/;
const SANDBOXED = [
  ['Content-Security-Policy', 'sandbox'],
  ['X-Content-Type-Options', 'nosniff'],
  ['Cache-Control', 'no-store'],
] as const;
const OWN_TOKEN = new RegExp(`(${Object.values(TOKEN_PREFIX).join('|')})[0-9A-Za-z]{8,}`);
const HAS_BODY = /^(POST|PUT|PATCH)$/;
const IS_SAFE = /^(GET|HEAD|OPTIONS)$/;

type Header = readonly [name: string, value: string];

const pairs = (raw: readonly string[]): Header[] =>
  raw.flatMap((name, at) => (at % 2 ? [] : [[name, raw[at + 1] as string] as const]));

/** Returns whether text has a token of Purser's in it. */
export const hasOwnToken = (text: string): boolean => OWN_TOKEN.test(text);

/** Returns the headers without those in `dropped`, and those that Connection names. */
function without(raw: readonly string[], dropped: ReadonlySet<string>): Header[] {
  const all = pairs(raw);
  const named = new Set(
    all
      .filter(([name]) => name.toLowerCase() === 'connection')
      .flatMap(([, value]) =>
        value
          .toLowerCase()
          .split(',')
          .map((it) => it.trim()),
      ),
  );
  return all.filter(([name]) => !dropped.has(name.toLowerCase()) && !named.has(name.toLowerCase()));
}

/** Whether Node's parser has let go of the connection, so that it may carry another protocol. */
const isUpgrade = (request: IncomingMessage) => (request as { upgrade?: boolean | null }).upgrade === true;

/** Returns the headers for the server inside. Nothing that Purser is told by them reaches it. */
function requestHeaders(request: IncomingMessage, { port, origin, cookie }: PortTarget): string[] {
  const local = `http://localhost:${port}`;
  const headers: Header[] = [['Host', `localhost:${port}`]];
  for (const [name, value] of without(request.rawHeaders, OF_REQUEST)) {
    const lower = name.toLowerCase();
    if (hasOwnToken(value) || (origin === undefined && OF_PURSER.has(lower))) continue;
    if (origin !== undefined && lower === 'cookie') {
      const others = value.split(';').filter((it) => it.split('=', 1)[0]?.trim() !== cookie);
      if (others.length) headers.push([name, others.join(';').trim()]);
    } else if (lower === 'origin' || lower === 'referer')
      headers.push([name, value.startsWith(origin as string) ? local + value.slice((origin as string).length) : value]);
    else headers.push([name, value]);
  }
  if (isUpgrade(request)) headers.push(['Connection', 'Upgrade'], ['Upgrade', request.headers.upgrade as string]);
  else if (request.headers['transfer-encoding'] !== undefined) headers.push(['Transfer-Encoding', 'chunked']);
  else if (request.headers['content-length'] !== undefined || HAS_BODY.test(request.method as string))
    headers.push(['Content-Length', request.headers['content-length'] ?? '0']);
  return headers.flat();
}

/** Returns whether Node writes a header. What it reads in an answer it may refuse to write: control characters, for one. */
function isWritable([name, value]: Header): boolean {
  try {
    validateHeaderName(name);
    validateHeaderValue(name, value);
    return true;
  } catch {
    return false;
  }
}

/** Returns the headers for the client, without what reaches beyond this port, and without what cannot be written. */
function answerHeaders(answer: IncomingMessage, target: PortTarget): string[] {
  const { base, origin, cookie } = target;
  const headers: Header[] = [
    ['X-Request-Id', target.requestId],
    ['Cross-Origin-Resource-Policy', 'same-origin'],
  ];
  if (origin === undefined) headers.push(...SANDBOXED);
  // Or a proxy that buffers would make one late answer of it.
  if (/^text\/event-stream\b/i.test(answer.headers['content-type'] ?? '')) headers.push(['X-Accel-Buffering', 'no']);
  for (const [name, value] of without(answer.rawHeaders, BEYOND_ANSWER)) {
    const lower = name.toLowerCase();
    if (TO_PROXY.test(lower) || (origin === undefined && BEYOND_PATH.test(lower))) continue;
    if (lower === 'location') headers.push([name, locationOf(value, target.port, base)]);
    else if (lower === 'set-cookie') {
      const [pair = '', ...attributes] = value.split(';');
      const [, cookieName = ''] = /^([^=]*)=/.exec(pair.trim()) ?? [];
      // A browser shows the value of a cookie without a name as it stands, and it may look like a name and a value (RFC 6265bis, 5.7).
      if (['', cookie.toLowerCase()].includes(cookieName.trim().toLowerCase())) continue;
      // Without Domain it is a cookie of this host name alone.
      headers.push([name, [pair, ...attributes.filter((it) => !/^\s*domain\s*(=|$)/i.test(it))].join(';')]);
    } else headers.push([name, value]);
  }
  return headers.filter(isWritable).flat();
}

/** Returns where a redirection leads from outside: what the server takes for its own address is below `base`. */
function locationOf(location: string, port: number, base: string): string {
  const own = new RegExp(`^http://(localhost|127\\.0\\.0\\.1|\\[::1\\]):${port}(?=[/?#]|$)`, 'i');
  const path = location.replace(own, '');
  const isOwn = path !== location || /^\/(?!\/)/.test(path);
  return isOwn ? `${base}${path.startsWith('/') ? path : `/${path}`}` : location;
}

/** Connections to ports that are used again. The host of a request is the id of its resource. */
class PortAgent extends Agent {
  readonly #ports: Ports;
  readonly #idle = new WeakMap<Duplex, NodeJS.Timeout>();

  constructor(ports: Ports, keepAlive: boolean) {
    super({ keepAlive, maxFreeSockets: IDLE_COUNT_MAX });
    this.#ports = ports;
  }
  override createConnection(
    { host, port }: { host?: string | null; port?: number | string | null },
    done?: (error: Error | null, stream: Duplex) => void,
  ): undefined {
    const failed = (error: Error) => done?.(error, undefined as unknown as Duplex);
    this.#ports.connect(host as string, Number(port)).then((stream) => done?.(null, asSocket(stream)), failed);
  }
  override keepSocketAlive(stream: Duplex): boolean {
    this.#idle.set(
      stream,
      setTimeout(() => stream.destroy(), IDLE_MILLISECONDS),
    );
    return true;
  }
  override reuseSocket(stream: Duplex, request: ClientRequest): void {
    clearTimeout(this.#idle.get(stream));
    super.reuseSocket(stream, request);
  }
}

/** Adds what Node's client calls on a socket and a stream does not have. */
function asSocket(stream: Duplex): Duplex {
  const itself = () => stream;
  return Object.assign(stream, {
    setKeepAlive: itself,
    setNoDelay: itself,
    setTimeout: itself,
    ref: itself,
    unref: itself,
  });
}

/** Sends requests on to ports, and their answers back, both as streams. */
export type PortProxy = {
  /**
   * Resolves when the answer is over, whole or cut off. Throws a Refusal before the answer has begun: those of
   * `Ports.connect`, and `port_unreachable` when what listens does not answer in HTTP.
   */
  forward(request: IncomingMessage, response: ServerResponse, target: PortTarget): Promise<void>;
};

export function createPortProxy(ports: Ports): PortProxy {
  const reused = new PortAgent(ports, true);
  const fresh = new PortAgent(ports, false);

  return {
    async forward(request, response, target) {
      const outcome = await exchange(request, response, target, reused);
      // The server may have ended an idle connection just as the request was sent on it.
      if (outcome === 'stale') await exchange(request, response, target, fresh);
    },
  };
}

/** Tells whether a status ends a request: 101 without an upgrade, and what Node's parser takes below 100, do not. */
const isFinal = (status: number) => status >= 200 && status <= 999;

const noHttp = (port: number, cause: string) =>
  new Refusal('port_unreachable', `What listens on port ${port} inside the resource did not answer in HTTP: ${cause}.`);

function exchange(request: IncomingMessage, response: ServerResponse, target: PortTarget, agent: Agent) {
  const { resourceId, port, path } = target;
  const { method = 'GET' } = request;
  const over = Promise.withResolvers<'stale' | undefined>();
  const isWithBody = hasBody(request);
  const headers = requestHeaders(request, target);
  const asked = send({ host: resourceId, port, method, path, headers, agent, setHost: false });

  const cut = () => asked.destroy();
  response.once('close', () => {
    cut(); // Without effect on an exchange that is complete.
    over.resolve(undefined);
  });
  asked.on('error', (error) => {
    request.unpipe(asked);
    if (response.headersSent || request.socket.destroyed) {
      request.socket.destroy();
      return over.resolve(undefined);
    }
    if (error instanceof Refusal) return over.reject(error);
    if (asked.reusedSocket && !isWithBody && IS_SAFE.test(method)) return over.resolve('stale');
    const { code = error.message } = error as NodeJS.ErrnoException;
    over.reject(noHttp(port, code));
  });
  asked.on('response', (answer) => {
    const status = answer.statusCode as number;
    if (!isFinal(status)) return void asked.destroy(new Error(`its status is ${status}`));
    // Without the reason phrase, which says nothing (RFC 9112, section 4) and may have characters that nobody may write.
    response.writeHead(status, answerHeaders(answer, target));
    response.flushHeaders(); // A stream of events may have none for a while.
    answer.on('error', () => {}); // Its close tells.
    answer.push = joinCrumbs(answer.push.bind(answer));
    answer.once('close', () => {
      if (!answer.complete) request.socket.destroy(); // An answer that was cut off must not look whole.
    });
    answer.pipe(response);
  });
  asked.on('upgrade', (answer, inside, head) => {
    if (!isUpgrade(request)) {
      inside.destroy();
      return over.reject(noHttp(port, 'it changed the protocol without being asked to'));
    }
    const client = request.socket;
    const own = ['Connection', 'Upgrade', 'Upgrade', answer.headers.upgrade ?? (request.headers.upgrade as string)];
    const lines = pairs([...answerHeaders(answer, target), ...own]).map(([name, value]) => `${name}: ${value}\r\n`);
    client.write(`HTTP/1.1 101 Switching Protocols\r\n${lines.join('')}\r\n`, 'latin1');
    if (head.length) inside.unshift(head);
    client.once('close', () => inside.destroy());
    inside.once('close', () => {
      client.destroySoon(); // With what is still on its way, as long as the client goes on taking it.
      client.setTimeout(FLUSH_MILLISECONDS, () => client.destroy());
    });
    client.pipe(inside).pipe(client);
    // Nobody halves a connection here: a client that has ended its side is gone, and a server may not notice.
    client.once('end', () => setTimeout(() => inside.destroy(), END_MILLISECONDS).unref());
  });
  if (isWithBody) request.once('error', (error) => asked.destroy(error)).pipe(asked);
  else asked.end();
  return over.promise;
}
