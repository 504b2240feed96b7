import assert from 'node:assert/strict';
import test from 'node:test';
import { openLeaseServer } from '../lease/docker-leases.ts';
import { LONG } from '../lease/leases.ts';
import { deliver } from './fake-stripe.ts';
import { begin, figures, shopOf } from './paid.ts';
import { wallet } from './reversal-shared.ts';

test('a refund and a dispute leave a running lease alone: it runs, is extended, and ends with its wallet', async (t) => {
  const shop = await shopOf(t);
  const purser = await openLeaseServer(t, shop.options);
  if (!purser) return;
  const { stripe } = shop;
  const [refunded, disputed] = [await begin(purser), await begin(purser)];
  for (const id of [refunded, disputed]) await deliver(purser, stripe.pay(id));
  const { id: walletId, token } = await purser.openWallet(LONG);
  const { body: lease } = await purser.rent(token);
  assert.equal(lease.status, 'running', JSON.stringify(lease));

  assert.equal((await deliver(purser, stripe.refund(refunded))).status, 200);
  assert.equal((await deliver(purser, stripe.dispute(disputed))).status, 200);
  assert.deepEqual(await figures(purser), [0, LONG.budget_cents]);
  assert.equal((await wallet(purser)).status, 403);
  await purser.app.reaper.runOnce();
  assert.equal((await purser.machines()).length, 1);
  assert.equal((await purser.status(token, lease.id)).status, 'running');
  const extended = await purser.extend(token, lease.id, 600);
  assert.deepEqual([extended.status, extended.body.purchased_seconds], [200, 1200], extended.text);

  const closed = await purser.closeWallet(walletId);
  assert.equal(closed.status, 200);
  assert.deepEqual(await purser.machines(), []);
  assert.deepEqual(await figures(purser), [0, LONG.budget_cents - closed.body.returned_cents]);
});
