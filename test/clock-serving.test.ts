import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import test, { type TestContext } from 'node:test';
import { eq, is } from 'drizzle-orm';
import { getTableConfig, SQLiteTable } from 'drizzle-orm/sqlite-core';
import { withNewChecksum } from '../src/db/checksum.ts';
import * as schema from '../src/db/schema.ts';
import { currentEpoch } from '../src/ledger/installation.ts';
import { journalHead } from '../src/ledger/journal.ts';
import { writeWith } from './helper/closures.ts';
import { type HandClock, handClock, openTestServer } from './helper/server.ts';
import { completion, reset } from './helper/upstream.ts';
import { inWrongFuture } from './helper/wrong-future.ts';
import { asAccount } from './ui/sample.ts';

const DAY = 86_400;

/** Returns how requests and the readiness respond at the present clock. */
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

/** Stops a server, and starts it again after `meanwhile`. */
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

test('a wallet of a wrong future is as long as it was opened for, however often a clock goes back', async (t) => {
  const purser = await openTestServer(t);
  const child = { name: 'child', budget_usd: '0.10', expires_in_seconds: 7200 };
  const opened = await inWrongFuture(purser, async () => {
    await purser.app.reaper.stop();
    const parent = await purser.openWallet({ expires_in_seconds: 3600 });
    const made = await purser.ask('POST', '/v1/run/wallets', { token: parent.token, key: 'c', body: child });
    const other = await purser.openWallet({ expires_in_seconds: 3600 });
    const asked = { token: purser.accountKey, key: 'e', body: { seconds: DAY } };
    assert.equal((await purser.ask('POST', `/v1/wallets/${other.id}/extend`, asked)).status, 200);
    return { parent: parent.id, below: made.body.id as string, prolonged: other.id };
  });
  const left = (id: string) => (purser.wallet(id).expiresAt as number) - purser.app.clock.now();
  const all = () => Object.values(opened).map(left);
  const within = (least: number) => {
    const [first = 0, second = 0, third = 0] = all();
    assert.ok(
      first > least && first <= 3600 && second <= first && third > DAY + least && third <= DAY + 3600,
      `${all()}`,
    );
  };
  within(3590);
  await inWrongFuture(purser, () => purser.openWallet(), DAY / 24 / 2);
  within(3000);
  purser.clock.advance(3600);
  await purser.app.reaper.runOnce();
  await purser.app.reaper.runOnce();
  assert.deepEqual([purser.wallet(opened.parent).status, purser.wallet(opened.below).status], ['closed', 'closed']);
  assert.deepEqual(purser.problems(), []);
});

test('a refill of a wrong future does not take the place of the one of its right date, however often a clock goes back', async (t) => {
  const purser = await openTestServer(t);
  const open = async (carry: 'none' | 'all') => {
    const wallet = await purser.openWallet({ budget_cents: 500, expires_in_seconds: 0 });
    await purser.run('wallet.refill', { id: wallet.id, refill: { cents: 500, every: 'day', carry } });
    return wallet;
  };
  const [full, used, adding] = [await open('none'), await open('none'), await open('all')];
  for (let count = 0; count < 2; count++) {
    await inWrongFuture(
      purser,
      async () => {
        await purser.app.reaper.stop();
        await purser.chat(used.token, { model: 'flat' }); // One cent. The refill of the full one moves nothing.
        await purser.app.reaper.runOnce();
      },
      3 * DAY,
    );
    await purser.app.reaper.stop();
  }
  const shown = async () =>
    (await Promise.all([full, used, adding].map(({ token }) => purser.budget(token)))).map((it) => it.available_usd);
  const added = 3; // The amount of the first budget and of two wrong futures.
  for (let day = 1; day <= 5; day++) {
    for (const { token } of [full, used]) await purser.chat(token, { model: 'flat' });
    purser.clock.advance(DAY);
    await purser.app.reaper.runOnce();
    assert.deepEqual(await shown(), ['5.00', '5.00', `${5 * (added + day)}.00`], `day ${day}`);
  }

  // A boundary that comes again, as by new rules of a zone, brings nothing.
  await writeWith(purser.app.ledger, (tx) => {
    const change = withNewChecksum(schema.wallets, purser.wallet(adding.id), { refillAt: purser.app.clock.now() });
    tx.update(schema.wallets).set(change).where(eq(schema.wallets.id, adding.id)).run();
  });
  await purser.app.reaper.runOnce();
  assert.deepEqual((await shown())[2], `${5 * (added + 5)}.00`);
  assert.deepEqual(purser.problems(), []);
});

