import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer, type IncomingMessage } from 'node:http';
import { type AddressInfo, connect } from 'node:net';
import test, { type TestContext } from 'node:test';
import type { Refusal } from '../../src/base/refusal.ts';
import { readBody } from '../../src/http/body.ts';
import { createMemoryQuota } from '../../src/http/memory-quota.ts';

/** A server that reads bodies of at most `max` bytes, and a client of it that writes by hand. `heard` is told of each piece first. */
async function openReader(
  t: TestContext,
  { max = 1000, heard }: { max?: number; heard?: (piece: Buffer) => void } = {},
) {
  const quota = createMemoryQuota();
  const read = Promise.withResolvers<{ result: string; request: IncomingMessage }>();
  const arrived = Promise.withResolvers<void>();
  const server = createServer(async (request, response) => {
    const share = quota.open('a caller');
    if (heard) request.on('data', heard);
    const reading = readBody(request, max, share);
    arrived.resolve();
    const result = await reading.then(String, (error: Refusal) => error.code);
    share.close();
    read.resolve({ result, request });
    response.writeHead(200, { connection: 'close' }).end(result);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const client = connect((server.address() as AddressInfo).port, '127.0.0.1');
  client.setEncoding('utf8');
  let answer = '';
  client.on('data', (text) => {
    answer += text;
  });
  t.after(() => {
    client.destroy();
    server.close();
  });
  const head = (more: string) => client.write(`POST / HTTP/1.1\r\nhost: a\r\n${more}\r\n\r\n`);
  return { quota, client, head, read: read.promise, arrived: arrived.promise, answer: () => answer };
}

const LISTENED = ['data', 'end', 'error', 'close'];

test('a body is read in any pieces, announced or not, and leaves no listener behind', async (t) => {
  for (const announced of [true, false]) {
    const { client, head, read, quota } = await openReader(t);
    head(announced ? 'content-length: 12' : 'transfer-encoding: chunked');
    for (const piece of ['on', 'ce', ' upon ', 'a', 't']) {
      client.write(announced ? piece : `${piece.length.toString(16)}\r\n${piece}\r\n`);
      await new Promise((resolve) => setImmediate(resolve));
    }
    if (!announced) client.write('0\r\n\r\n');
    const { result, request } = await read;
    assert.equal(result, 'once upon at');
    for (const name of ['data', 'end']) assert.equal(request.listenerCount(name), 0, name);
    quota.cutOff(); // Nothing waits for it any more.
  }
});

test('a body that breaks off is refused, however its client went away', async (t) => {
  for (const leave of ['end', 'resetAndDestroy'] as const) {
    const { client, head, read, arrived } = await openReader(t);
    head('content-length: 100');
    client.write('half');
    await arrived;
    client.on('error', () => {});
    client[leave]();
    assert.equal((await read).result, 'invalid_request', leave);
  }
});

test('a body that grows too large is refused while it still comes, and its client reads why', async (t) => {
  const { client, head, read, answer } = await openReader(t);
  head('transfer-encoding: chunked');
  client.write(`3e9\r\n${'x'.repeat(1001)}\r\n`);
  const { result, request } = await read;
  assert.equal(result, 'payload_too_large');
  for (const name of LISTENED)
    assert(
      request.listeners(name).every((it) => it.name !== 'take'),
      name,
    );
  await once(client, 'close');
  assert.match(answer(), /200 OK\r\n(.*\r\n)*payload_too_large/);
});

test('a server that stops refuses the bodies that are not complete', async (t) => {
  const { client, head, read, arrived, quota } = await openReader(t);
  head('content-length: 100');
  client.write('half');
  await arrived;
  quota.cutOff();
  assert.equal((await read).result, 'read_only');
});

test('the memory of what has been read of a large body is given back at once', async (t) => {
  const pieces: Buffer[] = [];
  const lengths: number[] = [];
  const heard = (piece: Buffer) => {
    pieces.push(piece);
    lengths.push(piece.length);
  };
  const { client, head, read } = await openReader(t, { max: 2_000_000, heard });
  const body = Array.from({ length: 100_000 }, (_, i) => `line ${i}`).join('\n');
  head(`content-length: ${body.length}`);
  client.write(body);
  assert((await read).result === body, 'the body is what was sent');
  assert(lengths.filter((it) => it >= 16 * 1024).length > 5, String(lengths));
  assert.deepEqual(
    pieces.map(({ length }) => length),
    lengths.map((it) => (it >= 16 * 1024 ? 0 : it)),
  );
});
