import assert from 'node:assert/strict';
import test from 'node:test';
import { length, randomFrom, SEED } from '../helper/random.ts';
import { openMemoryServer } from './leases.ts';
import { pauses } from './pause-shared.ts';

const WALK_COUNT = length(3, 20);
const STEP_COUNT = 60;
/** 0.36 USD an hour, in nano-dollars a second. */
const NANOS_PER_SECOND = 100_000;

for (let walk = 0; walk < WALK_COUNT; walk++)
  test(`a lease runs for what was paid, however it is paused, resumed and extended (PURSER_TEST_SEED=${SEED + walk})`, async (t) => {
    const random = randomFrom(SEED + walk);
    const below = (count: number) => Math.floor(random() * count);
    const limits = { wallet_requests_per_minute: 0, account_requests_per_minute: 0, released_per_minute: 0 };
    const purser = pauses(await openMemoryServer(t, { settings: { limits } }));
    const { clock, memory } = purser;
    const { token } = await purser.openWallet({ budget_cents: 1000, expires_in_seconds: 500_000 });
    const { id } = (await purser.rent(token)).body;
    const machine = () => memory.machines.get('m1');
    let [ran, bought, isPaused] = [0, 600, false];
    const pass = (seconds: number) => {
      clock.advance(seconds);
      if (!isPaused) ran += seconds;
    };
    const left = () => bought - ran;
    for (let step = 0; step < STEP_COUNT && left() > 0; step++) {
      const what = below(10);
      if (what < 3) pass(isPaused ? below(2000) : below(Math.min(120, left())));
      else if (what < 5) {
        const { status } = await purser.pause(token, id);
        assert.equal(status, 200);
        isPaused = true;
      } else if (what < 7) {
        assert.equal((await purser.resume(token, id)).status, 200);
        isPaused = false;
      } else if (what < 8 && bought < 3000) {
        const { status } = await purser.extend(token, id, 60);
        assert.equal(status, isPaused ? 409 : 200);
        if (status === 200) bought += 60;
      } else await purser.app.reaper.runOnce();
      const it = await purser.status(token, id);
      const now = Math.floor(clock.wall() / 1000);
      assert.equal(it.status, isPaused ? 'paused' : 'running');
      assert.equal(it.seconds_left ?? it.expires_at - now, left());
      assert.equal(machine()?.deadline, it.expires_at);
      assert.equal(machine()?.paused ?? false, isPaused);
      assert.equal(BigInt(Math.round(Number(it.charged_usd) * 1e9)), BigInt(bought * NANOS_PER_SECOND));
    }
    if (isPaused) await purser.resume(token, id);
    isPaused = false;
    pass(left() - 1);
    await purser.app.reaper.runOnce();
    assert.equal((await purser.status(token, id)).status, 'running');
    pass(1);
    await purser.app.reaper.runOnce();
    const ended = await purser.status(token, id);
    assert.deepEqual(
      [ended.end_reason, ended.charged_usd],
      ['lease_expired', ((bought * NANOS_PER_SECOND) / 1e9).toString()],
    );
    assert.equal(ran, bought);
    assert.deepEqual(purser.problems(), []);
  });
