import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import test from 'node:test';
import fc from 'fast-check';
import { createClock } from '../src/clock.ts';
import { type HandClock, handClock, openTestServer } from './helper/server.ts';

/** A clock on a time source in hand, started on a whole second, with what it warned of. */
function open(lastJournalAt = (_start: number) => 0) {
  const time = handClock();
  time.leap(1 - (time.wall() % 1000) / 1000); // A whole second: what is asserted below is then exact.
  const start = time.wall() / 1000;
  const warnings: string[] = [];
  const log = { warn: (facts: object) => warnings.push((facts as { event: string }).event) };
  const clock = createClock(time, lastJournalAt(start), log as never);
  /** What the clock says, beside what it would say if nobody had touched the wall clock. */
  const state = () => [clock.now() - start, clock.holdsBlocked() !== undefined, clock.expiryBlocked()];
  return { time, clock, start, warnings, state };
}

test('it starts at the wall clock when the journal is older', () => {
  const { clock, start } = open((it) => it - 86_400);
  assert.equal(clock.now(), start);
  assert.equal(clock.holdsBlocked(), undefined);
});

test('it starts at the last journal entry when the wall clock is behind it, and holds wait until it has caught up', () => {
  const { clock, start, time, warnings } = open((it) => it + 3600);
  assert.equal(clock.now(), start + 3600);
  assert.match(clock.holdsBlocked() ?? '', /behind the time of the last journal entry/);
  assert.equal(clock.expiryBlocked(), false, 'what is due is still ended');
  assert.deepEqual(warnings, ['clock.backward']);
  time.advance(3599);
  assert(clock.holdsBlocked());
  time.advance(1);
  assert.equal(clock.holdsBlocked(), undefined);
});

test('a wall clock that is a minute behind the journal stops nothing', () => {
  const { clock, start } = open((it) => it + 60);
  assert.equal(clock.now(), start + 60);
  assert.equal(clock.holdsBlocked(), undefined);
});

test('time passes with the monotonic clock, in whole seconds', () => {
  const { time, state } = open();
  time.advance(0.999);
  assert.deepEqual(state(), [0, false, false]);
  time.advance(0.001);
  assert.deepEqual(state(), [1, false, false]);
  time.advance(86_400 * 365);
  assert.deepEqual(state(), [1 + 86_400 * 365, false, false]);
});

test('a small step forward is followed at once, a small step back is not', () => {
  const { time, state, warnings } = open();
  time.leap(300);
  assert.deepEqual(state(), [300, false, false]);
  time.leap(-60);
  assert.deepEqual(state(), [300, false, false]);
  time.advance(10);
  assert.deepEqual(state(), [310, false, false]);
  time.leap(60);
  assert.deepEqual(state(), [310, false, false]);
  time.leap(5);
  assert.deepEqual(state(), [315, false, false]);
  assert.deepEqual(warnings, []);
});

test('a leap forward of more than five minutes is not believed for five minutes, then it is', () => {
  const { time, state, warnings } = open();
  time.leap(301);
  assert.deepEqual(state(), [0, true, true]);
  time.advance(299);
  assert.deepEqual(state(), [299, true, true]);
  time.advance(0.999);
  assert.deepEqual(state(), [299, true, true]);
  time.advance(0.001);
  assert.deepEqual(state(), [601, false, false]);
  assert.deepEqual(warnings, ['clock.forward']);
});

test('a leap of ten years is held off in the same way', () => {
  const { time, clock, start, state } = open();
  const years = 10 * 365 * 86_400;
  time.leap(years);
  assert.deepEqual(state(), [0, true, true]);
  assert.match(clock.holdsBlocked() ?? '', /jumped forward/);
  time.advance(300);
  assert.equal(clock.now(), start + years + 300);
});

test('a leap that is taken back within five minutes leaves no trace', () => {
  const { time, state } = open();
  time.leap(86_400);
  assert.deepEqual(state(), [0, true, true]);
  time.advance(299);
  time.leap(-86_400);
  assert.deepEqual(state(), [299, false, false]);
  time.advance(86_400);
  assert.deepEqual(state(), [86_699, false, false]);
});

