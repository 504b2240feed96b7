import { once } from 'node:events';
import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { containConnection } from '../net/contain.ts';
import { deadline } from '../net/deadline.ts';
import { type IpAddress, parseAddress } from './addresses.ts';
import type { Authority } from './authority.ts';
import { createHelloReader } from './client-hello.ts';
import { beServer, holdEnd, speakTls } from './ended-tls.ts';
import { admits, admitsPublic, type List, opens } from './list.ts';
import type { LookUp, Outside } from './outside.ts';
import { createHeadReader, type ProxyRequest } from './request-head.ts';
import { createRequestRewriter, type Replacement, RequestFault } from './request-rewriter.ts';

/**
 * The forward proxy of a lease: one request for each connection. It looks names up by itself, and connects to the very address
 * that it has checked.
 */

/** The time for a head, and for a ClientHello after it. */
const FIRST_MILLISECONDS = 10_000;
const CONNECT_MILLISECONDS = 10_000;
/** The addresses of a name that are tried, one after another. */
const ADDRESS_COUNT_MAX = 4;
/** A connection over which nothing has passed for this long is over. */
const IDLE_MILLISECONDS = 3_600_000;

/** The lease of a connection. */
export type Gate = {
  /** Names the lease where look-ups are counted. */
  id: string;
  /**
   * Returns the lists that all have to admit a target, the same array while they are the same; undefined once the lease is over, or
   * may not be used.
   */
  lists(): readonly List[] | undefined;
  /** Has `check` called when that may have changed. Returns what ends this. */
  watch(check: () => void): () => void;
  /** Counts bytes of a host that was reached. */
  passed(host: string, bytes: number): void;
  /** Called for each refusal, with its reason in words. */
  refused(host: string, reason: string): void;
  secrets: Secrets;
};
/** The secrets of a lease. */
export type Secrets = {
  /** Returns the replacements in requests to a host, as of now. TLS to it is ended here where there are any. */
  replacements(host: string, port: number): readonly Replacement[];
  /** Returns the authority that the lease trusts. */
  authority(): Authority;
  /** Counts the handshakes and the memory of a connection whose TLS is ended. Returns what releases it; undefined beyond the limits. */
  enter(): (() => void) | undefined;
};
type World = Pick<Outside, 'dial' | 'isOwn' | 'trust'> & { lookUp: LookUp };

/** A request that is not carried out. `host` is there if its target is known and was refused. */
class RefusedRequest extends Error {
  readonly status: number;
  readonly host: string | undefined;
  constructor(status: number, reason: string, host?: string) {
    super(reason);
    this.status = status;
    this.host = host;
  }
}

const REASONS: Record<number, string> = {
  400: 'Bad Request',
  403: 'Forbidden',
  408: 'Request Timeout',
  411: 'Length Required',
  429: 'Too Many Requests',
  431: 'Request Header Fields Too Large',
  502: 'Bad Gateway',
  503: 'Service Unavailable',
};

/** Serves one connection of a lease until it is over. Never rejects. */
export async function serveConnection(client: Duplex, gate: Gate, world: World): Promise<void> {
  try {
    const { request, rest } = await readHead(client);
    const reached = await reach(client, request, gate, world);
    await serveRequest(client, reached, { request, rest, gate });
  } catch (error) {
    if (!(error instanceof RefusedRequest)) return void client.destroy();
    if (error.host !== undefined) gate.refused(error.host, error.message);
    refuse(client, error.status, error.message);
  }
}

/** Answers a request that is not carried out, and ends the connection. */
function refuse(client: Duplex, status: number, message: string): void {
  if (!client.writable) return void client.destroy();
  const body = `Purser: ${message}\n`;
  const head = [
    `HTTP/1.1 ${status} ${REASONS[status]}`,
    'content-type: text/plain; charset=utf-8',
    'connection: close',
  ];
  client.end(`${head.join('\r\n')}\r\ncontent-length: ${Buffer.byteLength(body)}\r\n\r\n${body}`);
  client.resume(); // The rest of its input is discarded; its end is awaited.
  const late = setTimeout(() => client.destroy(), FIRST_MILLISECONDS);
  client.once('close', () => clearTimeout(late));
}

/** Gives each piece of a stream to `take`, until that returns something. The stream can be read on afterwards. */
function readFirst<T>(client: Duplex, take: (piece: Buffer) => T | undefined, onEnd: () => Error): Promise<T> {
  const first = new Promise<T>((resolve, reject) => {
    const fail = () => done(() => reject(onEnd()));
    const listen = () => {
      for (let piece = client.read(); piece !== null; piece = client.read()) {
        const found = take(piece);
        if (found !== undefined) return done(() => resolve(found));
      }
    };
    const done = (end: () => void) => {
      client.off('readable', listen).off('end', fail).off('close', fail);
      end();
    };
    client.on('readable', listen).on('end', fail).on('close', fail);
  });
  return deadline(first, FIRST_MILLISECONDS, () => {
    client.removeAllListeners('readable');
    throw new RefusedRequest(408, 'the request did not come in time');
  });
}

