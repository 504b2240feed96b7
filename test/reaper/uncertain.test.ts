import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { parse, stringify } from 'yaml';
import { chatWrites } from '../../src/chat/terms.ts';
import { openTestServer, type TestServer } from '../helper/server.ts';
import { completion, gate, reset } from '../helper/upstream.ts';

const AFTER_SECONDS = 900;

/** A purser whose reaper runs only when the test says so, with `policy` for what is uncertain. */
async function openStill(t: Parameters<typeof openTestServer>[0], policy: 'charge' | 'release'): Promise<TestServer> {
  const purser = await openTestServer(t, {
    unknownCountMax: Infinity,
    settings: { close_wait_seconds: 0, drain_seconds: 0 },
  });
  const file = join(purser.directory, 'purser.yaml');
  const settings = parse(readFileSync(file, 'utf8'));
  settings.router.uncertain = { after_seconds: AFTER_SECONDS, policy };
  writeFileSync(file, stringify(settings));
  await purser.reopen();
  await purser.app.reaper.stop();
  return purser;
}

/** A wallet with a chat of one cent whose answer was lost, and that chat's key. */
async function loseAnswer(purser: TestServer, body: Record<string, unknown> = {}) {
  const wallet = await purser.openWallet({ budget_cents: 100, expires_in_seconds: 7200, ...body });
  const key = randomUUID();
  const again = () => purser.chat(wallet.token, { model: 'flat' }, key);
  purser.upstream.handle = reset;
  assert.equal((await again()).body.error.code, 'operation_uncertain');
  purser.upstream.handle = completion();
  const budget = async () => {
    const { used_usd, held_usd, available_usd, holds } = await purser.budget(wallet.token);
    return [used_usd, held_usd, available_usd, holds.length];
  };
  return { ...wallet, again, budget };
}

test('what is uncertain keeps its hold until its policy has come, and not a second longer', async (t) => {
  const purser = await openStill(t, 'charge');
  const { budget, again } = await loseAnswer(purser);
  purser.clock.advance(AFTER_SECONDS - 1);
  assert.equal((await purser.app.reaper.runOnce()).resolved, 0);
  assert.deepEqual(await budget(), ['0.00', '0.01', '0.99', 1]);
  assert.equal((await again()).body.error.code, 'operation_uncertain');
  assert.equal(purser.upstream.calls.length, 1, 'the retry asks nobody');
  purser.clock.advance(1);
  assert.equal((await purser.app.reaper.runOnce()).resolved, 1);
  assert.deepEqual(await budget(), ['0.01', '0.00', '0.99', 0]);
  assert.equal((await purser.app.reaper.runOnce()).resolved, 0);
});

test('after the policy charge the retry hears that the answer is lost and what was paid, and a new key is safe', async (t) => {
  const purser = await openStill(t, 'charge');
  const { token, again } = await loseAnswer(purser);
  purser.clock.advance(AFTER_SECONDS);
  await purser.app.reaper.runOnce();
  const answer = await again();
  assert.deepEqual([answer.status, answer.body.error.code], [409, 'answer_lost']);
  assert.match(answer.body.error.message, /0\.01 USD/);
  assert.equal(purser.upstream.calls.length, 1);
  assert.equal((await purser.chat(token, { model: 'flat' })).status, 200);
  assert.deepEqual(purser.problems(), []);
});

test('after the policy release the money is back and the key is free', async (t) => {
  const purser = await openStill(t, 'release');
  const { again, budget } = await loseAnswer(purser);
  purser.clock.advance(AFTER_SECONDS);
  assert.equal((await purser.app.reaper.runOnce()).resolved, 1);
  assert.deepEqual(await budget(), ['0.00', '0.00', '1.00', 0]);
  const answer = await again();
  assert.equal(answer.status, 200);
  assert.equal(answer.headers['idempotent-replayed'], undefined, 'a new attempt');
  assert.deepEqual(await budget(), ['0.01', '0.00', '0.99', 0]);
  assert.equal(purser.upstream.calls.length, 2);
  assert.deepEqual(purser.problems(), []);
});

for (const [policy, used] of [
  ['charge', 1],
  ['release', 0],
] as const)
  test(`closing a wallet applies the policy ${policy} at once, since no evidence will come`, async (t) => {
    const purser = await openStill(t, policy);
    const { id, again } = await loseAnswer(purser);
    const closed = await purser.ask('POST', `/v1/wallets/${id}/close`, { token: purser.accountKey });
    assert.equal(closed.status, 200);
    assert.deepEqual(
      [closed.body.status, closed.body.used_cents, closed.body.returned_cents],
      ['closed', used, 100 - used],
    );
    assert.equal((await again()).body.error.code, policy === 'charge' ? 'answer_lost' : 'wallet_closed');
    assert.equal(purser.upstream.calls.length, 1);
    assert.deepEqual(purser.problems(), []);
  });

for (const [policy, used] of [
  ['charge', 1],
  ['release', 0],
] as const)
  test(`expiry applies the policy ${policy} at once`, async (t) => {
    const purser = await openStill(t, policy);
    const { id } = await loseAnswer(purser, { expires_in_seconds: 60 });
    purser.clock.advance(60);
    assert.equal((await purser.app.reaper.runOnce()).closed, 1);
    const { body } = await purser.ask('GET', `/v1/wallets/${id}`, { token: purser.accountKey });
    assert.deepEqual([body.status, body.used_cents, body.returned_cents], ['closed', used, 100 - used]);
    assert.deepEqual(purser.problems(), []);
  });

