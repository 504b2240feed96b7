import assert from 'node:assert/strict';
import test from 'node:test';
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
