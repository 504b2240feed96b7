import assert from 'node:assert/strict';
import test, { type TestContext } from 'node:test';
import { eq } from 'drizzle-orm';
import { walletChanges } from '../../src/db/schema.ts';
import { refillWallets } from '../../src/reaper/chores.ts';
import { handClock, openTestServer, type TestServer } from '../helper/server.ts';
import { recordOf } from './moves-shared.ts';

const changesOf = ({ app }: TestServer, id: string) =>
  app.ledger.read.select().from(walletChanges).where(eq(walletChanges.walletId, id)).all();

for (const carry of ['none', 0])
  test(`a daily refill that carries ${carry} sets what is available back, once a day, however long the server slept`, async (t) => {
    const purser = await openTestServer(t, { creditCents: 3000 });
    const { id, token } = await purser.openWallet({ budget_cents: 300, expires_in_seconds: 0 });
    const set = await purser.ask('PUT', `/v1/wallets/${id}/refill`, {
      token: purser.accountKey,
      body: { cents: 500, every: 'day', zone: 'Europe/Berlin', carry },
    });
    assert.equal(set.status, 200, set.text);
    assert.equal((await recordOf(purser, id)).refill.next_at, set.body.refill.next_at);
    assert.equal((await purser.chat(token, { model: 'flat' })).status, 200);
    const wait = set.body.refill.next_at - Math.floor(purser.clock.wall() / 1000);
    purser.clock.advance(wait + 3 * 86_400 + 7200);
    await purser.app.reaper.runOnce();
    await purser.app.reaper.runOnce();
    const after = await recordOf(purser, id);
    assert.deepEqual([after.available_usd, after.budget_usd], ['5.00', '5.01']);
    await purser.reopen();
    await purser.app.reaper.runOnce();
    assert.equal((await recordOf(purser, id)).available_usd, '5.00');
    assert.deepEqual(purser.problems(), []);
    const off = await purser.ask('DELETE', `/v1/wallets/${id}/refill`, { token: purser.accountKey });
    assert.equal(off.body.refill, null);
  });

test('of what is left over, a refill keeps as much as it carries', async (t) => {
  const purser = await openTestServer(t);
  for (const [leftCents, carry, available] of [
    [100, 300, '6.00'],
    [299, 300, '7.99'],
    [300, 300, '8.00'],
    [301, 300, '8.00'],
    [2000, 300, '8.00'],
    [2000, 'all', '25.00'],
    [100, 'none', '5.00'],
  ] as const) {
    const { id } = await purser.openWallet({ budget_cents: leftCents, expires_in_seconds: 0 });
    await purser.run('wallet.refill', { id, refill: { cents: 500, every: 'day', carry } });
    purser.clock.advance(86_400);
    await purser.app.reaper.runOnce();
    assert.equal((await recordOf(purser, id)).available_usd, available, `${leftCents} left, ${carry} carried`);
    await purser.run('wallet.close', { id });
  }
  assert.deepEqual(purser.problems(), []);
});

test('a refill that takes back what was left over lowers the wallet, and the timeline says so', async (t) => {
  const purser = await openTestServer(t);
  const { id } = await purser.openWallet({ budget_cents: 1000, expires_in_seconds: 0 });
  await purser.run('wallet.refill', { id, refill: { cents: 300, every: 'day' } });
  purser.clock.advance(86_400);
  await purser.app.reaper.runOnce();
  await purser.run('wallet.refill', { id, refill: { cents: 500, every: 'day' } });
  purser.clock.advance(86_400);
  await purser.app.reaper.runOnce();
  const { steps } = await purser.run('wallet.timeline', { id });
  assert.deepEqual(
    steps.map((it) => [it.what, it.amount_usd, it.available_usd]),
    [
      ['opened', '10.00', '10.00'],
      ['lowered', '7.00', '3.00'],
      ['refilled', '2.00', '5.00'],
    ],
  );
});

test('a child that needs the refill of its parent brings it, before the reaper does, when it opens and when it is raised', async (t) => {
  const purser = await openTestServer(t);
  const { id, token } = await purser.openWallet({ budget_cents: 300, expires_in_seconds: 0 });
  const nextDay = () => purser.clock.advance(86_400);
  await purser.run('wallet.refill', { id, refill: { cents: 500, every: 'day' } });
  const order = { token, key: 'c', body: { name: 'sub-agent', budget_usd: '4.50', expires_in_seconds: 0 } };
  const early = await purser.ask('POST', '/v1/run/wallets', order);
  assert.deepEqual([early.status, early.body.error.code], [402, 'insufficient_funds']);
  nextDay();
  const child = await purser.ask('POST', '/v1/run/wallets', order);
  assert.equal(child.status, 201, child.text);
  assert.equal((await recordOf(purser, id)).available_usd, '0.50');
  await purser.run('wallet.refill', { id, refill: { cents: 1000, every: 'day' } });
  nextDay();
  const raised = await purser.ask('POST', `/v1/wallets/${child.body.id}/budget`, {
    token: purser.accountKey,
    key: 'r',
    body: { add_cents: 500 },
  });
  assert.deepEqual([raised.status, raised.body.available_usd], [200, '9.50'], raised.text);
  await purser.app.reaper.runOnce();
  assert.equal((await recordOf(purser, id)).available_usd, '0.50', 'once a day');
  assert.deepEqual(purser.problems(), []);
});

