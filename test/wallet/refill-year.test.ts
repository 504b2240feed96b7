import assert from 'node:assert/strict';
import test from 'node:test';
import { eq } from 'drizzle-orm';
import { isZone, periodAt } from '../../src/base/calendar.ts';
import { walletChanges } from '../../src/db/schema.ts';
import { createRandom, length, SEED } from '../helper/random.ts';
import { handClock, openTestServer } from '../helper/server.ts';

// A year of daily refills in two time zones, with restarts and crashes, against plain arithmetic.

const DAY = 86_400;
/** The fast tests take some weeks around a change of the clocks in both zones. */
const DAYS = length(50, 365);
const ZONES = ['Europe/Berlin', 'America/New_York'];
const REFILL_CENTS = 300;

/** The hours of a zone at a moment, such as `GMT-5`. */
const offsetIn = (zone: string, at: number) =>
  new Intl.DateTimeFormat('en', { timeZone: zone, timeZoneName: 'shortOffset' }).format(at).split(', ')[1];

/** A clock that stands at a moment from which on the clocks of all zones change within so many days, ten before their end. */
function clockBeforeChange(days: number) {
  const clock = handClock();
  const later = () => clock.wall() + (days - 10) * DAY * 1000;
  const changes = (zone: string) => offsetIn(zone, clock.wall()) !== offsetIn(zone, later());
  while (days < 365 && !ZONES.every(changes)) clock.advance(DAY);
  return clock;
}

/** The local date of a moment, by another way than the code under test. */
const dateIn = (zone: string, at: number) => new Intl.DateTimeFormat('en-CA', { timeZone: zone }).format(at * 1000);

test(`a year of refills in two zones gives what arithmetic says (PURSER_TEST_SEED=${SEED})`, async (t) => {
  const random = createRandom(SEED);
  const purser = await openTestServer(t, { creditCents: 10_000_000, time: clockBeforeChange(DAYS) });
  const start = Math.floor(purser.clock.wall() / 1000);
  const agents = [];
  for (const zone of ZONES) {
    const wallet = await purser.openWallet({ budget_cents: REFILL_CENTS, expires_in_seconds: 0 });
    await purser.run('wallet.refill', { id: wallet.id, refill: { cents: REFILL_CENTS, every: 'day', zone } });
    agents.push({
      ...wallet,
      zone,
      date: dateIn(zone, start),
      dates: [] as string[],
      spentCents: 0,
      leftCents: REFILL_CENTS,
    });
  }
  let now = start;
  while (now < start + DAYS * DAY) {
    const seconds = random.whole(1, 48) * 3600 + random.whole(0, 3600);
    purser.clock.advance(seconds);
    now += seconds;
    if (random.whole(0, 39) === 0) await purser.crash(() => {});
    else if (random.whole(0, 19) === 0) await purser.reopen();
    // The reaper, or the request that needs it, whichever is first.
    if (random.whole(0, 1)) await purser.app.reaper.runOnce();
    for (const it of agents) {
      const date = dateIn(it.zone, now);
      if (date !== it.date) {
        it.date = date;
        it.dates.push(date);
        it.leftCents = REFILL_CENTS;
      }
      const count = random.whole(1, 3);
      for (let i = 0; i < count && it.leftCents > 0; i++) {
        const answer = await purser.chat(it.token, { model: 'flat' }); // One cent.
        assert.equal(answer.status, 200, answer.text);
        it.spentCents++;
        it.leftCents--;
      }
      const { available_usd, used_usd } = await purser.budget(it.token);
      assert.deepEqual([available_usd, used_usd], [usd(it.leftCents), usd(it.spentCents)], `${it.zone} at ${date}`);
    }
  }
  for (const it of agents) {
    const changes = purser.app.ledger.read.select().from(walletChanges);
    const refills = changes.where(eq(walletChanges.walletId, it.id)).orderBy(walletChanges.id).all();
    assert.deepEqual(
      refills.map(({ kind, period }) => [kind, period]),
      it.dates.map((date) => ['refill', date]),
      'one refill on each local day that was seen',
    );
  }
  const { available_cents, reserved_cents } = (await purser.ask('GET', '/v1/account', { token: purser.accountKey }))
    .body;
  const given = agents.reduce((sum, it) => sum + it.spentCents + it.leftCents, 0);
  assert.deepEqual([available_cents, reserved_cents], [10_000_000 - given, given]);
  assert.deepEqual(purser.problems(), []);
});

const usd = (cents: number) => (cents / 100).toFixed(2);

test('a period begins at the first moment of its first local day', () => {
  const at = (text: string) => Date.parse(text) / 1000;
  const of = (every: 'day' | 'week' | 'month', zone: string, text: string) => {
    const { date, start, next } = periodAt(every, zone, at(text));
    return [date, new Date(start * 1000).toISOString(), new Date(next * 1000).toISOString()]
      .join(' ')
      .replaceAll('.000', '');
  };
  // Clocks go forward: a day of 23 hours; and back: one of 25.
  assert.equal(
    of('day', 'Europe/Berlin', '2026-03-29T12:00:00Z'),
    '2026-03-29 2026-03-28T23:00:00Z 2026-03-29T22:00:00Z',
  );
  assert.equal(
    of('day', 'Europe/Berlin', '2026-10-25T12:00:00Z'),
    '2026-10-25 2026-10-24T22:00:00Z 2026-10-25T23:00:00Z',
  );
  assert.equal(of('week', 'UTC', '2026-11-22T23:59:59Z'), '2026-11-16 2026-11-16T00:00:00Z 2026-11-23T00:00:00Z');
  assert.equal(
    of('month', 'Asia/Kolkata', '2026-11-30T18:29:59Z'),
    '2026-11-01 2026-10-31T18:30:00Z 2026-11-30T18:30:00Z',
  );
  // The clocks of Cairo skip the midnight of that day.
  assert.equal(
    of('day', 'Africa/Cairo', '2026-04-24T12:00:00Z'),
    '2026-04-24 2026-04-23T22:00:00Z 2026-04-24T21:00:00Z',
  );
});

test('a name is a zone only where its periods are known', () => {
  for (const name of [
    'ACT',
    'AST',
    'CST',
    'JST',
    'PRT',
    'SST',
    'VST',
    'EST',
    'Etc/GMT+5',
    'US/Pacific',
    'UTC',
    ...ZONES,
  ])
    if (isZone(name)) assert.doesNotThrow(() => periodAt('day', name, 0), name);
  assert.deepEqual(['UTC', ...ZONES, 'nowhere', ''].map(isZone), [true, true, true, false, false]);
});