test('a second leap is given its own five minutes', () => {
  const { time, state } = open();
  time.leap(1000);
  state();
  time.advance(200);
  time.leap(-1000);
  state();
  time.leap(1000);
  state();
  time.advance(299);
  assert.deepEqual(state(), [499, true, true]);
  time.advance(1);
  assert.deepEqual(state(), [1500, false, false]);
});

test('a step back of more than a minute stops holds until the wall clock has been there before', () => {
  const { time, state, warnings } = open();
  time.leap(-61);
  assert.deepEqual(state(), [0, true, false]);
  time.advance(60);
  assert.deepEqual(state(), [60, true, false]);
  time.advance(1);
  assert.deepEqual(state(), [61, false, false]);
  time.advance(86_400);
  assert.deepEqual(state(), [86_461, false, false]);
  assert.deepEqual(warnings, ['clock.backward']);
});

test('a step back that is taken back stops nothing any more', () => {
  const { time, state } = open();
  time.leap(-86_400);
  assert.deepEqual(state(), [0, true, false]);
  time.advance(10);
  time.leap(86_400);
  assert.deepEqual(state(), [10, false, false]);
});

test('a second step back, after the first has passed, stops holds again', () => {
  const { time, state, warnings } = open();
  time.leap(-100);
  state();
  time.advance(100);
  assert.deepEqual(state(), [100, false, false]);
  time.leap(-100);
  assert.deepEqual(state(), [100, true, false]);
  time.advance(200);
  assert.deepEqual(state(), [300, false, false]);
  assert.deepEqual(warnings, ['clock.backward', 'clock.backward']);
});

test('a step back in the middle of a leap forward is neither', () => {
  const { time, state } = open();
  time.leap(1000);
  state();
  time.leap(-1000 - 3600);
  assert.deepEqual(state(), [0, true, false]);
  time.leap(3600);
  assert.deepEqual(state(), [0, false, false]);
});

test('whatever is done to the wall clock, time never goes back and never stands still', () => {
  const steps = fc.array(
    fc.record({ leap: fc.integer({ min: -1_000_000, max: 1_000_000 }), advance: fc.integer({ min: 0, max: 100_000 }) }),
    { maxLength: 30 },
  );
  fc.assert(
    fc.property(steps, (list) => {
      const { time, clock } = open();
      let before = clock.now();
      for (const { leap, advance } of list) {
        time.leap(leap / 100);
        time.advance(advance / 100);
        const now = clock.now();
        assert(now >= before + Math.floor(advance / 100) - 1, `${now} after ${before} and ${advance / 100} s`);
        assert(now >= before);
        before = now;
      }
    }),
  );
});

test('after any upset, holds are possible again once the wall clock is left alone for as long as the upset was', () => {
  const leaps = fc.array(fc.integer({ min: -10_000, max: 10_000 }), { minLength: 1, maxLength: 10 });
  fc.assert(
    fc.property(leaps, (list) => {
      const { time, clock } = open();
      for (const leap of list) {
        time.leap(leap);
        clock.holdsBlocked();
      }
      time.advance(list.reduce((total, leap) => total + Math.abs(leap), 300));
      assert.equal(clock.holdsBlocked(), undefined);
    }),
  );
});

/** What a request, the readiness and the reaper make of the clock as it is. */
async function serving(house: Awaited<ReturnType<typeof openTestServer>>, token: string) {
  const body = { name: 'new', budget_cents: 100 };
  const opened = await house.ask('POST', '/v1/wallets', { token: house.accountKey, key: randomUUID(), body });
  const chat = await house.chat(token);
  const ready = await house.ask('GET', '/readyz');
  return [opened.status, opened.body.error?.code, chat.status, chat.body.error?.code, ready.status];
}
const GREEN = [201, undefined, 200, undefined, 200];
const RED = [503, 'read_only', 503, 'read_only', 503];