test('an event of a wrong future waits for its receiver no longer than another', async (t) => {
  const deaf = { name: 'deaf', url: 'http://127.0.0.1:9/', secret: `whsec_${'A'.repeat(32)}` };
  const purser = await openTestServer(t, { settings: { events: { receivers: [deaf] } } });
  await inWrongFuture(purser, async () => {
    const { id } = await purser.openWallet();
    await purser.run('wallet.freeze', { id });
  });
  const [waiting] = purser.app.ledger.read.select().from(schema.deliveries).all();
  assert.ok(waiting);
  const { queuedAt, dueAt } = waiting;
  const now = purser.app.clock.now();
  assert.ok(queuedAt <= now && dueAt <= now + 3600, `${queuedAt - now} ${dueAt - now}`);
  assert.deepEqual(purser.problems(), []);
});

/**
 * What becomes of each column with a time when the clock goes back: `goBackTo` brings it back, or why it need not. Add a column here with
 * what you have decided, and a test above for one that is brought back.
 */
const BACK = 'goBackTo';
const PAST = 'nothing waits for it, or is measured from it';
const TIMES: Record<string, string> = {
  'account.created_at': PAST,
  'account.disputed_at': PAST,
  'account.suspended_at': PAST,
  'answer.kept_until': BACK,
  'browser_session.created_at': 'goBack deletes the sessions',
  'browser_session.expires_at': 'goBack deletes the sessions',
  'browser_session.last_used_at': 'goBack deletes the sessions',
  'checkout.created_at': BACK,
  'checkout.due_at': BACK,
  'checkout.expires_at': BACK,
  'checkout.paid_at': 'refunds of it are asked for until later',
  'delivery.delivered_at': PAST,
  'delivery.due_at': BACK,
  'delivery.gave_up_at': PAST,
  'delivery.queued_at': BACK,
  'entry.at': 'the journal keeps it',
  'epoch.started_at': 'the new epoch has the right one',
  'event.created_at': 'events are kept until later',
  'funding.created_at': PAST,
  'identity.created_at': PAST,
  'installation.created_at': PAST,
  'installation.frozen_at': PAST,
  'installation.moved_at': PAST,
  'installation.moved_written_at': 'machines that were made before it are told apart by their rows',
  'installation.report_only_since': PAST,
  'installation.trusted_at': 'the operator has looked at all that was made before it',
  'keep.created_at': PAST,
  'keep.ended_at': PAST,
  'key.created_at': PAST,
  'key.last_used_at': PAST,
  'key.revoked_at': PAST,
  'learned_bound.factor_at': 'a bound fades later: it holds more, and charges nothing',
  'learned_bound.learned_at': 'a bound fades later: it holds more, and charges nothing',
  'learned_bound.overhead_at': 'a bound fades later: it holds more, and charges nothing',
  'master_key.created_at': PAST,
  'master_key.retired_at': PAST,
  'operation.answered_at': PAST,
  'operation.created_at': PAST,
  'operation.settled_at': PAST,
  'operation.target_at': 'applyExtension moves a lease by the seconds that were bought at most',
  'operation.uncertain_at': BACK,
  'passkey.created_at': PAST,
  'passkey.last_used_at': PAST,
  'passkey.removed_at': PAST,
  'payment_event.received_at': PAST,
  'payment_feed.due_at': BACK,
  'payment_feed.read_to': BACK,
  'resource.absent_since': BACK,
  'resource.created_at': BACK,
  'resource.due_at': BACK,
  'resource.ended_at': PAST,
  'resource.ends_by': 'the date of its provider',
  'resource.expires_at': BACK,
  'resource.paused_at': BACK,
  'resource.questioned_at': PAST,
  'resource.ready_at': BACK,
  'resource.ready_by': BACK,
  'resource.unreachable_since': PAST,
  'reversal.as_of': 'the time of the payment provider',
  'reversal.created_at': PAST,
  'router_key.created_at': PAST,
  'router_key.revoked_at': PAST,
  'sandbox.delivered_at': PAST,
  'sandbox.ends_at': BACK,
  'snapshot.created_at': PAST,
  'snapshot.due_at': BACK,
  'snapshot.ended_at': PAST,
  'snapshot.paid_until': BACK,
  'wallet.closed_at': PAST,
  'wallet.closing_since': PAST,
  'wallet.created_at': BACK,
  'wallet.expires_at': BACK,
  'wallet.frozen_at': PAST,
  'wallet.refill_at': BACK,
  'wallet_change.created_at': 'a refill of a future that was left takes the place of no other',
  'wallet_change.expires_at': PAST,
};

test('for every time in the books it is decided what becomes of it when the clock goes back', () => {
  const isTime = /(^|_)(at|by|until|since|to|of|due|ends?)$/;
  const times = Object.values(schema).flatMap((it) => {
    if (!is(it, SQLiteTable)) return [];
    const { name: table, columns } = getTableConfig(it);
    const found = columns.filter((column) => column.getSQLType() === 'integer' && isTime.test(column.name));
    return found.map((column) => `${table}.${column.name}`);
  });
  assert.deepEqual(times.sort(), Object.keys(TIMES).sort());
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
