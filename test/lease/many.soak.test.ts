import assert from 'node:assert/strict';
import test from 'node:test';
import { until } from '../helper/waiting.ts';
import { openLeaseServer } from './docker-leases.ts';
import { leaseAtOnce } from './leases.ts';

test('twenty containers that expire at once are gone, and the wallet of each closes to the cent', async (t) => {
  const purser = await openLeaseServer(t);
  if (!purser) return;
  const wallets = await Promise.all(Array.from({ length: 20 }, () => purser.openWallet({ expires_in_seconds: 1800 })));
  const tokens = wallets.map(({ token }) => token);
  await leaseAtOnce(purser, tokens, () => purser.app.reaper.runOnce());
  assert.equal((await purser.machines()).length, 20);
  purser.clock.advance(600);
  await purser.app.reaper.runOnce();
  await until('all are gone', async () => {
    await purser.app.reaper.runOnce();
    return (await purser.machines()).length === 0;
  });
  const closed = await Promise.all(wallets.map(({ id }) => purser.closeWallet(id)));
  assert.deepEqual([...new Set(closed.map((it) => `${it.status} ${it.body.returned_cents}`))], ['200 999']);
  assert.deepEqual(purser.problems(), []);
});
