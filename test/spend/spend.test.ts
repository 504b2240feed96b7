import assert from 'node:assert/strict';
import test from 'node:test';
import { openTestServer } from '../helper/server.ts';
import { completion } from '../helper/upstream.ts';

test('a chat is charged by its usage, to the nano-dollar, and the rest of the hold comes back', async (t) => {
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet({ budget_cents: 500 });
  purser.upstream.handle = completion({ prompt_tokens: 11, completion_tokens: 7 });
  const answer = await purser.chat(token);
  assert.equal(answer.status, 200, answer.text);
  const budget = await purser.budget(token);
  // 11 × 0.000001 + 7 × 0.000002 + 0.0001
  assert.equal(budget.used_usd, '0.000125');
  assert.equal(budget.held_usd, '0.00');
  assert.equal(budget.available_usd, '4.999875');
  assert.deepEqual(purser.problems(), []);
});

test('a chat nobody can pay for is refused before the upstream hears of it', async (t) => {
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet({ budget_cents: 100 });
  const answer = await purser.chat(token, { model: 'dear', max_tokens: 1000 });
  assert.equal(answer.status, 402);
  assert.equal(answer.body.error.code, 'insufficient_funds');
  assert.match(
    answer.body.error.message,
    /needs 10\.00 USD at most; the wallet has 1\.00 USD available.*max_tokens 100 it would fit/,
  );
  assert.deepEqual(purser.upstream.calls, []);
  assert.equal((await purser.budget(token)).held_usd, '0.00');
});
