import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import test from 'node:test';
import OpenAI from 'openai';
import { installation } from '../helper/executable.ts';
import { completion, openUpstream } from '../helper/upstream.ts';

test('a stock OpenAI client gets an answer with a wallet token, and the budget shows its exact price', async (t) => {
  const upstream = await openUpstream(t);
  upstream.handle = completion({ prompt_tokens: 12, completion_tokens: 34, total_tokens: 46 });
  const purser = installation(t, { upstream });
  const serving = await purser.serve();
  await purser.operate('account.credit', { id: 'default', cents: 1000 });
  const opened = { account: 'default', name: 'sdk', budget_cents: 100 };
  const { agent_token: token } = await purser.operate('wallet.create', opened);

  const client = new OpenAI({ baseURL: `${serving.url}/v1`, apiKey: token });
  const call = (key: string, maxTokens = 50) =>
    client.chat.completions.create(
      { model: 'chat', messages: [{ role: 'user', content: 'Say hello.' }], max_tokens: maxTokens },
      { headers: { 'Idempotency-Key': key } },
    );
  const key = randomUUID();
  const answer = await call(key);
  assert.equal(answer.choices[0]?.message.content, 'hello');
  assert.deepEqual(await call(key), answer, 'the same key is answered again');
  assert.equal(upstream.calls.length, 1);

  const budget = await serving.ask('GET', '/v1/budget', { token });
  assert.equal(budget.body.used_usd, '0.00018'); // 12 × 0.000001 + 34 × 0.000002 + 0.0001
  const models = await client.models.list();
  assert.ok(models.data.some(({ id }) => id === 'chat'));

  const refused = await client.chat.completions
    .create(
      { model: 'dear', messages: [{ role: 'user', content: 'x' }] },
      { headers: { 'Idempotency-Key': randomUUID() } },
    )
    .catch((error: unknown) => error);
  assert.ok(refused instanceof OpenAI.APIError);
  assert.deepEqual([refused.status, refused.code], [402, 'insufficient_funds']);
  assert.match(refused.message, /max_tokens 99 it would fit/);
  assert.ok(refused.requestID?.startsWith('req_'));
});
