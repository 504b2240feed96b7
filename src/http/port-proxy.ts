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
import { Refusal } from '../base/refusal.ts';
import type { Ports } from '../lease/ports.ts';
import { joinCrumbs } from './crumbs.ts';
import { cutOff } from './exchange.ts';
import { hasBody } from './head.ts';

/** Time for which an idle connection is kept for the next request. Servers end idle ones after 5 s or more. */
const IDLE_MILLISECONDS = 3000;
const IDLE_COUNT_MAX = 8;
/** Time in which the last bytes from a client of an upgraded connection may arrive after it has ended its side. */
const END_MILLISECONDS = 1000;
/** Time in which the client of an upgraded connection must read the buffered bytes after the connection inside has ended. */
const FLUSH_MILLISECONDS = 5000;

/** The destination of a request to a port, and the limits on its answer. */
type PortTarget = {
  /** The id that Purser's answer and its log give this request. */
  requestId: string;
  resourceId: string;
  port: number;
  /** Path and query that the server inside gets. */
  path: string;
  /** The path below which the port is reached, without a slash at its end; empty on a host name of its own. */
  base: string;
  /**
   * The origin of the port's own host name. Undefined under Purser's origin, where the answer must have no effect in a
   * browser.
   */
  origin: string | undefined;
  /** More headers that are for Purser, in lower case. */
  ofPurser?: ReadonlySet<string>;
  /** The cookie that a browser sends to Purser; the server inside neither sees nor sets it. */
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
/** Request headers that are replaced: the server inside is asked as `localhost`. */
const OF_REQUEST = new Set([
  ...OF_CONNECTION,
  'content-length', // The framing is rewritten: a header that Connection names is not passed on, and a body needs it.
  'expect',
  'forwarded',
  'host',
  'via',
]);
/** Request headers of a proxy before Purser do not concern the server inside: each has its own for the caller's address. */
const OF_PROXY = /^(x-forwarded-|x-original-|x-envoy-|cf-|x-real-ip$)|client-?ip$/;
/** Under Purser's origin these belong to Purser. */
const OF_PURSER = new Set(['authorization', 'cookie', 'origin', 'referer', 'x-api-key']);
/** Headers that act beyond the answer itself: on other host names of the site, or on where a browser connects. */
const BEYOND_ANSWER = new Set([
  ...OF_CONNECTION,
  'alt-svc',
  'clear-site-data',
  'cross-origin-resource-policy',
  'strict-transport-security',
  'x-request-id', // Every answer carries Purser's (design 2.21).
  // Orders to the proxy in front of Purser: to send one of its files, or to ask another server.
  'fly-replay',
  'x-lighttpd-send-file',
  'x-lighttpd-send-tempfile',
  'x-reproxy-url',
  'x-sendfile',
  'x-sendfile2',
]);
/** Orders to the proxy in front of Purser, by their beginnings: nginx's, LiteSpeed's, Envoy's, and those to caches. */
const TO_PROXY = /^(x-accel-|x-litespeed-|x-envoy-|surrogate-|(cloudflare-)?cdn-|edge-)/;
/** Headers that would act on the whole origin. */
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

type HeaderPair = readonly [name: string, value: string];

const pairs = (raw: readonly string[]): HeaderPair[] =>
  raw.flatMap((name, at) => (at % 2 ? [] : [[name, raw[at + 1] as string] as const]));

/** Returns whether a text contains one of Purser's tokens. */
export const hasOwnToken = (text: string): boolean => OWN_TOKEN.test(text);

/** Returns the headers except those in `dropped` and those that Connection names. */
function without(raw: readonly string[], dropped: ReadonlySet<string>): HeaderPair[] {
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

/** Returns whether Node's parser has released the connection, so that it may carry another protocol. */
const isUpgrade = (request: IncomingMessage) => (request as { upgrade?: boolean | null }).upgrade === true;

/** Returns the headers for the server inside. Headers meant for Purser are removed. */
function requestHeaders(request: IncomingMessage, { port, origin, cookie, ofPurser }: PortTarget): string[] {
  const local = `http://localhost:${port}`;
  const headers: HeaderPair[] = [['Host', `localhost:${port}`]];
  for (const [name, value] of without(request.rawHeaders, OF_REQUEST)) {
    const lower = name.toLowerCase();
    const isOfPurser = ofPurser?.has(lower) || (origin === undefined && OF_PURSER.has(lower));
    if (isOfPurser || OF_PROXY.test(lower) || hasOwnToken(value)) continue;
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

/**
 * Returns whether Node can write a header. It may read a header in an answer that it refuses to write, such as one with
 * control characters.
 */
function isWritable([name, value]: HeaderPair): boolean {
  try {
    validateHeaderName(name);
    validateHeaderValue(name, value);
    return true;
  } catch {
    return false;
  }
}

/** Returns the headers for the client, except those that act beyond this port and those that cannot be written. */
function answerHeaders(answer: IncomingMessage, target: PortTarget): string[] {
  const { base, origin, cookie } = target;
  const headers: HeaderPair[] = [
    ['X-Request-Id', target.requestId],
    ['Cross-Origin-Resource-Policy', 'same-origin'],
  ];
  if (origin === undefined) headers.push(...SANDBOXED);
  // Otherwise a proxy that buffers would turn it into one late answer.
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
      // Without Domain it is a cookie of this host name only.
      headers.push([name, [pair, ...attributes.filter((it) => !/^\s*domain\s*(=|$)/i.test(it))].join(';')]);
    } else headers.push([name, value]);
  }
  return headers.filter(isWritable).flat();
}

/** Returns the target of a redirection as seen from outside: the server's own address becomes `base`. */
function locationOf(location: string, port: number, base: string): string {
  const own = new RegExp(`^http://(localhost|127\\.0\\.0\\.1|\\[::1\\]):${port}(?=[/?#]|$)`, 'i');
  const path = location.replace(own, '');
  const isOwn = path !== location || /^\/(?!\/)/.test(path);
  return isOwn ? `${base}${path.startsWith('/') ? path : `/${path}`}` : location;
}

/** Connections to ports that are reused. The host of a request is the id of its resource. */
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

/** Adds the methods that Node's client calls on a socket and a stream lacks. */
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

/** Forwards requests to ports, and their answers back, both as streams. */
export type PortProxy = {
  /**
   * Resolves when the answer is over, whole or cut off. Throws a Refusal before the answer has begun: those of
   * `Ports.connect`, and `port_unreachable` when the listening server does not answer in HTTP.
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

/** Returns whether a status ends a request: 101 without an upgrade, and those below 100 that Node's parser accepts, do not. */
const isFinal = (status: number) => status >= 200 && status <= 999;

const noHttp = (port: number, cause: string) =>
  new Refusal('port_unreachable', `What listens on port ${port} inside the resource did not answer in HTTP: ${cause}.`);

function exchange(request: IncomingMessage, response: ServerResponse, target: PortTarget, agent: Agent) {
  const { resourceId, port, path } = target;
  const { method = 'GET' } = request;
  const outcome = Promise.withResolvers<'stale' | undefined>();
  const isWithBody = hasBody(request);
  const headers = requestHeaders(request, target);
  const outgoing = send({ host: resourceId, port, method, path, headers, agent, setHost: false });

  const cut = () => outgoing.destroy();
  response.once('close', () => {
    cut(); // Without effect on an exchange that is complete.
    outcome.resolve(undefined);
  });
  outgoing.on('error', (error) => {
    request.unpipe(outgoing);
    if (response.headersSent || request.socket.destroyed) {
      cutOff(request);
      return outcome.resolve(undefined);
    }
    if (error instanceof Refusal) return outcome.reject(error);
    if (outgoing.reusedSocket && !isWithBody && IS_SAFE.test(method)) return outcome.resolve('stale');
    const { code = error.message } = error as NodeJS.ErrnoException;
    outcome.reject(noHttp(port, code));
  });
  outgoing.on('response', (answer) => {
    const status = answer.statusCode as number;
    if (!isFinal(status)) return void outgoing.destroy(new Error(`its status is ${status}`));
    // Omits the reason phrase, which has no meaning (RFC 9112, section 4) and may contain characters that must not be written.
    response.writeHead(status, answerHeaders(answer, target));
    response.flushHeaders(); // A stream of events may be silent for a while.
    answer.on('error', () => {}); // The close event follows and is handled below.
    answer.push = joinCrumbs(answer.push.bind(answer));
    answer.once('close', () => {
      if (!answer.complete) cutOff(request);
    });
    answer.pipe(response);
  });
  outgoing.on('upgrade', (answer, upgraded, head) => {
    if (!isUpgrade(request)) {
      upgraded.destroy();
      return outcome.reject(noHttp(port, 'it changed the protocol without being asked to'));
    }
    const client = request.socket;
    const own = ['Connection', 'Upgrade', 'Upgrade', answer.headers.upgrade ?? (request.headers.upgrade as string)];
    const lines = pairs([...answerHeaders(answer, target), ...own]).map(([name, value]) => `${name}: ${value}\r\n`);
    client.write(`HTTP/1.1 101 Switching Protocols\r\n${lines.join('')}\r\n`, 'latin1');
    if (head.length) upgraded.unshift(head);
    client.once('close', () => upgraded.destroy());
    upgraded.once('close', () => {
      client.destroySoon(); // Flush the buffered bytes while the client keeps reading.
      client.setTimeout(FLUSH_MILLISECONDS, () => client.destroy());
    });
    client.pipe(upgraded).pipe(client);
    // Half-open connections are not supported: when one side ends, close both, as a server may not notice the end of its client.
    client.once('end', () => setTimeout(() => upgraded.destroy(), END_MILLISECONDS).unref());
  });
  if (isWithBody) request.once('error', (error) => outgoing.destroy(error)).pipe(outgoing);
  else outgoing.end();
  return outcome.promise;
}
