import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import test, { type TestContext } from 'node:test';
import { currentEpoch } from '../src/ledger/installation.ts';
import { journalHead } from '../src/ledger/journal.ts';
import { type HandClock, handClock, openTestServer } from './helper/server.ts';
import { completion, reset } from './helper/upstream.ts';
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
