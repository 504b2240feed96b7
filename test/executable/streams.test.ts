import assert from 'node:assert/strict';
import { randomInt } from 'node:crypto';
import { readFileSync } from 'node:fs';
import test, { type TestContext } from 'node:test';
import {
  type Installation,
  type InstallationOptions,
  installation,
  type Serving,
  within,
} from '../helper/executable.ts';
import { MODELS } from '../helper/server.ts';
import {
  completionStream,
  counted,
  DONE,
  FINISHED,
  forever,
  openStream,
  type Stream,
  said,
  streaming,
  withoutCost,
} from '../helper/sse.ts';
import { type FakeUpstream, openUpstream } from '../helper/upstream.ts';
import { nanos, readBooks } from './books.ts';
import { randomFrom } from './random.ts';

const SEED = Number(process.env.PURSER_TEST_SEED ?? randomInt(2 ** 31));
const MEBIBYTE = 1024 * 1024;
const CHARGE = 120_000n; // What completionStream() costs with the model `chat`.

type Streaming = {
  upstream: FakeUpstream;
  purser: Installation;
  server: Serving;
  wallet: { id: string; token: string; key: string };
  stream(body?: object, key?: string): Promise<Stream>;
};

/** A server with a wallet of USD 10,000 and its gateway key. */
async function serveStreams(
  t: TestContext,
  options: Pick<InstallationOptions, 'uncertain' | 'settings'> = {},
): Promise<Streaming> {
  const upstream = await openUpstream(t);
  const { uncertain = { after_seconds: 900, policy: 'charge' }, settings } = options;
  // On a machine that does much else a thousand streams take their time.
  const upstreams = [{ name: 'local', base_url: upstream.url, timeout_seconds: 600 }];
  const purser = installation(t, { settings: { router: { upstreams, models: MODELS, uncertain }, ...settings } });
  const server = await purser.serve();
  const { accounts } = await purser.json('account', 'list');
  await purser.json('account', 'credit', accounts[0].id, '1000000');
  const create = ['wallet', 'create', '--account', accounts[0].id, '--name', 'agent', '--budget-cents', '1000000'];
  const { id, agent_token: token } = await purser.json(...create);
  const { body } = await server.ask('POST', '/v1/router/key', { token, body: {} });
  const wallet = { id, token, key: body.api_key };
  const stream = (more: object = {}, key?: string) =>
    openStream(server.url, wallet.key, more, key === undefined ? {} : { key });
  return { upstream, purser, server, wallet, stream };
}

/** Memory of the process that is no file's, in MiB. */
const memory = ({ pid }: Serving) =>
  Number(/^RssAnon:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1]) / 1024;
const round = (mebibytes: number) => Math.round(mebibytes * 10) / 10;

/** What became of a stream, as its client saw it. */
async function read(stream: Promise<Stream>): Promise<'whole' | 'told' | 'cut'> {
  try {
    const text = await (await stream).rest();
    if (text.endsWith(DONE)) return 'whole';
    return text.includes('operation_uncertain') ? 'told' : 'cut';
  } catch {
    return 'cut';
  }
}

test(`a kill in the middle of streams loses none: what was told as paid is, and the rest waits for its policy (seed ${SEED})`, async (t) => {
  t.diagnostic(`seed ${SEED}`);
  const random = randomFrom(SEED);
  const { upstream, purser, server, wallet, stream } = await serveStreams(t, {
    uncertain: { after_seconds: 3600, policy: 'charge' },
  });
  const late = Promise.withResolvers<void>();
  // Some have ended, some are in their middle, some have not begun when the server is killed.
  upstream.handle = (call, response) => {
    const fate = random();
    if (fate < 0.4) return completionStream()(call, response);
    if (fate < 0.7) return streaming(said('a'), () => late.promise, forever)(call, response);
    return late.promise;
  };
  const keys = Array.from({ length: 120 }, (_, i) => `key ${i}`);
  const reading = new Map(keys.map((key) => [key, read(stream({}, key))]));
  await upstream.arrived(keys.length);
  await server.logged('operation.charged', 20);
  server.kill('SIGKILL');
  const seen = new Map(await Promise.all([...reading].map(async ([key, it]) => [key, await it] as const)));
  late.resolve();
  const whole = keys.filter((key) => seen.get(key) === 'whole');
  assert(whole.length >= 10 && whole.length < keys.length, `${whole.length}`);

  upstream.handle = completionStream();
  const next = await purser.serve();
  const ask = (key: string) => openStream(next.url, wallet.key, {}, { key });
  for (const key of whole) {
    const again = await ask(key);
    assert.equal(again.headers['idempotent-replayed'], 'true', 'told as paid, so it is on disk');
    assert((await again.rest()).endsWith(DONE));
  }
  const { operations } = await purser.json('operation', 'list', '--uncertain');
  const uncertain = new Set(operations.map((it: { idempotency_key: string }) => it.idempotency_key));
  const { body: budget } = await next.ask('GET', '/v1/budget', { token: wallet.token });
  assert.equal(budget.holds.length, uncertain.size);
  assert(budget.holds.every((it: { state: string }) => it.state === 'uncertain'));
  for (const key of uncertain) {
    const again = await ask(key as string);
    assert.equal(again.status, 503);
    assert.match(await again.rest(), /operation_uncertain/);
  }
  assert.equal(upstream.calls.length, keys.length, 'no key was sent twice');
  await next.stop();
  const books = readBooks((await purser.cli('ledger', 'export')).stdout);
  const charges = [...books.operations.values()].flatMap((it) => it.charges);
  assert(charges.every((it) => it === CHARGE));
  assert.equal(charges.length, keys.length - uncertain.size);
  assert((await purser.json('ledger', 'verify')).ok);
});

test('after a kill the policy charges the stream that was in flight, once', async (t) => {
  const { upstream, purser, server, wallet, stream } = await serveStreams(t, {
    uncertain: { after_seconds: 1, policy: 'charge' },
  });
  upstream.handle = streaming(said('a'), forever);
  const open = await stream({}, 'k');
  await open.next();
  const held = (await server.ask('GET', '/v1/budget', { token: wallet.token })).body.held_usd;
  await server.stop('SIGKILL');
  const next = await purser.serve();
  await next.logged('operation.decided');
  const again = await openStream(next.url, wallet.key, {}, { key: 'k' });
  assert.equal(again.status, 409);
  const told = await again.rest();
  assert.match(told, /"answer_lost"/);
  assert(told.includes(`${held} USD were charged`), told);
  const { body } = await next.ask('GET', '/v1/budget', { token: wallet.token });
  assert.deepEqual([body.used_usd, body.held_usd], [held, '0.00']);
  assert.equal(upstream.calls.length, 1);
});

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
  const texts = await within(Promise.all(streams.map((it) => it.rest())), () => 'all are answered');
  for (const [i, text] of texts.entries())
    if (i < 5) assert(text.endsWith(FINISHED + DONE), text);
    else assert.match(text, /^data: \{"error":\{.*"code":"operation_uncertain"\}.*\}\n\n$/);
  assert.deepEqual(await within(server.ended, () => 'the server ends'), { code: 0, signal: null });
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
