import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import test from 'node:test';
import { openTestServer } from '../helper/server.ts';
import { completion, failure, gate } from '../helper/upstream.ts';

test('the same key and body get the same answer again, marked, and are paid once', async (t) => {
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet();
  const first = await purser.chat(token, {}, 'k');
  const again = await purser.chat(token, {}, 'k');
  assert.equal(first.headers['idempotent-replayed'], undefined);
  assert.equal(again.headers['idempotent-replayed'], 'true');
  assert.equal(again.text, first.text);
  assert.equal(purser.upstream.calls.length, 1);
  // The order of members means nothing; a default that is spelled out does.
  const reordered = await purser.ask('POST', '/v1/chat/completions', {
    token,
    key: 'k',
    body: '{"max_tokens":100,"messages":[{"content":"hi","role":"user"}],"model":"chat"}',
  });
  assert.equal(reordered.headers['idempotent-replayed'], 'true');
  assert.equal((await purser.chat(token, { stream: false }, 'k')).body.error.code, 'idempotency_conflict');
  assert.equal(purser.upstream.calls.length, 1);
});

test('the same key with another body is a conflict, while the first runs and afterwards', async (t) => {
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet();
  const held = gate();
  purser.upstream.handle = held.handler;
  const first = purser.chat(token, {}, 'k');
  await purser.upstream.arrived(1);
  assert.equal((await purser.chat(token, { max_tokens: 5 }, 'k')).body.error.code, 'idempotency_conflict');
  held.open();
  assert.equal((await first).status, 200);
  assert.equal((await purser.chat(token, { max_tokens: 5 }, 'k')).body.error.code, 'idempotency_conflict');
});

test('a key belongs to its wallet: another wallet may use it for something else', async (t) => {
  const purser = await openTestServer(t);
  const [one, two] = [await purser.openWallet(), await purser.openWallet()];
  assert.equal((await purser.chat(one.token, {}, 'k')).status, 200);
  assert.equal((await purser.chat(two.token, { max_tokens: 5 }, 'k')).status, 200);
  assert.equal(purser.upstream.calls.length, 2);
});

test('ten that join a refused attempt are refused alike, with one call upstream', async (t) => {
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet();
  const held = gate(failure(400, { error: { message: 'bad schema' } }));
  purser.upstream.handle = held.handler;
  const first = purser.chat(token, {}, 'k');
  await purser.upstream.arrived(1);
  const joined = Array.from({ length: 10 }, () => purser.chat(token, {}, 'k'));
  await Promise.all(Array.from({ length: 10 }, () => purser.budget(token))); // The ten have arrived by now, or join the answer.
  held.open();
  const answers = await Promise.all([first, ...joined]);
  for (const answer of answers) assert.equal(answer.body.error.code, 'invalid_request', answer.text);
  assert.equal((await purser.budget(token)).held_usd, '0.00');
  assert.deepEqual(purser.problems(), []);
});

test('a client that goes away changes nothing: the call is finished, settled, and its answer replayed by key', async (t) => {
  const purser = await openTestServer(t);
  const { token, id } = await purser.openWallet();
  const held = gate(completion({ prompt_tokens: 1, completion_tokens: 1 }));
  purser.upstream.handle = held.handler;
  const controller = new AbortController();
  const body = { model: 'chat', messages: [{ role: 'user', content: 'hi' }], max_tokens: 100 };
  const gone = fetch(`${purser.url}/v1/chat/completions`, {
    method: 'POST',
    signal: controller.signal,
    headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json', 'idempotency-key': 'k' },
    body: JSON.stringify(body),
  });
  await purser.upstream.arrived(1);
  controller.abort();
  await assert.rejects(gone);
  held.open();
  await purser.app.inFlight.whenWalletIdle(id, 10);
  const replayed = await purser.chat(token, {}, 'k');
  assert.equal(replayed.status, 200);
  assert.equal(replayed.headers['idempotent-replayed'], 'true');
  assert.equal((await purser.budget(token)).used_usd, '0.000103');
  assert.equal(purser.upstream.calls.length, 1);
});

