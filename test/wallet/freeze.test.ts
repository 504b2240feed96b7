import assert from 'node:assert/strict';
import test from 'node:test';
import { endSpending } from '../../src/wallet/close.ts';
import { openTestServer } from '../helper/server.ts';
import { childOf } from '../helper/tenants.ts';
import { post, recordOf } from './moves-shared.ts';

test('a frozen wallet takes no holds, and all below it none; reads go on', async (t) => {
  const purser = await openTestServer(t);
  const { id, token } = await purser.openWallet();
  const child = (await purser.ask('POST', '/v1/run/wallets', { token, key: 'c', body: { name: 'c', budget_usd: '1' } }))
    .body;
  const frozen = await post(purser, `/v1/wallets/${id}/freeze`, { reason: 'it loops' });
  assert.equal(frozen.status, 200, frozen.text);
  assert.equal(frozen.body.frozen_at, Math.floor(purser.clock.wall() / 1000));
  for (const it of [token, child.agent_token]) {
    const refused = await purser.chat(it);
    assert.deepEqual([refused.status, refused.body.error.code], [403, 'wallet_frozen']);
    assert.match(refused.body.error.message, /it loops/);
    const budget = await purser.ask('GET', '/v1/budget', { token: it });
    assert.deepEqual([budget.status, budget.body.frozen_at], [200, frozen.body.frozen_at]);
  }
  const recordOf = async () => (await purser.ask('GET', `/v1/wallets/${child.id}`, { token: purser.accountKey })).body;
  const { frozen_at, freeze_reason } = await recordOf();
  assert.deepEqual([frozen_at, freeze_reason], [frozen.body.frozen_at, 'it loops'], 'of the nearest that is frozen');
  purser.clock.advance(5);
  const own = (await post(purser, `/v1/wallets/${child.id}/freeze`, { reason: 'it waits' })).body;
  assert.deepEqual([own.frozen_at, own.freeze_reason], [frozen_at + 5, 'it waits'], 'its own comes first');
  assert.equal((await post(purser, `/v1/wallets/${child.id}/unfreeze`, {})).body.frozen_at, frozen_at);
  assert.equal((await post(purser, `/v1/wallets/${id}/unfreeze`, {})).body.frozen_at, null);
  assert.equal((await recordOf()).frozen_at, null);
  assert.equal((await purser.chat(child.agent_token)).status, 200);
  const closed = (await post(purser, `/v1/wallets/${child.id}/close`, {})).body;
  await post(purser, `/v1/wallets/${id}/freeze`, {});
  assert.deepEqual(await recordOf(), closed, 'what a wallet was closed with is final');
  assert.deepEqual(purser.problems(), []);
});

test('freezing again changes the reason, and nothing else', async (t) => {
  const purser = await openTestServer(t);
  const { id } = await purser.openWallet();
  const since = (await purser.run('wallet.freeze', { id, reason: 'it loops' })).frozen_at;
  purser.clock.advance(60);
  const { frozen_at, freeze_reason } = await purser.run('wallet.freeze', { id, reason: 'an audit' });
  assert.deepEqual([frozen_at, freeze_reason], [since, 'an audit']);
  assert.equal((await purser.run('wallet.freeze', { id })).freeze_reason, 'an audit');
  const all = (await purser.run('freeze', { reason: 'one' })).frozen_at;
  purser.clock.advance(60);
  assert.equal((await purser.run('freeze', { reason: 'two' })).frozen_at, all);
  assert.match((await purser.ask('GET', '/readyz', {})).body.frozen, /\(two\)/);
  assert.equal((await purser.run('wallet.unfreeze', { id })).freeze_reason, null);
});