async function readHead(client: Duplex): Promise<{ request: ProxyRequest; rest: Buffer }> {
  const reader = createHeadReader();
  const head = await readFirst(client, reader.take, () => new Error('the connection ended'));
  if ('fault' in head) throw new RefusedRequest(head.code, `the request is refused: ${head.fault}`);
  return head;
}

/** Returns the lists in force. Throws where the lease is over. */
function listsOf(gate: Gate): readonly List[] {
  const lists = gate.lists();
  if (!lists) throw new RefusedRequest(503, 'the lease is over, or its wallet may not use it');
  return lists;
}

/** A server that is connected, whom TLS to it trusts, and whether lists admit the connection. */
type ReachedServer = { server: Socket; trust: Outside['trust']; mayPass(lists: readonly List[]): boolean };

/** Connects to the target of a request, if all lists admit it and one of its addresses. */
async function reach(
  client: Duplex,
  { target, host: shown }: ProxyRequest,
  gate: Gate,
  world: World,
): Promise<ReachedServer> {
  const { host, port } = target;
  const where = `${shown}:${port}`;
  if (!listsOf(gate).every((list) => admits(list, target)))
    throw new RefusedRequest(403, `${where} is not in the list of what this lease may reach`, shown);
  const found = host.kind === 'address' ? [shown.replace(/^\[|\]$/g, '')] : await lookUp(host.name, gate, world);
  // The lists may have changed in the meantime.
  const lists = listsOf(gate);
  const mayPassTo = (address: IpAddress, lists: readonly List[]) =>
    lists.every((list) => admits(list, target) && opens(list, address, port, world.isOwn));
  const checked = found.flatMap((text) => {
    const address = parseAddress(text);
    return address !== undefined && mayPassTo(address, lists) ? [{ text, address }] : [];
  });
  if (!checked.length) throw new RefusedRequest(403, `${where} has no address that this lease may reach`, shown);
  const gone = new AbortController();
  client.once('close', () => gone.abort());
  let fault: unknown;
  for (const { text, address } of checked.slice(0, ADDRESS_COUNT_MAX)) {
    if (client.destroyed) throw new Error('the client has gone');
    const server = world.dial(text, port);
    containConnection(server, 'connection');
    server.on('error', () => {}); // `close` follows. Servers may end connections with errors all day.
    try {
      await once(server, 'connect', {
        signal: AbortSignal.any([gone.signal, AbortSignal.timeout(CONNECT_MILLISECONDS)]),
      });
      return { server, trust: world.trust, mayPass: (lists) => mayPassTo(address, lists) };
    } catch (error) {
      server.destroy();
      fault = error;
    }
  }
  throw new RefusedRequest(502, `${where} cannot be reached: ${codeOf(fault)}`);
}

const codeOf = (error: unknown) => (error as NodeJS.ErrnoException).code ?? (error as Error).message;

async function lookUp(name: string, gate: Gate, world: World): Promise<string[]> {
  const found = await world.lookUp(gate.id, name).catch((error) => {
    throw new RefusedRequest(502, `${name} cannot be looked up: ${codeOf(error)}`);
  });
  if (found === 'too_many') throw new RefusedRequest(429, 'too many names are being looked up for this lease');
  if (!found.length) throw new RefusedRequest(502, `${name} has no address`);
  return found;
}

type OpenedRequest = { request: ProxyRequest; rest: Buffer; gate: Gate };

const ESTABLISHED = 'HTTP/1.1 200 Connection established\r\n\r\n';

/** Carries out a request whose server is connected. */
async function serveRequest(
  client: Duplex,
  reached: ReachedServer,
  { request, rest, gate }: OpenedRequest,
): Promise<void> {
  const { server, mayPass } = reached;
  const { target, host } = request;
  const admitAnyPublic = (lists: readonly List[]) => lists.every((list) => admitsPublic(list, target.port));
  try {
    if (client.destroyed) throw new Error('the client has gone');
    if (request.kind === 'plain') {
      const body = rest.subarray(0, request.bodyBytes);
      const first = Buffer.concat([request.head, body]);
      return relay(client, reached, { host, first, gate, bodyRestBytes: request.bodyBytes - body.length });
    }
    if (target.host.kind === 'name' && gate.secrets.replacements(target.host.name, target.port).length)
      return await relayEnded(client, reached, { name: target.host.name, request, rest, gate });
    client.write(ESTABLISHED);
    if (target.host.kind === 'address') return relay(client, reached, { host, first: rest, gate });
    if (admitAnyPublic(listsOf(gate))) {
      const unread = { ...reached, mayPass: (lists: readonly List[]) => mayPass(lists) && admitAnyPublic(lists) };
      return relay(client, unread, { host, first: rest, gate });
    }
    const first = await readHello(client, rest, target.host.name).catch((error) => {
      // The tunnel is open, so no answer of the proxy would be understood.
      if (error instanceof RefusedRequest) gate.refused(host, error.message);
      throw new Error('the first bytes were refused', { cause: error });
    });
    relay(client, reached, { host, first, gate });
  } catch (error) {
    server.destroy();
    throw error;
  }
}

