import assert from 'node:assert/strict';
import test from 'node:test';
import { findResource } from '../../src/ledger/resource.ts';
import { endSpending } from '../../src/wallet/close.ts';
import { childOf } from '../helper/tenants.ts';
import { LONG, openMemoryServer } from './leases.ts';

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
