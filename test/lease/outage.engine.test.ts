import assert from 'node:assert/strict';
import test from 'node:test';
import { IMAGE, openDocker } from '../compute/engines/docker.ts';
import { until } from '../helper/waiting.ts';
import { LONG, openWith } from './leases.ts';
import { events, statusOf } from './outage-shared.ts';

test('Docker is ended and comes back: the wallet that waited is closed within 20 s', async (t) => {
  const engine = await openDocker(t);
  if (!engine) return;
  const purser = await openWith(t, engine.socket, IMAGE, { settings: { close_wait_seconds: 1 } });
  const { id: walletId, token } = await purser.openWallet(LONG);
  const { id } = (await purser.lease(token)).body;
  engine.signal('SIGKILL');
  await until('the engine has gone', () =>
    engine.docker.ping().then(
      () => false,
      () => true,
    ),
  );
  const refused = await purser.ask('POST', '/v1/compute/exec', { token, body: { id, command: 'true' } });
  assert.deepEqual([refused.status, refused.body.error.code], [503, 'provider_unavailable']);
  const { offers } = (await purser.ask('GET', '/v1/compute/offers', { token })).body;
  assert.deepEqual(
    offers.map((it: { available: boolean }) => it.available),
    [false, false],
  );
  assert.equal((await purser.closeWallet(walletId)).body.error.code, 'cleanup_pending');
  for (let seconds = 0; seconds < 600; seconds += 5) {
    await purser.app.reaper.runOnce();
    purser.clock.advance(5);
  }
  assert.ok(events(purser, 'lease.trouble').length <= 3);
  await engine.revive();
  for (let seconds = 0; seconds < 20; seconds += 2) {
    await purser.app.reaper.runOnce();
    purser.clock.advance(2);
  }
  assert.equal(await statusOf(purser, walletId), 'closed');
  assert.equal(events(purser, 'lease.trouble_over').length, 1);
});
