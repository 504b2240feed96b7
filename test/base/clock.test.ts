import assert from 'node:assert/strict';
import test from 'node:test';
import { createClock } from '../../src/base/clock.ts';
import fc from '../helper/property.ts';
import { type HandClock, handClock } from '../helper/server.ts';

/** Creates a clock on a time source that the test controls, started on a whole second, and collects its warnings. */
function open(newestAt = (_start: number) => 0) {
  const time = handClock();
  time.leap(1 - (time.wall() % 1000) / 1000); // A whole second, so that the asserted times are exact.
  const start = time.wall() / 1000;
  const warnings: string[] = [];
  const warn = (facts: object) => warnings.push((facts as { event: string }).event);
  const clock = createClock(time, { at: newestAt(start) }, { warn, info: warn } as never);
  /** Returns the clock's state, with its time relative to the start. */
  const state = () => [clock.now() - start, clock.holdsBlocked() !== undefined, clock.expiryBlocked()];
  return { time, clock, start, warnings, state };
}

test('it starts at the wall clock when the journal is older', () => {
  const { clock, start } = open((it) => it - 86_400);
  assert.equal(clock.now(), start);
  assert.equal(clock.holdsBlocked(), undefined);
});

test('it starts at the newest entry when the wall clock is minutes behind it, and holds wait until it has caught up', () => {
  const { clock, start, time, warnings } = open((it) => it + 300);
  assert.equal(clock.now(), start + 300);
  assert.match(clock.holdsBlocked() ?? '', /more than a minute behind the time that these books expect: set it right/);
  assert.equal(clock.expiryBlocked(), false, 'what is due is still ended');
  assert.deepEqual(warnings, ['clock.backward']);
  time.advance(299);
  assert(clock.holdsBlocked());
  time.advance(1);
  assert.equal(clock.holdsBlocked(), undefined);
});

test('a start that is further behind the newest entry is in doubt, until the wall clock is set right or has caught up', () => {
  for (const pass of ['leap', 'advance'] as const) {
    const { clock, start, time } = open((it) => it + 86_400);
    assert.deepEqual(clock.doubt(), { direction: 'behind', seconds: 86_400 });
    assert.match(clock.holdsBlocked() ?? '', /is 24 hours behind the newest time.*--accept-clock/);
    assert.equal(clock.expiryBlocked(), true);
    assert.equal(clock.now(), start, 'nothing is written with a time that may be wrong in the future');
    time.advance(60);
    assert.equal(clock.now(), start + 60);
    time[pass](86_400 - 60);
    assert.equal(clock.doubt(), undefined);
    assert.equal(clock.holdsBlocked(), undefined);
    assert.equal(clock.expiryBlocked(), false);
    assert.ok(clock.now() >= start + 86_400);
  }
});

const DAY = 86_400;

/** Opens a clock on books that were served until now, after `meanwhile`. */
function openAgain(meanwhile: (time: HandClock) => void, hidesId = false) {
  const time = handClock();
  const hidden = ({ seconds }: { seconds: number }) => ({ id: null, seconds });
  const own: HandClock = hidesId ? { ...time, boot: () => hidden(time.boot?.() as never) } : time;
  time.advance(1000);
  const at = Math.floor(time.wall() / 1000);
  const sighting = { at, boot: own.boot?.() ?? null };
  meanwhile(time);
  const clock = createClock(own, { at, sighting }, { warn: () => {}, info: () => {} } as never);
  return { time, clock, at };
}

test('a start is believed after any downtime within one boot, and after up to a week across boots', () => {
  for (const seconds of [0, 300, 3 * DAY, 400 * DAY])
    assert.equal(openAgain((it) => it.advance(seconds)).clock.doubt(), undefined, `${seconds} s, one boot`);
  for (const seconds of [0, 3 * DAY, 7 * DAY - 1])
    for (const hidesId of [false, true]) {
      const { clock, at } = openAgain((it) => {
        it.advance(seconds);
        it.bootAgain();
      }, hidesId);
      assert.equal(clock.doubt(), undefined, `${seconds} s, booted`);
      assert.ok(clock.now() >= at + seconds);
    }
});

test('small steps between two starts are not noticed', () => {
  for (const seconds of [1, 60, 299, -1, -60]) {
    const { clock } = openAgain((it) => it.leap(seconds));
    assert.equal(clock.doubt(), undefined, `${seconds} s`);
    assert.equal(clock.holdsBlocked(), undefined, `${seconds} s`);
  }
});

test('a start after a leap ahead goes on with the time that has passed, and expires and holds nothing', () => {
  const { time, clock, at } = openAgain((it) => {
    it.advance(3600);
    it.leap(10 * DAY);
  });
  const leap = clock.doubt();
  assert.equal(leap?.direction, 'ahead');
  assert([10 * DAY, 10 * DAY + 1].includes(leap.seconds), String(leap.seconds)); // The test's clock does not start on a whole second.
  assert.match(clock.holdsBlocked() ?? '', /is 10 days ahead of the time that these books expect/);
  assert.equal(clock.now(), at + 3600);
  time.advance(DAY);
  assert.equal(clock.now(), at + 3600 + DAY, 'however long it lasts');
  assert.equal(clock.expiryBlocked(), true);
  clock.believe();
  assert.deepEqual([clock.doubt(), clock.holdsBlocked(), clock.expiryBlocked()], [undefined, undefined, false]);
  assert.ok(clock.now() >= at + 3600 + 11 * DAY);
});

test('a leap ahead that is set right ends the doubt', () => {
  const { time, clock, at } = openAgain((it) => it.leap(10 * DAY));
  assert(clock.doubt());
  time.leap(-10 * DAY);
  assert.equal(clock.doubt(), undefined);
  assert.equal(clock.now(), at);
});

test('more than a week across boots is in doubt: nothing tells it from a clock that is as much ahead', () => {
  const { clock, at } = openAgain((it) => {
    it.advance(7 * DAY + 2);
    it.bootAgain();
  });
  assert.equal(clock.doubt()?.direction, 'ahead');
  assert.equal(clock.now(), at);
});

test('whatever is done to the wall clock before and after a start, time does not go back, and a doubt can always be ended', () => {
  const leap = fc.integer({ min: -20 * DAY, max: 20 * DAY });
  fc.assert(
    fc.property(leap, fc.array(fc.tuple(leap, fc.nat({ max: DAY })), { maxLength: 10 }), (first, steps) => {
      const { time, clock } = openAgain((it) => it.leap(first));
      let before = clock.now();
      for (const [by, seconds] of steps) {
        time.leap(by);
        time.advance(seconds);
        const now = clock.now();
        assert(now >= before, `${now} after ${before}`);
        before = now;
      }
      if (!clock.doubt()) return;
      clock.believe();
      assert.equal(clock.doubt(), undefined);
      assert(clock.now() >= before);
    }),
  );
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
