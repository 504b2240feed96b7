import assert from 'node:assert/strict';
import test from 'node:test';
import { randomFrom, SEED } from '../helper/random.ts';
import { completionStream, DONE, forever, openStream, said, streaming } from '../helper/sse.ts';
import { readBooks } from './books.ts';
import { CHARGE, read, serveStreams } from './streams-shared.ts';

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
