import http from 'node:http';
import { connect, type Socket } from 'node:net';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import type { Engine } from './docker.ts';

/** When the client of an engine is killed: before the engine gets a request, before it answers, or after. */
export const MOMENTS = ['before it arrives', 'before it is answered', 'after it was answered'] as const;
export type Moment = (typeof MOMENTS)[number];

/** A proxy between Purser and an engine. It counts requests, and strikes at a chosen one. */
export type EngineProxy = {
  socket: string;
  /** The requests since `watch`, in order: method and path. */
  asked: string[];
  /** Starts counting. `strike` runs once, at the given moment of the n-th request, which is then dropped. */
  watch(place?: { nth: number; moment: Moment; strike: () => void }): void;
  /** With true, leaves every request unanswered. With false, forwards the waiting ones and all others again. */
  hang(isHanging: boolean): void;
};

let count = 0;

export async function openEngineProxy(t: Pick<TestContext, 'after'>, engine: Engine): Promise<EngineProxy> {
  const socketPath = join(engine.directory, `proxy-${++count}.sock`);
  const agent = new http.Agent({ keepAlive: false });
  let place: Parameters<EngineProxy['watch']>[0];
  let waiting: (() => void)[] | undefined;

  /** Records a request, and returns the place to strike it, if any. */
  function note({ method, url }: http.IncomingMessage) {
    proxy.asked.push(`${method} ${url?.replace(/\?.*/, '').replace(/[0-9a-f]{64}|purser-inst-\w+-res-\w+/, ':id')}`);
    return place && proxy.asked.length === place.nth ? place : undefined;
  }

  const server = http.createServer(async (request, response) => {
    const struck = note(request);
    const chunks: Buffer[] = [];
    for await (const chunk of request as AsyncIterable<Buffer>) chunks.push(chunk);
    if (waiting) await new Promise<void>((resolve) => waiting?.push(resolve));
    const drop = () => {
      struck?.strike();
      response.socket?.destroy();
    };
    if (struck?.moment === 'before it arrives') return drop();
    const { method, url: path, headers } = request;
    const forwarded = http.request({ socketPath: `${engine.directory}/docker.sock`, agent, method, path, headers });
    forwarded.on('error', () => response.socket?.destroy());
    forwarded.on('response', async (answer) => {
      const body: Buffer[] = [];
      for await (const chunk of answer as AsyncIterable<Buffer>) body.push(chunk);
      if (struck?.moment === 'before it is answered') return drop();
      const { 'transfer-encoding': _, ...fields } = answer.headers;
      response.writeHead(answer.statusCode ?? 500, fields);
      response.end(Buffer.concat(body), () => struck?.strike());
    });
    forwarded.end(Buffer.concat(chunks));
  });
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
    const upstream = connect({ path: `${engine.directory}/docker.sock`, allowHalfOpen: true });
    upstream.on('error', () => client.destroy());
    client.on('close', () => upstream.destroy());
    const { rawHeaders, method, url } = request;
    const fields = rawHeaders.map((it, i) => (i % 2 ? `${it}\r\n` : `${it}: `)).join('');
    upstream.write(`${method} ${url} HTTP/1.1\r\n${fields}\r\n`);
    upstream.write(head);
    client.pipe(upstream);
    if (struck?.moment === 'before it is answered') return upstream.once('data', drop);
    upstream.pipe(client);
    upstream.once('end', () => struck?.strike());
  });
  await new Promise<void>((resolve) => server.listen(socketPath, resolve));
  const proxy: EngineProxy = {
    socket: `unix://${socketPath}`,
    asked: [],
    watch(at) {
      proxy.asked = [];
      place = at;
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
