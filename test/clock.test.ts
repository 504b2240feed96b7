import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import test, { type TestContext } from 'node:test';
import fc from 'fast-check';
import { createClock } from '../src/clock.ts';
import { currentEpoch } from '../src/ledger/installation.ts';
import { journalHead } from '../src/ledger/journal.ts';
import { type HandClock, handClock, openTestServer } from './helper/server.ts';
import { completion, reset } from './helper/upstream.ts';
import { asAccount } from './ui/sample.ts';

/** A clock on a time source in hand, started on a whole second, with what it warned of. */
function open(newestAt = (_start: number) => 0) {
  const time = handClock();
  time.leap(1 - (time.wall() % 1000) / 1000); // A whole second: what is asserted below is then exact.
  const start = time.wall() / 1000;
  const warnings: string[] = [];
  const warn = (facts: object) => warnings.push((facts as { event: string }).event);
  const clock = createClock(time, { at: newestAt(start) }, { warn, info: warn } as never);
  /** What the clock says, beside what it would say if nobody had touched the wall clock. */
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

/** A clock of books that were served until now, `meanwhile` later. */
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
  assert([10 * DAY, 10 * DAY + 1].includes(leap.seconds), String(leap.seconds)); // The hand's clock starts within a second.
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

/** What a request, the readiness and the reaper make of the clock as it is. */
async function serving(purser: Awaited<ReturnType<typeof openTestServer>>, token: string) {
  const body = { name: 'new', budget_cents: 100 };
  const opened = await purser.ask('POST', '/v1/wallets', { token: purser.accountKey, key: randomUUID(), body });
  const chat = await purser.chat(token);
  const ready = await purser.ask('GET', '/readyz');
  return [opened.status, opened.body.error?.code, chat.status, chat.body.error?.code, ready.status];
}
/** The default of `router.uncertain`. */
const AFTER_SECONDS = 900;
const GREEN = [201, undefined, 200, undefined, 200];
const RED = [503, 'read_only', 503, 'read_only', 503];

test('while a leap forward is doubted nothing new is held, nothing expires, and readyz is red', async (t) => {
  const purser = await openTestServer(t);
  await purser.app.reaper.stop();
  const { id, token } = await purser.openWallet({ expires_in_seconds: 3600 });
  assert.deepEqual(await serving(purser, token), GREEN);

  purser.clock.leap(7200);
  assert.deepEqual(await serving(purser, token), RED);
  assert.equal((await purser.app.reaper.runOnce()).expired, 0);
  assert.equal((await purser.budget(token)).status, 'active');
  assert.equal((await purser.ask('GET', '/healthz')).status, 200, 'the process is well');

  purser.clock.advance(299);
  assert.deepEqual(await serving(purser, token), RED);
  assert.equal((await purser.app.reaper.runOnce()).expired, 0);
  purser.clock.advance(1);
  assert.equal((await purser.ask('GET', '/readyz')).status, 200);
  assert.equal((await purser.chat(token)).body.error.code, 'wallet_expired');
  assert.equal((await purser.app.reaper.runOnce()).expired, 1);
  assert.equal(purser.wallet(id).status, 'closed');
  assert.deepEqual(purser.problems(), []);
});

test('a leap forward that is taken back ends no wallet', async (t) => {
  const purser = await openTestServer(t);
  await purser.app.reaper.stop();
  const { token } = await purser.openWallet({ expires_in_seconds: 3600 });
  purser.clock.leap(86_400);
  assert.deepEqual(await serving(purser, token), RED);
  purser.clock.advance(200);
  purser.clock.leap(-86_400);
  assert.deepEqual(await serving(purser, token), GREEN);
  purser.clock.advance(300);
  assert.deepEqual(await serving(purser, token), GREEN);
  assert.deepEqual(await purser.app.reaper.runOnce().then(({ expired, closed }) => [expired, closed]), [0, 0]);
});

test('a wallet whose own time comes while a leap is doubted refuses spending, and is closed afterwards', async (t) => {
  const purser = await openTestServer(t);
  await purser.app.reaper.stop();
  const { id, token } = await purser.openWallet({ expires_in_seconds: 60 });
  purser.clock.leap(86_400);
  await purser.ask('GET', '/readyz');
  purser.clock.advance(60);
  assert.equal((await purser.budget(token)).status, 'expired');
  await purser.app.reaper.runOnce();
  assert.equal(purser.wallet(id).status, 'active', 'the reaper waits');
  purser.clock.advance(240);
  await purser.app.reaper.runOnce();
  assert.equal(purser.wallet(id).status, 'closed');
});

test('while the wall clock is set back nothing new is held, and expiry goes on by the time that has passed', async (t) => {
  const purser = await openTestServer(t);
  await purser.app.reaper.stop();
  const { token } = await purser.openWallet({ expires_in_seconds: 86_400 });
  const short = await purser.openWallet({ expires_in_seconds: 60 });
  purser.clock.leap(-3600);
  assert.deepEqual(await serving(purser, token), RED);
  purser.clock.advance(60);
  assert.equal((await purser.app.reaper.runOnce()).expired, 1);
  assert.equal(purser.wallet(short.id).status, 'closed');
  purser.clock.advance(3540);
  assert.deepEqual(await serving(purser, token), GREEN);
  assert.deepEqual(purser.problems(), [], 'the recorded time never goes back');
});

test('what was settled while the clock is doubted is settled: only new holds wait', async (t) => {
  const purser = await openTestServer(t);
  const { id, token } = await purser.openWallet();
  const key = randomUUID();
  const first = await purser.chat(token, {}, key);
  purser.clock.leap(7200);
  const again = await purser.chat(token, {}, key);
  assert.equal(again.status, 200);
  assert.equal(again.text, first.text);
  const closed = await purser.ask('POST', `/v1/wallets/${id}/close`, { token: purser.accountKey });
  assert.equal(closed.status, 200);
  assert.equal(closed.body.close_reason, 'account_request');
});

/** A server that was stopped, and started again after `meanwhile`. */
async function restarted(t: TestContext, meanwhile: (time: HandClock) => void, seconds = 3600) {
  const time = handClock();
  const purser = await openTestServer(t, { time });
  const wallet = await purser.openWallet({ expires_in_seconds: seconds });
  const keeps = await purser.openWallet({ expires_in_seconds: 0 });
  await purser.chat(keeps.token);
  await purser.reopen(() => meanwhile(time));
  await purser.app.reaper.stop();
  return { purser, time, wallet, keeps };
}

test('a start with the clock ten days ahead expires and holds nothing, and says so everywhere', async (t) => {
  const { purser, time, wallet, keeps } = await restarted(t, (it) => it.leap(10 * DAY));
  assert.deepEqual(await serving(purser, keeps.token), RED);
  assert.deepEqual((await purser.app.reaper.runOnce()).expired, 0);
  assert.equal((await purser.budget(wallet.token)).status, 'active');
  const told = /the clock of this machine is 10 days ahead .* `purser serve --accept-clock`/;
  assert.match((await purser.ask('GET', '/readyz')).text, told);
  const { clock } = await purser.run('status', {});
  assert.match(clock.holds_blocked ?? '', told);
  assert.equal(clock.expiry_blocked, true);
  assert(purser.log.some((line) => line.includes('"event":"clock.doubted"') && told.test(JSON.parse(line).msg)));
  assert.match(await purser.app.events.registry.getSingleMetricAsString('purser_clock_doubted'), /doubted 1$/m);

  await purser.reopen();
  assert.deepEqual(await serving(purser, keeps.token), RED, 'another start with the same clock says the same');
  await purser.reopen(() => time.leap(-10 * DAY));
  assert.deepEqual(await serving(purser, keeps.token), GREEN, 'and with the right one all is as before');
  assert.equal((await purser.budget(wallet.token)).status, 'active');
  assert.match(await purser.app.events.registry.getSingleMetricAsString('purser_clock_doubted'), /doubted 0$/m);
  assert.deepEqual(purser.problems(), []);
});

test('uncertain operations wait while the clock is in doubt', async (t) => {
  const time = handClock();
  const purser = await openTestServer(t, { time });
  const { token } = await purser.openWallet({ expires_in_seconds: 0 });
  purser.upstream.handle = reset;
  assert.equal((await purser.chat(token)).body.error.code, 'operation_uncertain');
  await purser.reopen(() => time.leap(10 * DAY));
  await purser.app.reaper.stop();
  assert.equal((await purser.app.reaper.runOnce()).resolved, 0);
  time.advance(DAY);
  assert.equal((await purser.app.reaper.runOnce()).resolved, 0);
  time.leap(-10 * DAY);
  assert.equal((await purser.app.reaper.runOnce()).resolved, 1);
});

test('a clock that a time service vouches for is believed, whatever the books expect', async (t) => {
  const { purser, keeps, wallet } = await restarted(t, (it) => {
    it.leap(10 * DAY); // The machine was suspended.
    it.isSynced = true;
  });
  assert.deepEqual(await serving(purser, keeps.token), GREEN);
  await purser.app.reaper.runOnce();
  assert.equal(purser.wallet(wallet.id).status, 'closed');
});

test('accepted once, a leap ahead is no leap for the next start', async (t) => {
  const { purser, keeps, wallet } = await restarted(t, (it) => it.leap(10 * DAY));
  await purser.reopen(() => {}, { acceptClock: true });
  assert.deepEqual(await serving(purser, keeps.token), GREEN);
  await purser.app.reaper.runOnce();
  assert.equal(purser.wallet(wallet.id).status, 'closed');
  await purser.reopen();
  assert.deepEqual(await serving(purser, keeps.token), GREEN);
  assert.deepEqual(purser.problems(), []);
});

test('after a wrong future was believed, the operator gets back with the same words', async (t) => {
  const { purser, time } = await restarted(t, (it) => it.leap(10 * DAY));
  await purser.reopen(() => {}, { acceptClock: true });
  const refill = { cents: 500, every: 'day', zone: 'UTC', carry: 'none' } as const;
  const { id, token } = await purser.openWallet({ expires_in_seconds: 0 });
  await purser.run('wallet.refill', { id, refill } as never);
  purser.upstream.handle = reset;
  assert.equal((await purser.chat(token)).body.error.code, 'operation_uncertain');
  purser.upstream.handle = completion();
  const wrong = purser.app.clock.now();

  await purser.reopen(() => time.leap(-10 * DAY));
  assert.deepEqual(purser.app.clock.doubt()?.direction, 'behind');
  assert.deepEqual(await serving(purser, token), RED);
  await purser.reopen();
  assert.deepEqual(await serving(purser, token), RED, 'over restarts');

  await purser.reopen(() => {}, { acceptClock: true });
  await purser.app.reaper.stop();
  const now = purser.app.clock.now();
  assert.ok(now < wrong - 9 * DAY, 'the time is that of the wall clock');
  assert.deepEqual(await serving(purser, token), GREEN);
  const epoch = currentEpoch(purser.app.ledger.read);
  assert.match(epoch.reason, /^accepted by the operator: the clock was \d+ s behind the newest time/);
  assert.ok(journalHead(purser.app.ledger.read).at >= wrong, 'the time of the journal does not go back');
  const short = await purser.openWallet({ expires_in_seconds: 60 });
  time.advance(60);
  assert.equal((await purser.budget(short.token)).status, 'expired', 'expiry follows the wall clock');
  assert.ok((purser.wallet(id).refillAt as number) <= now + DAY, 'the next refill is at the next midnight');
  time.advance(AFTER_SECONDS);
  assert.equal(
    (await purser.app.reaper.runOnce()).resolved,
    1,
    'what is uncertain waits for its policy, not for ten days',
  );

  await purser.reopen();
  assert.deepEqual(await serving(purser, token), GREEN, 'the next start needs no words');
  time.advance(11 * DAY);
  await purser.chat(token);
  assert.ok(journalHead(purser.app.ledger.read).at > wrong, 'once it is past that time, the journal goes on');
  await purser.reopen();
  assert.deepEqual(await serving(purser, token), GREEN);
  assert.deepEqual(purser.problems(), []);
});

test('on the way back from a wrong future no browser stays signed in, and no answer is kept for longer than 72 hours', async (t) => {
  const { purser, time, keeps } = await restarted(t, (it) => it.leap(10 * DAY));
  await purser.reopen(() => {}, { acceptClock: true });
  const browser = await asAccount(purser);
  await purser.run('ui.link', {});
  assert.equal((await purser.chat(keeps.token, {}, 'k')).status, 200);
  await purser.reopen(() => time.leap(-10 * DAY), { acceptClock: true });
  const count = (table: string) =>
    Number(purser.app.ledger.client.prepare(`select count(*) from ${table}`).pluck().get());
  assert.equal((await browser.get('/wallets')).status, 303);
  assert.equal(count('browser_session'), 0);
  const calls = purser.upstream.calls.length;
  assert.equal((await purser.chat(keeps.token, {}, 'k')).status, 200);
  assert.equal(purser.upstream.calls.length, calls, 'it is still answered from the books');
  assert.ok(count('answer') > 0);
  time.advance(3 * DAY);
  await purser.app.reaper.runOnce();
  assert.equal(count('answer'), 0);
  assert.deepEqual(purser.problems(), []);
});

test('a clock that is behind the books and synchronized is believed too', async (t) => {
  const { purser, time, keeps } = await restarted(t, (it) => it.leap(10 * DAY));
  await purser.reopen(() => {}, { acceptClock: true });
  await purser.chat(keeps.token);
  await purser.reopen(() => {
    time.leap(-10 * DAY);
    time.isSynced = true;
  });
  assert.deepEqual(await serving(purser, keeps.token), GREEN);
  assert.match(currentEpoch(purser.app.ledger.read).reason, /^a time service vouches for it/);
  assert.deepEqual(purser.problems(), []);
});

test('a server that is opened again behind its own journal goes on from the last entry', async (t) => {
  const time: HandClock = handClock();
  const purser = await openTestServer(t, { time });
  const { token } = await purser.openWallet({ expires_in_seconds: 0 });
  time.advance(7200);
  await purser.chat(token);
  const before = purser.app.clock.now();
  time.leap(-240);
  await purser.reopen();
  assert.equal(purser.app.clock.now(), before);
  assert.deepEqual(await serving(purser, token), RED);
  time.advance(240);
  assert.deepEqual(await serving(purser, token), GREEN);
  assert.deepEqual(purser.problems(), []);
});
