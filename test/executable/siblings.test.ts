import assert from 'node:assert/strict';
import test from 'node:test';
import { installation, type Serving } from '../helper/executable.ts';
import { completion, gate, hang, openUpstream } from '../helper/upstream.ts';
import { until } from '../helper/waiting.ts';

/** 64,000 tokens of it hold 0.96 USD. */
const LONG = {
  id: 'long',
  upstream: 'local',
  context_length: 200_000,
  max_output_tokens: 64_000,
  pricing: { prompt: '0.000003', completion: '0.000015' },
};

test('siblings on one dollar wait for each other; a kill leaves one hold, which a reordered retry takes over; a stop refuses who waits', async (t) => {
  const upstream = await openUpstream(t);
  const local = { name: 'local', base_url: upstream.url, timeout_seconds: 300 };
  const settings = { router: { upstreams: [local], models: [LONG] } };
  const purser = installation(t, { upstream, settings });
  let server = await purser.serve();
  await purser.operate('account.credit', { id: 'default', cents: 1000 });
  const order = { account: 'default', name: 'agent', budget_cents: 100 };
  const { agent_token: token } = await purser.operate('wallet.create', order);
  const { body: key } = await server.ask('POST', '/v1/router/key', { token, body: {} });
  const ask = (at: Serving, it: object) =>
    at.ask('POST', '/v1/router/chat/completions', { token: key.api_key, body: it });
  const body = (seed: number) => ({
    model: 'long',
    messages: [{ role: 'user', content: 'hi' }],
    max_tokens: 64_000,
    seed,
    metadata: { turn: 'a', session: 'b' },
  });
  const waiting = (count: number) =>
    until(`${count} wait`, async () => (await purser.json('status')).holds.waiting === count);

  const slow = gate(completion({ prompt_tokens: 10, completion_tokens: 500, total_tokens: 510 }));
  upstream.handle = slow.handler;
  const answers = [0, 1, 2, 3].map((seed) => ask(server, body(seed)));
  await waiting(3);
  assert.equal(upstream.calls.length, 1);
  slow.open();
  for (const answer of await Promise.all(answers)) {
    assert.equal(answer.status, 200, answer.text);
    assert.equal(answer.headers['x-purser-max-tokens'], undefined);
  }

  upstream.handle = hang;
  const lost = [ask(server, body(4)), ask(server, body(5))].map((it) => it.catch(() => undefined));
  await waiting(1);
  await server.stop('SIGKILL');
  await Promise.all(lost);
  const [{ hold_usd: held, idempotency_key: id }] = (await purser.json('operation', 'list', '--uncertain')).operations;
  const seed = upstream.calls.at(-1)?.body.seed as number;
  server = await purser.serve();
  upstream.handle = completion({ prompt_tokens: 10, completion_tokens: 500, total_tokens: 510 });
  const reordered = Object.fromEntries(Object.entries(body(seed)).reverse());
  const retried = await ask(server, { ...reordered, metadata: { session: 'b', turn: 'c' } });
  assert.equal(retried.status, 200, retried.text);
  const { operations } = await purser.json('operation', 'list');
  const found = operations.find((it: { idempotency_key: string }) => it.idempotency_key === id);
  assert.deepEqual([operations.length, found.state, found.hold_usd], [5, 'settled', held]);

  upstream.handle = hang;
  const stopped = [ask(server, body(6)), ask(server, body(7))];
  await waiting(1);
  server.kill('SIGTERM');
  const refused = await Promise.race(stopped);
  assert.deepEqual([refused.status, refused.body.error.code], [503, 'read_only']);
  server.kill('SIGKILL');
  await Promise.allSettled(stopped);
  assert.equal((await purser.json('ledger', 'verify')).ok, true);
});
