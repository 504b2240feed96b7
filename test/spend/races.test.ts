import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import test from 'node:test';
import { length } from '../helper/random.ts';
import { type Answer, openTestServer } from '../helper/server.ts';
import { completion, gate } from '../helper/upstream.ts';

const countBy = (answers: Answer[]) => {
  const counts: Record<string, number> = {};
  for (const it of answers) {
    const name = it.status < 300 ? String(it.status) : `${it.status} ${it.body.error.code}`;
    counts[name] = (counts[name] ?? 0) + 1;
  }
  return counts;
};

test('a thousand spenders on a wallet that affords exactly a hundred: a hundred succeed, and not a cent over', async (t) => {
  const purser = await openTestServer(t);
  const { id, token } = await purser.openWallet({ budget_cents: 100 }); // 100 × 0.01
  const answers = await Promise.all(Array.from({ length: 1000 }, () => purser.chat(token, { model: 'flat' })));
  const counts = countBy(answers);
  assert.equal(counts['200'], 100);
  assert.equal(purser.upstream.calls.length, 100);
  assert.equal((counts['402 insufficient_funds'] ?? 0) + (counts['402 funds_held'] ?? 0), 900);
  const wallet = purser.wallet(id);
  assert.deepEqual([wallet.spent, wallet.held], [1_000_000_000n, 0n]);
  assert.deepEqual(purser.problems(), []);
});

const RACED_KEYS = length(20, 200);

test(`the same key from 64 clients, ${RACED_KEYS} times over: one effect each`, async (t) => {
  const purser = await openTestServer(t);
  const { id, token } = await purser.openWallet({ budget_cents: 1000 });
  const keys = Array.from({ length: RACED_KEYS }, () => randomUUID());
  const clients = Array.from({ length: 64 }, async () => {
    const texts = new Map<string, string>();
    for (const key of keys) {
      const answer = await purser.chat(token, { model: 'flat' }, key);
      assert.equal(answer.status, 200, answer.text);
      texts.set(key, answer.text);
    }
    return texts;
  });
  const [first, ...others] = await Promise.all(clients);
  for (const other of others) assert.deepEqual(other, first);
  assert.equal(purser.upstream.calls.length, keys.length);
  assert.equal(purser.wallet(id).spent, BigInt(keys.length) * 10_000_000n);
  assert.deepEqual(purser.problems(), []);
});

test('the same wallet asked for by 64 clients at once is made once', async (t) => {
  const purser = await openTestServer(t, { creditCents: 1000 });
  const answers = await Promise.all(
    Array.from({ length: 64 }, () =>
      purser.ask('POST', '/v1/wallets', {
        token: purser.accountKey,
        key: 'one',
        body: { name: 'w', budget_cents: 600 },
      }),
    ),
  );
  assert.equal(new Set(answers.map((it) => it.text)).size, 1);
  assert.equal(answers.filter((it) => it.headers['idempotent-replayed'] !== 'true').length, 1);
  assert.equal((await purser.run('account.show', { id: purser.accountId })).reserved_cents, 600);
});

test('wallets raced for with credit for four: four are made and the account is never below zero', async (t) => {
  const purser = await openTestServer(t, { creditCents: 450 });
  const answers = await Promise.all(
    Array.from({ length: 40 }, () =>
      purser.ask('POST', '/v1/wallets', {
        token: purser.accountKey,
        key: randomUUID(),
        body: { name: 'w', budget_cents: 100 },
      }),
    ),
  );
  assert.deepEqual(countBy(answers), { '201': 4, '402 insufficient_funds': 36 });
  assert.equal((await purser.run('account.show', { id: purser.accountId })).available_cents, 50);
});

test('closing races spending: every charge is settled before, every other request is refused, and the sum is right', async (t) => {
  const purser = await openTestServer(t);
  for (let round = 0; round < 10; round++) {
    const { id, token } = await purser.openWallet({ budget_cents: 100 });
    const spenders = Array.from({ length: 20 }, () => purser.chat(token, { model: 'flat' }));
    const close = async () => {
      for (;;) {
        const answer = await purser.ask('POST', `/v1/wallets/${id}/close`, { token: purser.accountKey });
        if (answer.body.error?.code !== 'cleanup_pending') return answer;
      }
    };
    const [closed, ...answers] = await Promise.all([close(), ...spenders]);
    assert.equal(closed.status, 200, closed.text);
    const counts = countBy(answers);
    const paid = counts['200'] ?? 0;
    assert.equal(paid + (counts['409 wallet_closed'] ?? 0), 20, JSON.stringify(counts));
    const wallet = purser.wallet(id);
    assert.equal(wallet.status, 'closed');
    assert.equal(wallet.spent, BigInt(paid) * 10_000_000n);
    assert.equal(wallet.returnedCents, 100 - paid);
  }
  assert.deepEqual(purser.problems(), []);
});

test('a call in flight when its wallet expires is settled by its answer, and only then the wallet is closed', async (t) => {
  const purser = await openTestServer(t);
  const { id, token } = await purser.openWallet({ budget_cents: 100, expires_in_seconds: 60 });
  const held = gate(completion());
  purser.upstream.handle = held.handler;
  const running = purser.chat(token, { model: 'flat' }, 'k');
  await purser.upstream.arrived(1);
  purser.clock.advance(60);
  assert.equal((await purser.chat(token, { model: 'flat' })).body.error.code, 'wallet_expired');
  const reaped = await purser.app.reaper.runOnce();
  assert.deepEqual([reaped.expired, reaped.closed, reaped.pending], [1, 0, 1]);
  const pending = await purser.ask('GET', `/v1/wallets/${id}`, { token: purser.accountKey });
  assert.deepEqual([pending.body.status, pending.body.cleanup.pending], ['expired', true]);
  held.open();
  assert.equal((await running).status, 200);
  await purser.app.inFlight.whenWalletIdle(id, 10);
  await purser.app.reaper.runOnce();
  const closed = await purser.ask('GET', `/v1/wallets/${id}`, { token: purser.accountKey });
  assert.deepEqual([closed.body.status, closed.body.used_usd, closed.body.returned_cents], ['closed', '0.01', 99]);
  assert.equal((await purser.chat(token, { model: 'flat' }, 'k')).headers['idempotent-replayed'], 'true');
  assert.deepEqual(purser.problems(), []);
});

test('closing while a call hangs answers cleanup_pending, and is done once the call has ended', async (t) => {
  const purser = await openTestServer(t, { settings: { close_wait_seconds: 1 } });
  const { id, token } = await purser.openWallet({ budget_cents: 100 });
  const held = gate(completion());
  purser.upstream.handle = held.handler;
  const running = purser.chat(token, { model: 'flat' });
  await purser.upstream.arrived(1);
  const pending = await purser.ask('POST', '/v1/run/close', { token });
  assert.deepEqual([pending.status, pending.body.error.code], [409, 'cleanup_pending']);
  held.open();
  assert.equal((await running).status, 200);
  const closed = await purser.ask('POST', '/v1/run/close', { token });
  assert.deepEqual([closed.status, closed.body.status], [200, 'closed']);
  assert.equal(purser.wallet(id).closeReason, 'agent_request');
  const again = await purser.ask('POST', '/v1/run/close', { token });
  assert.equal(again.text, closed.text);
});
