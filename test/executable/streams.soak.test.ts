import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import test from 'node:test';
import type { Serving } from '../helper/executable.ts';
import { counted, DONE, FINISHED, forever, type Stream, said, streaming, withoutCost } from '../helper/sse.ts';
import { waitFor } from '../helper/waiting.ts';
import { nanos } from './books.ts';
import { CHARGE, serveStreams } from './streams-shared.ts';

const MEBIBYTE = 1024 * 1024;

/** Memory of the process that is no file's, in MiB. */
const memory = ({ pid }: Serving) =>
  Number(/^RssAnon:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1]) / 1024;

const round = (mebibytes: number) => Math.round(mebibytes * 10) / 10;

test('at SIGTERM streams that end in time end well, the others are told so, and the exit code is 0', async (t) => {
  const { upstream, purser, server, wallet, stream } = await serveStreams(t, { settings: { drain_seconds: 5 } });
  const stopping = Promise.withResolvers<void>();
  const ends = streaming(said('a'), () => stopping.promise, FINISHED, counted(), DONE);
  const hangs = streaming(said('a'), forever);
  upstream.handle = (call, response) => (Number(call.body.seed) < 5 ? ends : hangs)(call, response);
  const streams = await Promise.all(Array.from({ length: 10 }, (_, seed) => stream({ seed }, `${seed}`)));
  for (const it of streams) await it.next();
  // And one whose client has stopped reading long ago.
  upstream.handle = streaming(...Array.from({ length: 40 }, () => said('x'.repeat(MEBIBYTE))), forever);
  const stuck = await stream({}, 'stuck');
  server.kill('SIGTERM');
  stopping.resolve();
  const texts = await waitFor('all are answered', Promise.all(streams.map((it) => it.rest())));
  for (const [i, text] of texts.entries())
    if (i < 5) assert(text.endsWith(FINISHED + DONE), text);
    else assert.match(text, /^data: \{"error":\{.*"code":"operation_uncertain"\}.*\}\n\n$/);
  assert.deepEqual(await waitFor('the server ends', server.ended), { code: 0, signal: null });
  stuck.leave();
  assert.deepEqual((await purser.json('operation', 'list', '--uncertain')).operations, []);
  const { operations } = await purser.json('operation', 'list');
  const cut = operations.filter((it: { usage: { estimated?: boolean } }) => it.usage.estimated);
  assert.deepEqual(cut.map((it: { idempotency_key: string }) => it.idempotency_key).sort(), [
    '5',
    '6',
    '7',
    '8',
    '9',
    'stuck',
  ]);
  const estimated = cut.reduce((sum: bigint, it: { charge_usd: string }) => sum + nanos(it.charge_usd), 0n);
  assert.equal(nanos((await purser.json('wallet', 'show', wallet.id)).used_usd), 5n * CHARGE + estimated);
  assert(!server.output.stderr.includes('"level":50'), server.output.stderr.slice(-2000));
});

/**
 * What one more open stream may cost, in KiB: two sockets with their parsers and buffers come to some 40 of live memory,
 * and a collector that has no reason to hurry lets them double and more. Prompts of 100 KB that were kept, as text and as
 * bytes, would alone be 200; measured with them it was 370.
 */
const STREAM_KIBIBYTES_MAX = 256;

const PROMPT = 'x'.repeat(100_000);

test('a thousand open streams take little more memory than a hundred, however long their prompts', async (t) => {
  const { upstream, server, wallet, stream } = await serveStreams(t);
  const end = Promise.withResolvers<void>();
  upstream.handle = streaming(said('a'), () => end.promise, FINISHED, counted(), DONE);
  const streams: Stream[] = [];
  const open = async (count: number) => {
    while (streams.length < count) {
      const body = { model: 'flat', messages: [{ role: 'user', content: PROMPT }] };
      const more = await Promise.all(Array.from({ length: 50 }, () => stream(body)));
      for (const it of more) assert.equal(`${await it.next()}\n\n`, said('a'));
      streams.push(...more);
      upstream.calls.length = 0; // Else it is this process that keeps a thousand prompts.
    }
    return memory(server);
  };
  const idle = memory(server);
  const [hundred, thousand] = [await open(100), await open(1000)];
  const { body: budget } = await server.ask('GET', '/v1/budget', { token: wallet.token });
  assert.equal(budget.held_usd, '10.00');
  end.resolve();
  const texts = await Promise.all(streams.map((it) => it.rest()));
  assert(texts.every((text) => text.endsWith(DONE)));
  const after = await server.ask('GET', '/v1/budget', { token: wallet.token });
  assert.deepEqual([after.body.used_usd, after.body.held_usd], ['10.00', '0.00']);
  const each = ((thousand - hundred) * 1024) / 900;
  t.diagnostic(
    `private memory: ${round(idle)} MiB idle, ${round(hundred)} at 100 open streams, ${round(thousand)} at 1,000 (${Math.round(each)} KiB each), ${round(memory(server))} after`,
  );
  assert(each < STREAM_KIBIBYTES_MAX, `${each} KiB a stream`);
});

/** What the kernel holds of one stream on its way: the buffers of two connections, both ends of each on loopback. */
const ON_THE_WAY_MEBIBYTES_MAX = 24;

/** What the server itself may hold of it: a chunk or two, and room for the collector. */
const HELD_MEBIBYTES_MAX = 32;

test('a stream of 200 MB to a client that reads 10 KB/s stands still at the upstream, not in memory', async (t) => {
  const { upstream, server, stream } = await serveStreams(t);
  const piece = said('x'.repeat(64 * 1024));
  const count = Math.ceil((200 * MEBIBYTE) / piece.length);
  let sent = 0;
  const tally = () => {
    sent += piece.length;
  };
  // A server that has streamed before has a heap of its usual size: what it grows by afterwards is this stream's.
  upstream.handle = streaming(...Array.from({ length: 300 }, () => piece), FINISHED, counted(), DONE);
  await (await stream({ model: 'flat' })).rest();
  upstream.handle = streaming(...Array.from({ length: count }, () => [piece, tally]).flat(), FINISHED, counted(), DONE);
  const slow = await stream({ model: 'flat' });
  const before = memory(server);
  let [kept, got, seen]: [number[], number, number] = [[], 0, -1];
  const socket = slow.body as NodeJS.ReadableStream & AsyncIterable<Buffer>;
  // Until the upstream stands still, for so many looks.
  while (kept.length < 20) {
    if (sent !== seen) kept = [];
    seen = sent;
    got += (socket.read(1024) as Buffer | null)?.length ?? 0;
    await new Promise((resolve) => setTimeout(resolve, 100));
    kept.push(memory(server));
    assert(sent < ON_THE_WAY_MEBIBYTES_MAX * MEBIBYTE, `${sent} bytes had left the upstream`);
  }
  const held = Math.min(...kept); // What is more now and then is garbage that was not collected yet.
  t.diagnostic(
    `of 200 MiB ${round(sent / MEBIBYTE)} had left the upstream when ${round(got / 1024)} KiB were read; private memory ${round(before)} MiB before, ${round(held)} held`,
  );
  assert(held - before < HELD_MEBIBYTES_MAX, `${held - before} MiB`);
  // It reads on, and gets it whole.
  let [rest, tail] = [0, ''];
  for await (const chunk of socket) {
    rest += (chunk as Buffer).length;
    tail = (tail + (chunk as Buffer).toString('latin1')).slice(-300);
  }
  const cost = tail.length - withoutCost(tail).length;
  assert(withoutCost(tail).endsWith(FINISHED + DONE));
  assert.equal(got + rest, count * piece.length + FINISHED.length + cost + DONE.length);
});
