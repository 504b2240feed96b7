import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect } from 'node:net';
import { PassThrough } from 'node:stream';
import test, { type TestContext } from 'node:test';
import type { GuestSession } from '../../src/compute/backend.ts';
import { joinCrumbs } from '../../src/http/crumbs.ts';
import { LONG, openMemoryServer } from '../lease/leases.ts';

/** A body in chunks of one byte each, and what it is. */
const BODY = Buffer.alloc(20_000, 'abcdefg');
const CRUMBS = `${Array.from(BODY, (byte) => `1\r\n${String.fromCharCode(byte)}\r\n`).join('')}0\r\n\r\n`;
/** Its chunks when they are joined, however the network has cut them. */
const CHUNKS_MAX = 400;

/** Returns the chunks of a message that is written chunk by chunk. */
function chunksOf(message: string): Buffer[] {
  const chunks: Buffer[] = [];
  for (let at = message.indexOf('\r\n\r\n') + 4; ; ) {
    const end = message.indexOf('\r\n', at);
    const length = Number.parseInt(message.slice(at, end), 16);
    assert(end > 0 && length >= 0, 'the body is whole');
    if (length === 0) return chunks;
    chunks.push(Buffer.from(message.slice(end + 2, end + 2 + length), 'latin1'));
    at = end + 2 + length + 2;
  }
}

/** Sends a request to a port of a lease, and returns what the server inside has read, and what the client has, as they were written. */
async function exchange(t: TestContext, method: string, body: string, answer: string): Promise<[string, string]> {
  const purser = await openMemoryServer(t);
  const heard: Buffer[] = [];
  let last = '';
  const session = async (): Promise<GuestSession> => {
    const [stdin, stdout, stderr] = [new PassThrough(), new PassThrough(), new PassThrough()];
    const ended = Promise.withResolvers<{ code: number }>();
    stderr.end();
    stdout.write('connected\n');
    stdin.on('data', (piece: Buffer) => {
      heard.push(piece);
      last = (last + piece.toString('latin1')).slice(-5);
      if (last.endsWith(body ? '0\r\n\r\n' : '\r\n\r\n')) stdout.end(answer);
    });
    stdout.once('end', () => ended.resolve({ code: 0 }));
    return { stdin, stdout, stderr, ended: ended.promise, resize() {}, kill: () => ended.resolve({ code: 137 }) };
  };
  Object.assign(purser.backend.guest, { session });
  const { token } = await purser.openWallet(LONG);
  const { id } = (await purser.lease(token)).body;
  const client = connect(Number(new URL(purser.url).port), '127.0.0.1');
  const coding = body ? 'Transfer-Encoding: chunked\r\n' : '';
  client.write(
    `${method} /v1/compute/${id}/port/80/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer ${token}\r\n${coding}\r\n${body}`,
  );
  let told = '';
  client.setEncoding('latin1').on('data', (piece: string) => {
    told += piece;
  });
  await once(client, 'close');
  return [Buffer.concat(heard).toString('latin1'), told];
}

test('a body in chunks of one byte goes on to a port, and waits for it, in few', async (t) => {
  const [heard, told] = await exchange(t, 'POST', CRUMBS, 'HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok');
  const chunks = chunksOf(heard);
  assert(Buffer.concat(chunks).equals(BODY));
  assert(chunks.length <= CHUNKS_MAX, `${chunks.length} chunks`);
  assert.match(told, /^HTTP\/1\.1 200 /);
});

test('an answer of a server inside in chunks of one byte goes on in few', async (t) => {
  const [, told] = await exchange(t, 'GET', '', `HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n${CRUMBS}`);
  const chunks = chunksOf(told);
  assert(Buffer.concat(chunks).equals(BODY));
  assert(chunks.length <= CHUNKS_MAX, `${chunks.length} chunks`);
});

test('short pieces are joined in their order with those that are not, and come in the next turn at the latest', async () => {
  const pushed: (string | null)[] = [];
  const push = joinCrumbs((piece) => {
    pushed.push(piece === null ? null : piece.toString());
    return pushed.length < 2;
  });
  const long = 'l'.repeat(5000);
  const given = ['a', 'b', long, 'c', 'd'].map((it) => push(Buffer.from(it)));
  assert.deepEqual(pushed, ['ab', long], 'what is long passes at once, behind what was short');
  assert(!given.includes(true), 'a socket that gives short pieces is not read on at once');
  await new Promise(setImmediate);
  assert.deepEqual(pushed, ['ab', long, 'cd']);
  push(Buffer.from('e'));
  push(null);
  await new Promise(setImmediate);
  assert.deepEqual(pushed, ['ab', long, 'cd', 'e', null]);
});

test('of many bodies of short pieces a few go on in a turn, each in its own', async () => {
  const given: number[] = [];
  const bodies = Array.from({ length: 5 }, (_, i) =>
    joinCrumbs((piece) => {
      if (piece) given.push(i);
      return true;
    }),
  );
  for (const push of bodies) for (let i = 0; i < 2000; i++) push(Buffer.from('x'));
  const turns: number[] = [];
  for (; given.length < bodies.length; turns.push(given.length)) await new Promise(setImmediate);
  assert.deepEqual(turns, [2, 4, 5]);
  assert.deepEqual(given, [0, 1, 2, 3, 4]);
});