/**
 * Ends the TLS of a tunnel, and passes its requests on over TLS of its own, with the values of secrets. The server's certificate is
 * verified before the tunnel opens, while an answer of the proxy is understood.
 */
async function relayEnded(
  client: Duplex,
  reached: ReachedServer,
  { name, request, rest, gate }: OpenedRequest & { name: string },
): Promise<void> {
  const { target, host } = request;
  const where = `${host}:${target.port}`;
  const leave = gate.secrets.enter();
  if (!leave) throw new RefusedRequest(429, `too many connections to ${host} are begun`, host);
  client.once('close', leave);
  const server = await speakTls(reached.server, name, reached.trust()).catch((error) => {
    throw new RefusedRequest(502, `${where} does not speak TLS that can be verified: ${codeOf(error)}`, host);
  });
  if (client.destroyed) throw new Error('the client has gone');
  client.write(ESTABLISHED);
  if (rest.length) client.unshift(rest);
  const inside = await beServer(client, gate.secrets.authority().contextOf(name), name).catch((error) => {
    gate.refused(host, `TLS to the lease failed: ${codeOf(error)}`);
    throw error;
  });
  const rewrite = createRequestRewriter(name, target.port, () => gate.secrets.replacements(name, target.port));
  relay(inside, { ...reached, server }, { host, first: Buffer.alloc(0), gate, rewrite });
}

/** Reads the ClientHello of a tunnel to a name, and returns its bytes. Throws Refused unless it names this host. */
async function readHello(client: Duplex, rest: Buffer, name: string): Promise<Buffer> {
  const reader = createHelloReader();
  const ended = () => new RefusedRequest(403, 'no ClientHello of TLS came');
  const hello = (rest.length ? reader.take(rest) : undefined) ?? (await readFirst(client, reader.take, ended));
  if ('fault' in hello) throw new RefusedRequest(403, `to a name only TLS may be spoken that names it: ${hello.fault}`);
  if (hello.serverName.toLowerCase() !== name)
    throw new RefusedRequest(403, 'TLS asks for another server than the request');
  return reader.taken();
}

type Passing = {
  host: string;
  /** The first bytes for the server. */
  first: Buffer;
  gate: Gate;
  /** The bytes that the client may still send, where that is known. */
  bodyRestBytes?: number;
  /** Returns what the server gets for what the client has sent. Throws RequestFault. */
  rewrite?: (piece: Buffer) => Buffer;
};

/** Passes bytes on, each way no faster than they are taken, until both ends are done or the lists no longer let them. */
function relay(client: Duplex, { server, mayPass }: ReachedServer, passing: Passing): void {
  const { host, first, gate, bodyRestBytes, rewrite = (piece) => piece } = passing;
  if (client.destroyed || server.destroyed) throw new Error('one end has gone');
  let remainingBytes = bodyRestBytes ?? Number.POSITIVE_INFINITY;
  let uncounted = 0;
  const end = () => {
    client.destroy();
    server.destroy();
  };
  let judged: readonly List[] | undefined;
  let isOpen = false;
  let isRefused = false;
  const check = () => {
    const lists = gate.lists();
    if (lists !== judged) [judged, isOpen] = [lists, lists !== undefined && mayPass(lists)];
    if (!isOpen) end();
    return isOpen;
  };
  client.once('close', gate.watch(check));
  /** Counts the client's own bytes: those sent would show a tenant how long a value is. */
  const pass = (from: Duplex, to: Duplex, piece: Buffer, came = piece.length) => {
    if (!check()) return;
    gate.passed(host, came);
    if (!to.write(piece)) from.pause();
  };
  server.setTimeout(IDLE_MILLISECONDS, end);
  if (passing.rewrite) holdEnd(client, server);
  if (first.length) pass(client, server, first);
  const stop = (error: unknown) => {
    if (!(error instanceof RequestFault)) throw error;
    isRefused = true;
    server.destroy();
    gate.refused(host, error.message);
    refuse(client, error.code, error.message);
  };
  client.on('data', (piece: Buffer) => {
    if (isRefused) return;
    const wanted = piece.length > remainingBytes ? piece.subarray(0, remainingBytes) : piece;
    remainingBytes -= wanted.length;
    try {
      uncounted += wanted.length;
      const sent = rewrite(wanted);
      if (!sent.length) return; // A head that is not complete.
      pass(client, server, sent, uncounted);
      uncounted = 0;
    } catch (error) {
      stop(error);
    }
  });
  server.on('data', (piece: Buffer) => pass(server, client, piece));
  client.on('drain', () => server.resume());
  server.on('drain', () => client.resume());
  if (!passing.rewrite) client.on('end', () => server.end());
  server.on('end', () => client.end());
  client.once('close', () => server.destroy());
  server.once('close', () => {
    if (isRefused) return;
    if (!server.readableEnded) client.destroy();
    // It has been given the rest. Whatever the client still says, nobody takes it.
    else client.resume().once('finish', () => client.destroy());
    if (client.writableFinished) client.destroy();
  });
}