test('while a leap forward is doubted nothing new is held, nothing expires, and readyz is red', async (t) => {
  const house = await openTestServer(t);
  await house.app.reaper.stop();
  const { id, token } = await house.openWallet({ expires_in_seconds: 3600 });
  assert.deepEqual(await serving(house, token), GREEN);

  house.clock.leap(7200);
  assert.deepEqual(await serving(house, token), RED);
  assert.equal((await house.app.reaper.runOnce()).expired, 0);
  assert.equal((await house.budget(token)).status, 'active');
  assert.equal((await house.ask('GET', '/healthz')).status, 200, 'the process is well');

  house.clock.advance(299);
  assert.deepEqual(await serving(house, token), RED);
  assert.equal((await house.app.reaper.runOnce()).expired, 0);
  house.clock.advance(1);
  assert.equal((await house.ask('GET', '/readyz')).status, 200);
  assert.equal((await house.chat(token)).body.error.code, 'wallet_expired');
  assert.equal((await house.app.reaper.runOnce()).expired, 1);
  assert.equal(house.wallet(id).status, 'closed');
  assert.deepEqual(house.problems(), []);
});

test('a leap forward that is taken back ends no wallet', async (t) => {
  const house = await openTestServer(t);
  await house.app.reaper.stop();
  const { token } = await house.openWallet({ expires_in_seconds: 3600 });
  house.clock.leap(86_400);
  assert.deepEqual(await serving(house, token), RED);
  house.clock.advance(200);
  house.clock.leap(-86_400);
  assert.deepEqual(await serving(house, token), GREEN);
  house.clock.advance(300);
  assert.deepEqual(await serving(house, token), GREEN);
  assert.deepEqual(await house.app.reaper.runOnce().then(({ expired, closed }) => [expired, closed]), [0, 0]);
});

test('a wallet whose own time comes while a leap is doubted refuses spending, and is closed afterwards', async (t) => {
  const house = await openTestServer(t);
  await house.app.reaper.stop();
  const { id, token } = await house.openWallet({ expires_in_seconds: 60 });
  house.clock.leap(86_400);
  await house.ask('GET', '/readyz');
  house.clock.advance(60);
  assert.equal((await house.budget(token)).status, 'expired');
  await house.app.reaper.runOnce();
  assert.equal(house.wallet(id).status, 'active', 'the reaper waits');
  house.clock.advance(240);
  await house.app.reaper.runOnce();
  assert.equal(house.wallet(id).status, 'closed');
});

test('while the wall clock is set back nothing new is held, and expiry goes on by the time that has passed', async (t) => {
  const house = await openTestServer(t);
  await house.app.reaper.stop();
  const { token } = await house.openWallet({ expires_in_seconds: 86_400 });
  const short = await house.openWallet({ expires_in_seconds: 60 });
  house.clock.leap(-3600);
  assert.deepEqual(await serving(house, token), RED);
  house.clock.advance(60);
  assert.equal((await house.app.reaper.runOnce()).expired, 1);
  assert.equal(house.wallet(short.id).status, 'closed');
  house.clock.advance(3540);
  assert.deepEqual(await serving(house, token), GREEN);
  assert.deepEqual(house.problems(), [], 'the recorded time never goes back');
});

test('what was settled while the clock is doubted is settled: only new holds wait', async (t) => {
  const house = await openTestServer(t);
  const { id, token } = await house.openWallet();
  const key = randomUUID();
  const first = await house.chat(token, {}, key);
  house.clock.leap(7200);
  const again = await house.chat(token, {}, key);
  assert.equal(again.status, 200);
  assert.equal(again.text, first.text);
  const closed = await house.ask('POST', `/v1/wallets/${id}/close`, { token: house.accountKey });
  assert.equal(closed.status, 200);
  assert.equal(closed.body.close_reason, 'account_request');
});

test('a house that is opened again behind its own journal goes on from the last entry', async (t) => {
  const time: HandClock = handClock();
  const house = await openTestServer(t, { time });
  const { token } = await house.openWallet({ expires_in_seconds: 0 });
  time.advance(7200);
  await house.chat(token);
  const before = house.app.clock.now();
  time.leap(-7200);
  await house.reopen();
  assert.equal(house.app.clock.now(), before);
  assert.deepEqual(await serving(house, token), RED);
  time.advance(7200);
  assert.deepEqual(await serving(house, token), GREEN);
  assert.deepEqual(house.problems(), []);
});
