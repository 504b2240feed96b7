import assert from 'node:assert/strict';
import test from 'node:test';
import { until } from '../helper/waiting.ts';
import { openLeaseServer } from './docker-leases.ts';

test('twenty containers that expire at once are gone, and the wallet of each closes to the cent', async (t) => {
  const purser = await openLeaseServer(t);
  if (!purser) return;
  const wallets = await Promise.all(Array.from({ length: 20 }, () => purser.openWallet({ expires_in_seconds: 1800 })));
  // A create answers in 30 s at the latest, which on a busy machine is not enough for all of them: it is asked for again by its key.
  await until('all are running', async () => {
    const made = await Promise.all(wallets.map(({ token }) => purser.lease(token, 'k')));
    await purser.app.reaper.runOnce();
    const now = await Promise.all(wallets.map(({ token }, i) => purser.status(token, made[i]?.body.id)));
    return now.every(({ status }) => status === 'running');
  });
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