/** A server whose wall clock begins at this moment. */
function openAt(t: TestContext, moment: string, creditCents: number) {
  const time = handClock();
  time.advance((Date.parse(moment) - time.wall()) / 1000);
  return openTestServer(t, { creditCents, time });
}
const DAY = 86_400;
const refillsOf = (purser: TestServer, id: string) => changesOf(purser, id).filter((it) => it.kind === 'refill').length;

test('a refill that fell short stays owed when the same settings come again, and needs no reaper once the credit is there', async (t) => {
  const purser = await openAt(t, '2027-01-31T12:00:00Z', 300);
  const { id, token } = await purser.openWallet({ budget_cents: 300, expires_in_seconds: 0 });
  const put = () =>
    purser.ask('PUT', `/v1/wallets/${id}/refill`, { token: purser.accountKey, body: { cents: 500, every: 'month' } });
  await put();
  assert.equal((await purser.chat(token, { model: 'flat' })).status, 200);
  purser.clock.advance(DAY);
  await purser.app.reaper.runOnce();
  const { next_at: retried } = (await recordOf(purser, id)).refill;
  assert.equal((await put()).body.refill.next_at, retried);
  assert.equal(refillsOf(purser, id), 0);
  await purser.run('account.credit', { id: purser.accountId, cents: 10_000 });
  const { status, text } = await purser.chat(token, { model: 'dear', max_tokens: 400 });
  assert.equal(status, 200, text);
  assert.equal(refillsOf(purser, id), 1, 'the request that needs it brings it');
  assert.equal((await recordOf(purser, id)).refill.next_at, Date.parse('2027-03-01T00:00:00Z') / 1000);
  assert.deepEqual(purser.problems(), []);
});

test('a refill that is due happens before its terms change, and before the budget does', async (t) => {
  const purser = await openAt(t, '2027-01-31T12:00:00Z', 10_000);
  const terms = (id: string, cents: number) => purser.run('wallet.refill', { id, refill: { cents, every: 'month' } });
  const changed = await purser.openWallet({ budget_cents: 300, expires_in_seconds: 0 });
  const raised = await purser.openWallet({ budget_cents: 300, expires_in_seconds: 0 });
  const lowered = await purser.openWallet({ budget_cents: 300, expires_in_seconds: 0 });
  for (const { id } of [changed, raised, lowered]) await terms(id, 500);
  purser.clock.advance(DAY); // And no pass of the reaper: as for a command of a stopped server.
  await terms(changed.id, 600);
  await purser.run('wallet.budget', { id: raised.id, add_cents: 1000 });
  await purser.run('wallet.budget', { id: lowered.id, add_cents: -200 });
  await purser.app.reaper.runOnce();
  const figures = await Promise.all([changed, raised, lowered].map(({ token }) => purser.budget(token)));
  assert.deepEqual(
    figures.map((it) => it.available_usd),
    ['5.00', '15.00', '3.00'],
  );
  for (const { id } of [changed, raised, lowered]) assert.equal(refillsOf(purser, id), 1);
  assert.deepEqual(purser.problems(), []);
});

test('a refill of another zone or rhythm on the same date takes the place of none', async (t) => {
  const purser = await openAt(t, '2027-01-30T12:00:00Z', 50_000);
  const { id, token } = await purser.openWallet({ budget_cents: 300, expires_in_seconds: 0 });
  await purser.run('wallet.refill', { id, refill: { cents: 100, every: 'day', zone: 'Asia/Tokyo' } });
  purser.clock.advance(DAY + 4 * 3600); // The 1st of February has begun in Tokyo, at 15:00 UTC.
  await purser.app.reaper.runOnce();
  assert.equal(refillsOf(purser, id), 1);
  await purser.run('wallet.refill', { id, refill: { cents: 5000, every: 'month', zone: 'UTC' } });
  const { next_at: next } = (await recordOf(purser, id)).refill;
  assert.equal(next, Date.parse('2027-02-01T00:00:00Z') / 1000);
  for (let day = 0; day < 3; day++) {
    purser.clock.advance(DAY);
    await purser.app.reaper.runOnce();
  }
  assert.deepEqual([(await purser.budget(token)).available_usd, refillsOf(purser, id)], ['50.00', 2]);
  assert.deepEqual(purser.problems(), []);
});

test('refills come to an end when a whole page of wallets expires just before them', async (t) => {
  const purser = await openTestServer(t, { creditCents: 1_000_000 });
  const openOne = async (expires_in_seconds: number) => {
    const { id } = await purser.openWallet({ expires_in_seconds });
    await purser.run('wallet.refill', { id, refill: { cents: 500, every: 'day' } });
    return id;
  };
  await Promise.all(Array.from({ length: 100 }, () => openOne(60)));
  const last = await openOne(0);
  purser.clock.advance(86_400);
  const reaped = { refilled: 0, failed: 0 } as Parameters<typeof refillWallets>[1];
  await refillWallets(purser.app, reaped); // As in a pass whose clock has gone on since it looked for what expires.
  assert.equal(reaped.failed, 0);
  const refilled = changesOf(purser, last);
  assert.deepEqual(
    refilled.map(({ kind }) => kind),
    ['refill'],
  );
});