test('unfreezing an account reaches the children that were frozen by themselves', async (t) => {
  const purser = await openTestServer(t);
  const { id, token } = await purser.openWallet();
  const asked = { token, key: 'c', body: { name: 'c', budget_usd: '1' } };
  const child = (await purser.ask('POST', '/v1/run/wallets', asked)).body;
  await purser.run('wallet.freeze', { id: child.id, reason: 'it loops' });
  const { wallets } = await purser.run('wallet.unfreeze-account', { account: purser.accountId });
  assert.deepEqual(
    wallets.map((it) => [it.id, it.frozen_at]),
    [[child.id, null]],
  );
  await purser.run('wallet.freeze', { id });
  await purser.run('wallet.unfreeze-account', { account: purser.accountId });
  assert.equal((await purser.chat(child.agent_token)).status, 200);
});

test('freezing an account freezes the others when one of its wallets ends at that moment', async (t) => {
  const purser = await openTestServer(t, { creditCents: 5000 });
  const [ends, stays] = [
    await purser.openWallet({ budget_cents: 100 }),
    await purser.openWallet({ budget_cents: 100 }),
  ];
  const [, frozen] = await Promise.all([
    purser.run('wallet.close', { id: ends.id }),
    purser.run('wallet.freeze-account', { account: purser.accountId }),
  ]);
  const ids = (frozen as { wallets: { id: string }[] }).wallets.map((it) => it.id);
  assert.deepEqual(ids, [stays.id]);
  assert.notEqual((await recordOf(purser, stays.id)).frozen_at, null);
});

test('what is frozen is said by readyz, the doctor’s books, the log of every start and the metrics', async (t) => {
  const purser = await openTestServer(t);
  const { id } = await purser.openWallet();
  const ready = async () => (await purser.ask('GET', '/readyz', {})).body;
  assert.equal((await ready()).frozen, undefined);
  await purser.run('wallet.freeze', { id, reason: 'it loops' });
  assert.deepEqual(await ready(), { ready: true, frozen: '1 wallet is frozen: no new holds' });
  await purser.run('freeze', { reason: 'an audit' });
  assert.match((await ready()).frozen, /^the installation is frozen since .*Z \(an audit\), 1 wallet is/);
  await purser.reopen();
  const line = purser.log.map((it) => JSON.parse(it)).find((it) => it.event === 'frozen');
  assert.match(line.reason, /an audit/);
  const metrics = await purser.app.events.registry.metrics();
  assert.match(metrics, /^purser_frozen_installations 1$/m);
  assert.match(metrics, /^purser_frozen_wallets 1$/m);
  await purser.run('unfreeze', {});
  await purser.run('wallet.unfreeze', { id });
  assert.deepEqual(await ready(), { ready: true });
});

test('what is frozen and has ended, by itself or with one above it, is not counted: no unfreeze brings it back', async (t) => {
  const purser = await openTestServer(t);
  await purser.app.reaper.stop();
  const { id, token } = await purser.openWallet({ expires_in_seconds: 0 });
  const child = await childOf(purser, token, '1');
  const short = await purser.openWallet({ expires_in_seconds: 60 });
  for (const it of [child, short]) await purser.run('wallet.freeze', { id: it.id });
  const shown = async () => {
    const { frozen } = await purser.run('status', {});
    const ready = await purser.ask('GET', '/readyz', {});
    const [, gauge] = /^purser_frozen_wallets (\d+)$/m.exec(await purser.app.events.registry.metrics()) ?? [];
    return [frozen.wallets, frozen.since.wallets !== null, frozen.sentence, ready.body.frozen, Number(gauge)];
  };
  const [two, one] = ['2 wallets are frozen: no new holds', '1 wallet is frozen: no new holds'];
  assert.deepEqual(await shown(), [2, true, two, two, 2]);
  purser.clock.advance(100);
  assert.deepEqual(await shown(), [1, true, one, one, 1]);
  await purser.app.ledger.write(endSpending, { id, reason: 'account_request', now: purser.app.clock.now() });
  assert.deepEqual(await shown(), [0, false, null, undefined, 0]);
  assert.deepEqual(await purser.run('wallet.unfreeze-account', { account: purser.accountId }), { wallets: [] });
});