test('the operator decides before the policy does, and that is final', async (t) => {
  const purser = await openStill(t, 'charge');
  const { id, budget } = await loseAnswer(purser);
  const [operation] = (await purser.run('operation.list', { uncertain: true })).operations;
  const order = { id: operation?.id as string, decision: 'release' as const, reason: 'the upstream has no such call' };
  await purser.run('operation.resolve', order);
  assert.deepEqual(await budget(), ['0.00', '0.00', '1.00', 0]);
  await assert.rejects(purser.run('operation.resolve', { ...order, decision: 'charge' }), { code: 'conflict' });
  purser.clock.advance(AFTER_SECONDS);
  assert.equal((await purser.app.reaper.runOnce()).resolved, 0);
  await purser.ask('POST', `/v1/wallets/${id}/close`, { token: purser.accountKey });
  assert.equal(purser.wallet(id).returnedCents, 100);
});

test('three hundred uncertain chats are decided in one pass, and one that cannot be hides no other', async (t) => {
  const purser = await openStill(t, 'charge');
  const { token } = await purser.openWallet({ budget_cents: 1000, expires_in_seconds: 7200 });
  purser.upstream.handle = reset;
  await Promise.all(Array.from({ length: 300 }, () => purser.chat(token, { model: 'flat' })));
  const { client } = purser.app.ledger;
  const first = client.prepare(`select id from operation order by uncertain_at, id limit 1`).pluck().get();
  purser.tamper(
    `create trigger jam before update on operation when old.id = '${first}' begin select raise(abort, 'jammed'); end`,
  );
  purser.clock.advance(AFTER_SECONDS);
  const pass = await purser.app.reaper.runOnce();
  assert.deepEqual([pass.resolved, pass.failed], [299, 1]);
  purser.tamper('drop trigger jam');
  assert.equal((await purser.app.reaper.runOnce()).resolved, 1);
  assert.equal((await purser.budget(token)).used_usd, '3.00');
  assert.deepEqual(purser.problems(), []);
});

/** A chat that waits at the upstream, and is called uncertain in the middle, as a slower road might leave it. */
async function openDriven(purser: TestServer) {
  const wallet = await purser.openWallet({ budget_cents: 100, expires_in_seconds: 1000 });
  const { handler, open } = gate();
  purser.upstream.handle = handler;
  const answer = purser.chat(wallet.token, { model: 'flat' });
  await purser.upstream.arrived(1);
  const id = String(purser.upstream.calls[0]?.headers['idempotency-key']);
  const doubt = { kind: 'unknown', reason: 'a test' } as const;
  await purser.app.ledger.write(chatWrites.settle, { id, outcome: doubt, now: purser.app.clock.now() });
  const state = async () => (await purser.run('operation.show', { id })).state;
  return { wallet, id, answer, open, state };
}

test('what this process is driving is resolved neither by the reaper, nor by a close, nor by the operator', async (t) => {
  const purser = await openStill(t, 'release');
  const { wallet, id, answer, open, state } = await openDriven(purser);
  purser.clock.advance(AFTER_SECONDS);
  assert.equal((await purser.app.reaper.runOnce()).resolved, 0);
  assert.equal(await state(), 'uncertain');

  const order = { id, decision: 'release' as const, reason: 'impatience' };
  await assert.rejects(purser.run('operation.resolve', order), { code: 'conflict', message: /still running/ });

  const close = () => purser.ask('POST', `/v1/wallets/${wallet.id}/close`, { token: purser.accountKey });
  const pending = await close();
  assert.deepEqual([pending.status, pending.body.error.code], [409, 'cleanup_pending']);
  assert(Number(pending.headers['retry-after']) >= 1);
  const byAgent = await purser.ask('POST', '/v1/run/close', { token: wallet.token });
  assert.deepEqual([byAgent.status, byAgent.body.error.code], [409, 'cleanup_pending']);
  await assert.rejects(purser.run('wallet.close', { id: wallet.id }), { code: 'cleanup_pending' });
  purser.clock.advance(1000);
  const pass = await purser.app.reaper.runOnce();
  assert.deepEqual([pass.resolved, pass.closed, pass.pending], [0, 0, 1]);
  assert.equal(await state(), 'uncertain');

  open();
  assert.equal((await answer).status, 200, 'its own answer decides it');
  assert.equal(await state(), 'settled');
  assert.equal((await close()).body.used_cents, 1);
  assert.deepEqual(purser.problems(), []);
});

test('what is merely in flight is left alone in the same way, however long it takes', async (t) => {
  const purser = await openStill(t, 'release');
  const { token } = await purser.openWallet({ expires_in_seconds: 0 });
  const { handler, open } = gate();
  purser.upstream.handle = handler;
  const answer = purser.chat(token, { model: 'flat' });
  await purser.upstream.arrived(1);
  purser.clock.advance(10 * AFTER_SECONDS);
  assert.equal((await purser.app.reaper.runOnce()).resolved, 0);
  assert.equal((await purser.budget(token)).holds[0].state, 'reserved');
  open();
  assert.equal((await answer).status, 200);
  assert.equal((await purser.budget(token)).used_usd, '0.01');
});

test('what a crash left in flight waits for its policy like any other', async (t) => {
  const purser = await openStill(t, 'charge');
  const { token } = await purser.openWallet({ budget_cents: 100, expires_in_seconds: 0 });
  purser.upstream.handle = () => {};
  const answer = purser.chat(token, { model: 'flat' });
  await purser.upstream.arrived(1);
  await purser.reopen();
  await purser.app.reaper.stop();
  assert.equal((await answer).body.error.code, 'operation_uncertain');
  purser.clock.advance(AFTER_SECONDS - 1);
  assert.equal((await purser.app.reaper.runOnce()).resolved, 0);
  purser.clock.advance(1);
  assert.equal((await purser.app.reaper.runOnce()).resolved, 1);
  assert.equal((await purser.budget(token)).used_usd, '0.01');
});
