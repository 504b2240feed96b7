import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import http from 'node:http';
import https from 'node:https';
import { type AddressInfo, connect, type Socket } from 'node:net';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import type { Engine } from './docker.ts';
import type { Certificates } from './remote.ts';

/** When the client of an engine is killed: before the engine gets a request, before it answers, or after. */
export const MOMENTS = ['before it arrives', 'before it is answered', 'after it was answered'] as const;
export type Moment = (typeof MOMENTS)[number];

/** A proxy between Purser and an engine. It counts requests, and strikes at a chosen one. */
export type EngineProxy = {
  socket: string;
  /** The requests since `watch`, in order: method and path. */
  asked: string[];
  /** Those of them that are no GETs. Commands one after the other, of which some wait for something, count once. */
  changes: string[];
  /**
   * Starts counting. `strike` runs once, at the given moment of the n-th request, the n-th of `changes`, or the first of its name (as in
   * `asked`), which is then dropped.
   */
  watch(
    place?: ({ nth: number } | { nthChange: number } | { request: string }) & { moment: Moment; strike: () => void },
  ): void;
  /**
   * Resolves when the engine has carried out a command that was struck before it was answered. An engine starts one that nobody waits
   * for later, or never, and does not say which.
   */
  carriedOut?: Promise<unknown>;
  /** Returns the body that the engine gets in place of a request's. */
  rewrite: ((request: string, body: Buffer) => Buffer) | undefined;
  /** Cuts every connection and takes no more, as when the engine's client has died. */
  cut(): void;
  /** With true, leaves every request unanswered. With false, forwards the waiting ones and all others again. */
  hang(isHanging: boolean): void;
};

let count = 0;
const optionsOf = ({ ca, cert, key }: Certificates) => ({
  ...{ ca: readFileSync(ca), cert: readFileSync(cert), key: readFileSync(key) },
  requestCert: true,
  allowHalfOpen: true, // The end of a command's input is not the end of its output.
  rejectUnauthorized: true,
  handshakeTimeout: 5_000, // A line that is cut in the middle of one does not hold up the end of a test.
});

/** With `tls`, it listens on a port of 127.0.0.1 as an engine with --tlsverify does, else on a socket beside the engine's. */
export async function openEngineProxy(
  t: Pick<TestContext, 'after'>,
  engine: Pick<Engine, 'directory' | 'socket'>,
  tls?: Certificates,
): Promise<EngineProxy> {
  const socketPath = join(engine.directory, `proxy-${++count}.sock`);
  const agent = new http.Agent({ keepAlive: false });
  let place: Parameters<EngineProxy['watch']>[0];
  let waiting: (() => void)[] | undefined;

  /** Records a request, and returns the place to strike it, if any. */
  function note({ method, url }: http.IncomingMessage) {
    const name = `${method} ${url?.replace(/\?.*/, '').replace(/[0-9a-f]{64}|purser-inst-\w+-res-\w+/, ':id')}`;
    // How often a command or a machine is asked about differs from time to time: in a row that counts once.
    if (method === 'GET' && proxy.asked.at(-1) === name) return undefined;
    proxy.asked.push(name);
    const isChange = method !== 'GET' && !(name.endsWith('/exec') && proxy.changes.at(-1) === name);
    if (isChange) proxy.changes.push(name);
    if (!place) return undefined;
    const isIt =
      'request' in place
        ? name === place.request
        : 'nth' in place
          ? proxy.asked.length === place.nth
          : isChange && proxy.changes.length === place.nthChange;
    if (!isIt) return undefined;
    const struck = place;
    place = undefined;
    return struck;
  }

  async function answer(request: http.IncomingMessage, response: http.ServerResponse): Promise<void> {
    const struck = note(request);
    const sent = Buffer.concat(await request.toArray());
    if (waiting) await new Promise<void>((resolve) => waiting?.push(resolve));
    const drop = () => {
      struck?.strike();
      response.socket?.destroy();
    };
    if (struck?.moment === 'before it arrives') return drop();
    const name = proxy.asked.at(-1) ?? '';
    const body = proxy.rewrite?.(name, sent) ?? sent;
    const { method, url: path } = request;
    const headers = { ...request.headers };
    if ('content-length' in headers) headers['content-length'] = String(body.length);
    const forwarded = http.request({ socketPath: engine.socket.slice('unix://'.length), agent, method, path, headers });
    const [answered] = (await once(forwarded.end(body), 'response')) as [http.IncomingMessage];
    const said = Buffer.concat(await answered.toArray());
    if (struck?.moment === 'before it is answered') return drop();
    const { 'transfer-encoding': _, ...fields } = answered.headers;
    response.writeHead(answered.statusCode ?? 500, fields);
    response.end(said, () => struck?.strike());
  }
  /** Either side may break at any time. */
  const listener: http.RequestListener = (request, response) =>
    void answer(request, response).catch(() => response.socket?.destroy());
  const server = tls ? https.createServer(optionsOf(tls), listener) : http.createServer(listener);
  /** Upgraded connections carry the streams of a command in a container; they are forwarded unchanged. */
  server.on('upgrade', async (request, client: Socket, head: Buffer) => {
    const struck = note(request);
    client.on('error', () => {});
    if (waiting) await new Promise<void>((resolve) => waiting?.push(resolve));
    const drop = () => {
      struck?.strike();
      client.destroy();
    };
    if (struck?.moment === 'before it arrives') return drop();
    const upstream = connect({ path: engine.socket.slice('unix://'.length), allowHalfOpen: true });
    upstream.on('error', () => client.destroy());
    client.on('close', () => (proxy.carriedOut ? upstream.end() : upstream.destroy()));
    const { rawHeaders, method, url } = request;
    const fields = rawHeaders.map((it, i) => (i % 2 ? `${it}\r\n` : `${it}: `)).join('');
    upstream.write(`${method} ${url} HTTP/1.1\r\n${fields}\r\n`);
    upstream.write(head);
    client.pipe(upstream);
    if (struck?.moment === 'before it is answered') {
      proxy.carriedOut = once(
        upstream.once('end', () => upstream.end()),
        'close',
      );
      return upstream.once('data', drop);
    }
    upstream.pipe(client);
    upstream.once('end', () => struck?.strike());
  });
  const open = new Set<Socket>();
  server.on('connection', (it: Socket) => {
    open.add(it);
    it.once('close', () => open.delete(it));
  });
  if (tls) server.listen(0, '127.0.0.1');
  else server.listen(socketPath);
  await once(server, 'listening');
  const proxy: EngineProxy = {
    socket: tls ? `tcp://127.0.0.1:${(server.address() as AddressInfo).port}` : `unix://${socketPath}`,
    asked: [],
    changes: [],
    rewrite: undefined,
    watch(at) {
      proxy.asked = [];
      proxy.changes = [];
      place = at;
    },
    cut() {
      server.close();
      for (const it of open) it.destroy();
    },
    hang(isHanging) {
      const freed = waiting ?? [];
      waiting = isHanging ? [] : undefined;
      for (const go of freed) go();
    },
  };
  t.after(async () => {
    proxy.hang(false);
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  });
  return proxy;
}
