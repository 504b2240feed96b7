import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import test from 'node:test';
import { installation } from '../helper/executable.ts';
import { gate, hang, openUpstream } from '../helper/upstream.ts';
import { waitFor } from '../helper/waiting.ts';
import { accepted, chat, refusing, walletOf } from './shutdown-shared.ts';

const CONNECTION_COUNT = 20;

test('what is in flight at SIGTERM is answered, new connections are refused, and the exit code is 0', async (t) => {
  const upstream = await openUpstream(t);
  const purser = installation(t, { upstream, settings: { drain_seconds: 60 } });
  const server = await purser.serve();
  const wallet = await walletOf(purser);
  const late = gate();
  upstream.handle = late.handler;
  const inFlight = Array.from({ length: CONNECTION_COUNT }, () => chat(server, wallet.token, randomUUID()));
  await upstream.arrived(CONNECTION_COUNT);

  server.kill('SIGTERM');
  await waitFor('no connection is accepted', refusing(server));
  late.open();
  const answers = await Promise.all(inFlight);
  assert.deepEqual(
    answers.map((it) => it.status),
    answers.map(() => 200),
  );
  assert(
    answers.every((it) => it.headers.connection === 'close'),
    'and told that the connection ends',
  );
  assert.deepEqual(await server.ended, { code: 0, signal: null });
  assert.deepEqual((await purser.json('operation', 'list', '--uncertain')).operations, []);
  assert.equal((await purser.json('wallet', 'show', wallet.id)).used_usd, '0.0024'); // 20 × 0.00012
});

test('what still runs after drain_seconds is answered 503 operation_uncertain, and the next start has its hold', async (t) => {
  const upstream = await openUpstream(t);
  const purser = installation(t, { upstream, settings: { drain_seconds: 1 } });
  const server = await purser.serve();
  const wallet = await walletOf(purser);
  upstream.handle = hang;
  const keys = ['first', 'second', 'third'];
  const asked = keys.map((key) => chat(server, wallet.token, key));
  await upstream.arrived(3);
  const joined = await accepted(server, wallet.token, 'first'); // It waits for the first attempt's answer.

  server.kill('SIGTERM');
  const answers = await waitFor('all four are answered', Promise.all([...asked, joined.answer]));
  for (const { status, body, headers } of answers) {
    assert.deepEqual([status, body.error.code], [503, 'operation_uncertain']);
    assert.match(String(headers['retry-after']), /^\d+$/);
  }
  assert.deepEqual(await server.ended, { code: 0, signal: null });

  const { operations } = await purser.json('operation', 'list', '--uncertain');
  const found = operations.map((it: { idempotency_key: string; state: string; hold_usd: string }) => [
    it.idempotency_key,
    it.state,
  ]);
  assert.deepEqual(
    found,
    keys.map((key) => [key, 'uncertain']),
  );
  const next = await purser.serve();
  const { body: budget } = await next.ask('GET', '/v1/budget', { token: wallet.token });
  assert.equal(budget.used_usd, '0.00');
  assert.deepEqual(
    budget.holds.map((it: { amount_usd: string; state: string }) => [it.amount_usd, it.state]),
    operations.map((it: { hold_usd: string }) => [it.hold_usd, 'uncertain']),
  );
  const again = await chat(next, wallet.token, 'first');
  assert.deepEqual([again.status, again.body.error.code], [503, 'operation_uncertain'], 'and its key is not free');
  assert.equal(upstream.calls.length, 3, 'nobody was called a second time');
});