test('top up, retry, succeed: a refusal for money frees the key', async (t) => {
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet({ budget_cents: 100 });
  const held = gate();
  purser.upstream.handle = held.handler;
  const holding = purser.chat(token, { model: 'dear', max_tokens: 90 }, 'big'); // holds 0.90 of 1.00
  await purser.upstream.arrived(1);
  const refused = await purser.chat(token, { model: 'dear', max_tokens: 50 }, 'small');
  assert.equal(refused.status, 402);
  assert.equal(refused.body.error.code, 'funds_held');
  assert.ok(Number(refused.headers['retry-after']) > 0);
  assert.match(
    refused.body.error.message,
    /needs 0\.50 USD at most; the wallet has 0\.10 USD available and 0\.90 USD held.*max_tokens 10 it would fit/,
  );
  held.open();
  await holding;
  assert.equal((await purser.chat(token, { model: 'dear', max_tokens: 50 }, 'small')).status, 200);
});

test('the creation of a wallet is replayed while it is active, and its dead credential never', async (t) => {
  const purser = await openTestServer(t);
  const body = { name: 'w', budget_cents: 100 };
  const make = (over = {}) =>
    purser.ask('POST', '/v1/wallets', { token: purser.accountKey, key: 'w', body: { ...body, ...over } });
  const first = await make();
  const again = await make();
  assert.deepEqual([again.status, again.headers['idempotent-replayed'], again.text], [201, 'true', first.text]);
  assert.equal((await make({ budget_cents: 101 })).body.error.code, 'idempotency_conflict');
  const byOperator = await purser.ask('POST', '/v1/wallets', { token: purser.operatorKey, key: 'w', body });
  assert.equal(byOperator.text, first.text, 'the scope is the account, whichever key asks');

  await purser.ask('POST', `/v1/wallets/${first.body.id}/close`, { token: purser.accountKey });
  const dead = await make();
  assert.equal(dead.status, 409);
  assert.equal(dead.body.error.code, 'wallet_closed');
  assert.ok(dead.body.error.message.includes(first.body.id));
  assert.ok(!dead.text.includes('svc_agent_'));
});

test('a crash during the call leaves an uncertain operation, and the policy decides it after the restart', async (t) => {
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet();
  purser.upstream.handle = () => {};
  const cut = purser.chat(token, {}, 'k').catch(() => undefined);
  await purser.upstream.arrived(1);
  await purser.reopen(); // drains for a second, then cuts off
  await cut;
  const { holds } = await purser.budget(token);
  assert.equal(holds[0]?.state, 'uncertain');
  purser.upstream.handle = completion();
  assert.equal((await purser.chat(token, {}, 'k')).body.error.code, 'operation_uncertain');
  assert.equal(purser.upstream.calls.length, 1);
  purser.clock.advance(1000);
  await purser.app.reaper.runOnce();
  assert.equal((await purser.chat(token, {}, 'k')).body.error.code, 'answer_lost');
  assert.deepEqual(purser.problems(), []);
});

test('with the policy release an uncertain hold comes back and its key is free', async (t) => {
  const purser = await openTestServer(t);
  const settings = `${purser.directory}/purser.yaml`;
  writeFileSync(
    settings,
    readFileSync(settings, 'utf8').replace(
      'router:\n',
      'router:\n  uncertain: { after_seconds: 60, policy: release }\n',
    ),
  );
  await purser.reopen();
  const { token } = await purser.openWallet();
  purser.upstream.handle = failure(504);
  assert.equal((await purser.chat(token, {}, 'k')).body.error.code, 'operation_uncertain');
  purser.clock.advance(59);
  assert.equal((await purser.app.reaper.runOnce()).resolved, 0);
  purser.clock.advance(1);
  assert.equal((await purser.app.reaper.runOnce()).resolved, 1);
  purser.upstream.handle = completion();
  assert.equal((await purser.chat(token, {}, 'k')).status, 200);
  assert.deepEqual(purser.problems(), []);
});
