import assert from 'node:assert/strict';
import test from 'node:test';
import { Nanos } from '../../src/base/money.ts';
import { openWallet } from '../../src/ledger/open-wallet.ts';
import { END_COUNT_MAX, findResource } from '../../src/ledger/resource.ts';
import { endSpending } from '../../src/wallet/close.ts';
import { childOf } from '../helper/tenants.ts';
import { opening, walletOrder } from '../ledger/books.ts';
import { LONG, openMemoryServer } from './leases.ts';
import { openSnapshot } from './snapshot-shared.ts';

test('a parent sees the leases of its children, and closing it ends them', async (t) => {
  const purser = await openMemoryServer(t);
  const { id, token } = await purser.openWallet(LONG);
  const body = { name: 'child', budget_usd: '2', expires_in_seconds: 0 };
  const child = (await purser.ask('POST', '/v1/run/wallets', { token, key: 'c', body })).body;
  const lease = await purser.lease(child.agent_token);
  assert.equal(lease.status, 200, lease.text);
  const { resources } = (await purser.ask('GET', '/v1/compute/list', { token })).body;
  assert.deepEqual(
    resources.map((it: any) => [it.id, it.wallet_id]),
    [[lease.body.id, child.id]],
  );
  const closed = await purser.ask('POST', `/v1/wallets/${id}/close`, { token: purser.accountKey });
  assert.equal(closed.status, 200, closed.text);
  assert.equal(purser.memory.machines.size, 0);
  assert.equal(closed.body.used_usd, lease.body.charged_usd ?? closed.body.used_usd);
  assert.deepEqual(purser.problems(), []);
});

test('the leases of a child end when its parent begins to close, whoever continues that', async (t) => {
  const purser = await openMemoryServer(t);
  const { id, token } = await purser.openWallet(LONG);
  const child = await childOf(purser, token, '2');
  const leased = await purser.lease((await childOf(purser, child.token, '1')).token);
  const other = await purser.lease(token);
  const beside = await purser.lease((await purser.openWallet(LONG)).token);
  await purser.app.ledger.write(endSpending, { id: child.id, reason: 'agent_request', now: purser.app.clock.now() });
  const wanted = [leased, other, beside].map(({ body }) => findResource(purser.app.ledger.read, body.id)?.endWanted);
  assert.deepEqual(wanted, ['wallet_closed', null, null]);
  await purser.app.reaper.runOnce();
  assert.equal(purser.memory.machines.size, 2);
  assert.equal(purser.wallet(child.id).status, 'closed');
  assert.equal(purser.wallet(id).status, 'active');
  assert.deepEqual(purser.problems(), []);
});

for (const [by, finish] of [
  [
    'its close',
    async ({ purser, wallet }) =>
      void (await purser.ask('POST', `/v1/wallets/${wallet}/close`, { token: purser.accountKey })),
  ],
  ['the reaper', async ({ purser }) => void (await purser.app.reaper.runOnce())],
] as [string, (it: Awaited<ReturnType<typeof openSnapshot>>) => Promise<void>][])
  test(`the end of a tree with many snapshots is many writes, and its engine is asked for a page at a time, by ${by}`, async (t) => {
    const leased = await openSnapshot(t);
    const { purser, wallet } = leased;
    const { ledger, clock, reaper } = purser.app;
    await reaper.stop();
    const { masterKeyId } = purser.wallet(wallet);
    const child = () => walletOrder(purser.accountId, { parentId: wallet, budget: Nanos(1n), masterKeyId });
    for (let i = 0; i < 15; i++) await ledger.write(openWallet, opening(child(), clock.now()));
    // Each child has the 16 snapshots that a wallet may have.
    const change: Record<string, string> = { wallet_id: 'wal' };
    for (const it of ['id', 'tag', 'operation_id']) change[it] = `${it} || wal || i`;
    const columns = (ledger.client.pragma('table_info(snapshot)') as { name: string }[]).map(({ name }) => name);
    purser.tamper(`pragma foreign_keys = off; with recursive n(i) as (select 1 union all select i + 1 from n where i < 16)
      insert into snapshot select ${columns.map((it) => change[it] ?? it).join(', ')} from (select * from snapshot limit 1), n,
        (select id as wal from wallet where parent_id = '${wallet}')`);
    const count = (where: string) =>
      Number(ledger.client.prepare(`select count(*) from snapshot where ${where}`).pluck().get());
    assert.equal(count('ended_at is null'), 15 * 16 + 1);
    let [asked, most] = [0, 0];
    purser.memory.before['snapshots.find'] = async () => {
      most = Math.max(most, ++asked);
      await new Promise((resolve) => setImmediate(resolve));
      asked--;
    };
    await ledger.write(endSpending, { id: wallet, reason: 'agent_request', now: clock.now() });
    assert.equal(count('end_wanted is not null'), END_COUNT_MAX, 'in one write');
    for (let i = 0; i < 9 && purser.wallet(wallet).status !== 'closed'; i++) await finish(leased);
    assert.deepEqual([purser.wallet(wallet).status, count('ended_at is null')], ['closed', 0]);
    assert(most > 1 && most <= END_COUNT_MAX, `${most} at once`);
  });
