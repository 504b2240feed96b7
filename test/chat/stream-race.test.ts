import assert from 'node:assert/strict';
import test from 'node:test';
import { openGateway } from '../helper/gateway.ts';
import { length, randomFrom, SEED } from '../helper/random.ts';
import { openTestServer } from '../helper/server.ts';
import { counted, DONE, FINISHED, said, streaming } from '../helper/sse.ts';

const STREAM_COUNT = length(60, 500);
const LATE_MILLISECONDS_MAX = 20;
const pause = (milliseconds: number) => new Promise((resolve) => setTimeout(resolve, milliseconds));

test(`${STREAM_COUNT} streams at once on one wallet, whose clients leave when they like: the books are exact (seed ${SEED})`, async (t) => {
  t.diagnostic(`seed ${SEED}`);
  const random = randomFrom(SEED);
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser, { wallet: { budget_cents: 5000 } });
  /** What the upstream has counted, in nano-dollars, by operation: it is the other side's own book. */
  const counts = new Map<string, bigint>();
  purser.upstream.handle = async (call, response) => {
    const usage = { prompt_tokens: 1 + Math.floor(random() * 50), completion_tokens: Math.floor(random() * 100) };
    const id = String(call.headers['idempotency-key']);
    assert(!counts.has(id), 'no operation is asked twice');
    counts.set(id, BigInt(usage.prompt_tokens) * 1000n + BigInt(usage.completion_tokens) * 2000n + 100_000n);
    const words = Array.from({ length: Math.floor(random() * 8) }, () => [
      said('x'.repeat(Math.floor(random() ** 4 * 50_000))),
      () => pause(random() * LATE_MILLISECONDS_MAX),
    ]).flat();
    await streaming(said('first'), ...words, FINISHED, counted(usage), DONE)(call, response);
  };
  let [whole, left] = [0, 0];
  const clients = Array.from({ length: STREAM_COUNT }, async (_, i) => {
    const stream = await gateway.stream({ seed: i }, random() < 0.5 ? `key ${i}` : undefined);
    assert.equal(stream.status, 200);
    if (random() < 0.5) {
      assert((await stream.rest()).endsWith(DONE));
      whole++;
      return;
    }
    await pause(random() * 4 * LATE_MILLISECONDS_MAX);
    if (random() < 0.5) await stream.next().catch(() => {});
    stream.leave();
    left++;
  });
  await Promise.all(clients);
  await gateway.quiet();
  assert.equal(counts.size, STREAM_COUNT);
  t.diagnostic(`${whole} were read to their end, ${left} clients left`);
  const sum = [...counts.values()].reduce((all, it) => all + it, 0n);
  const wallet = purser.wallet(gateway.walletId);
  assert.deepEqual([wallet.spent, wallet.held], [sum, 0n], 'to the nano-dollar');
  const rows = purser.app.ledger.client.prepare('select id, state, charge_nanos as charge from operation').all();
  for (const { id, state, charge } of rows as { id: string; state: string; charge: bigint }[])
    assert.deepEqual([state, charge], ['settled', counts.get(id)], id);
  assert.equal(rows.length, STREAM_COUNT);
  assert.deepEqual(purser.problems(), []);
  assert.equal(purser.app.inFlight.count(), 0);
  assert.deepEqual(
    purser.log.filter((line) => JSON.parse(line).level >= 40),
    [],
  );
  const closed = await purser.ask('POST', '/v1/run/close', { token: gateway.token });
  assert.equal(closed.body.status, 'closed');
});

test(`streams that race for the last of a wallet never take more than there is (seed ${SEED})`, async (t) => {
  const random = randomFrom(SEED);
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser, { wallet: { budget_cents: 100 } });
  let upstreamCounted = 0n;
  purser.upstream.handle = async (call, response) => {
    const usage = { prompt_tokens: 5, completion_tokens: Math.floor(random() * 3) };
    upstreamCounted += BigInt(usage.completion_tokens) * 10_000_000n;
    await pause(random() * LATE_MILLISECONDS_MAX);
    await streaming(said('a'), counted(usage), DONE)(call, response);
  };
  let max = 0n;
  const watch = setInterval(() => {
    const { spent, held } = purser.wallet(gateway.walletId);
    if (spent + held > max) max = spent + held;
  }, 1);
  t.after(() => clearInterval(watch));
  const statuses = new Map<number, number>();
  await Promise.all(
    Array.from({ length: 200 }, async (_, i) => {
      const stream = await gateway.stream({ model: 'dear', max_tokens: 2, seed: i }); // USD 0.02 at most
      statuses.set(stream.status, (statuses.get(stream.status) ?? 0) + 1);
      if (random() < 0.3) stream.leave();
      else await stream.rest();
    }),
  );
  await gateway.quiet();
  clearInterval(watch); // Before the server closes.
  const wallet = purser.wallet(gateway.walletId);
  assert.deepEqual([wallet.spent, wallet.held], [upstreamCounted, 0n]);
  assert(max <= 1_000_000_000n, `${max}`);
  assert.equal(statuses.get(200), purser.upstream.calls.length);
  assert.equal((statuses.get(402) ?? 0) + (statuses.get(429) ?? 0), 200 - purser.upstream.calls.length);
  assert.deepEqual(purser.problems(), []);
});

test('a client that never reads is gone after a while, and its stream is metered to the end', async (t) => {
  const stallMilliseconds = 2000;
  const purser = await openTestServer(t, { stallMilliseconds });
  const gateway = await openGateway(purser);
  let sent = 0;
  const piece = said('x'.repeat(500_000));
  const tally = () => {
    sent += piece.length;
  };
  purser.upstream.handle = streaming(
    ...Array.from({ length: 60 }, () => [piece, tally]).flat(),
    FINISHED,
    counted(),
    DONE,
  );
  const stream = await gateway.stream({}, 'k');
  const started = performance.now();
  await gateway.quiet();
  assert(performance.now() - started >= stallMilliseconds, 'it was waited for');
  assert.equal(sent, 60 * piece.length, 'and then the upstream was read to its end');
  const wallet = purser.wallet(gateway.walletId);
  assert.deepEqual([wallet.spent, wallet.held], [120_000n, 0n]);
  await assert.rejects(stream.rest(), 'the connection is gone');
  const replayed = await gateway.streamed({}, 'k');
  assert.equal(replayed.text.length, 60 * piece.length + FINISHED.length + DONE.length);
});

test('while its client does not read, the upstream is not read either', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  let sent = 0;
  const piece = said('x'.repeat(100_000));
  const tally = () => {
    sent += piece.length;
  };
  purser.upstream.handle = streaming(
    ...Array.from({ length: 600 }, () => [piece, tally]).flat(),
    FINISHED,
    counted(),
    DONE,
  );
  const stream = await gateway.stream();
  let before = -1;
  while (sent !== before) {
    before = sent;
    await pause(200);
  }
  assert(sent < 0.5 * 600 * piece.length, `${sent} bytes are on their way, in the buffers of four sockets`);
  assert.equal(purser.wallet(gateway.walletId).spent, 0n);
  assert((await stream.rest()).endsWith(FINISHED + DONE));
  assert.equal(sent, 600 * piece.length);
});
