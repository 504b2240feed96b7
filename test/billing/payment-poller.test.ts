import assert from 'node:assert/strict';
import { join } from 'node:path';
import test from 'node:test';
import { readConfig } from '../../src/config/config.ts';
import { backUp } from '../../src/recovery/backup.ts';
import { restore } from '../../src/recovery/restore.ts';
import { temporaryDirectory } from '../ledger/books.ts';
import { deliver } from './fake-stripe.ts';
import { begin, CENTS, events, figures, openShop, pass, rowOf } from './paid.ts';

/** Behind NAT: nobody tells of anything. */
const NAT = { webhook_secrets: [] };
const reads = (calls: { path: string }[]) => calls.filter(({ path }) => path.startsWith('/v1/checkout/sessions/'));
const lists = (calls: { path: string }[]) => calls.filter(({ path }) => path === '/v1/events');

test('behind NAT a payment is credited by asking, once, over restarts too', async (t) => {
  const { purser, stripe } = await openShop(t, NAT);
  const [one, two] = [await begin(purser), await begin(purser)];
  await pass(purser, 20);
  assert.equal(reads(stripe.calls).length, 2);
  stripe.pay(one);
  await purser.reopen();
  await purser.app.reaper.stop();
  await pass(purser, 20);
  assert.deepEqual([(await rowOf(purser, one)).status, (await rowOf(purser, two)).status], ['paid', 'open']);
  stripe.pay(two);
  for (let i = 0; i < 5; i++) await pass(purser, 60);
  assert.deepEqual(await figures(purser), [2 * CENTS, 0]);
  const before = reads(stripe.calls).length;
  await pass(purser, 3600);
  assert.equal(reads(stripe.calls).length, before, 'what is decided is not asked after');
});

test('the running reaper wakes by itself for what is due', async (t) => {
  const { purser, stripe } = await openShop(t, NAT);
  const id = await begin(purser);
  stripe.pay(id);
  purser.clock.advance(16);
  purser.app.reaper.start();
  await stripe.arrived(2);
  await purser.app.paymentPoller?.pass(); // The one that runs.
  await purser.app.reaper.stop();
  assert.equal((await rowOf(purser, id)).status, 'paid');
  assert.deepEqual(await figures(purser), [CENTS, 0]);
});

test('one that nobody pays is asked after ever more rarely, and no more when it has expired', async (t) => {
  const { purser, stripe } = await openShop(t, NAT);
  const id = await begin(purser);
  for (let i = 0; i < 3 * 60; i++) await pass(purser, 60);
  const asked = reads(stripe.calls).length;
  assert.ok(asked > 10 && asked < 40, `${asked} times in three hours`);
  stripe.expire(id);
  await pass(purser, 60);
  assert.deepEqual([(await rowOf(purser, id)).status, (await rowOf(purser, id)).due_at], ['expired', null]);
  assert.equal(await purser.app.paymentPoller?.nextDue(), Number.POSITIVE_INFINITY, 'nothing is left to ask');
});

test('a delayed payment is learned by asking, and so is its failure', async (t) => {
  const { purser, stripe } = await openShop(t, NAT);
  const [good, bad] = [await begin(purser), await begin(purser)];
  for (const id of [good, bad]) stripe.promise(id);
  await pass(purser, 60);
  assert.deepEqual([(await rowOf(purser, good)).status, (await rowOf(purser, bad)).status], ['pending', 'pending']);
  stripe.keepPromise(good);
  stripe.breakPromise(bad);
  await pass(purser, 86_400);
  assert.deepEqual([(await rowOf(purser, good)).status, (await rowOf(purser, bad)).status], ['paid', 'failed']);
  assert.deepEqual(await figures(purser), [CENTS, 0]);
});

test('a session that is paid otherwise is seen by asking too', async (t) => {
  const { purser, stripe } = await openShop(t, NAT);
  const id = await begin(purser);
  stripe.pay(id, { currency: 'eur' });
  await pass(purser, 60);
  assert.equal((await rowOf(purser, id)).status, 'mismatch');
  assert.deepEqual(await figures(purser), [0, 0]);
});

for (const down of [
  { kind: 'reset' },
  { kind: 'status', status: 500 },
  { kind: 'status', status: 429 },
  { kind: 'status', status: 401 },
  { kind: 'half', accepted: true },
  { kind: 'garbage', accepted: true },
] as const)
  test(`a Stripe that is down (${JSON.stringify(down)}) is left alone for a while, and then asked again; nothing is lost`, async (t) => {
    const { purser, stripe } = await openShop(t, NAT);
    const ids = [];
    for (let i = 0; i < 10; i++) ids.push(await begin(purser));
    for (const id of ids) stripe.pay(id);
    stripe.down = down;
    await pass(purser, 60);
    assert.ok(reads(stripe.calls).length <= 4, 'not ten times in vain');
    const first = reads(stripe.calls).length;
    await purser.app.reaper.runOnce();
    assert.equal(reads(stripe.calls).length, first, 'left alone');
    for (let i = 0; i < 10; i++) await pass(purser, 60);
    assert.ok(reads(stripe.calls).length < 40, `${reads(stripe.calls).length} times in ten minutes`);
    assert.ok(events(purser, 'payments.failed').length > 0);
    stripe.down = undefined;
    await pass(purser, 600);
    assert.deepEqual(await figures(purser), [10 * CENTS, 0]);
  });

test('a session that Stripe does not know is asked after for a long time, holds up no other, and ends as abandoned', async (t) => {
  const { purser, stripe } = await openShop(t, NAT);
  const [lost, good] = [await begin(purser), await begin(purser)];
  stripe.sessions.delete(stripe.session(lost).id);
  stripe.pay(good);
  await pass(purser, 60);
  assert.deepEqual([(await rowOf(purser, lost)).status, (await rowOf(purser, good)).status], ['open', 'paid']);
  assert.match((await rowOf(purser, lost)).last_error ?? '', /404 resource_missing/);
  await pass(purser, 91 * 86_400);
  assert.equal((await rowOf(purser, lost)).status, 'abandoned');
  assert.equal(events(purser, 'checkout.abandoned')[0]?.level, 50);
});

test('a Stripe that hangs holds up nothing else of the reaper, and a stopping server does not wait for it', async (t) => {
  const { purser, stripe } = await openShop(t, NAT, { creditCents: 1000 });
  await begin(purser);
  const wallet = await purser.openWallet({ budget_cents: 500, expires_in_seconds: 60 });
  stripe.down = { kind: 'hang' };
  purser.clock.advance(61);
  const reaped = await purser.app.reaper.runOnce();
  assert.equal(events(purser, 'payments.failed').length, 0, 'it went on before the call was given up');
  assert.deepEqual([reaped.expired, reaped.closed], [1, 1]);
  assert.equal(purser.wallet(wallet.id).status, 'closed');
  await purser.close();
  assert.equal(events(purser, 'payments.failed').length, 0, 'the call was not waited for, and stopping is no failure');
});

test('refunds and disputes are learned by asking for the list of events, only where something was paid', async (t) => {
  const { purser, stripe } = await openShop(t, NAT);
  const id = await begin(purser);
  await pass(purser, 400);
  assert.equal(lists(stripe.calls).length, 0, 'nothing was paid yet');
  stripe.pay(id);
  await pass(purser, 400);
  assert.deepEqual(await figures(purser), [CENTS, 0]);
  const refund = stripe.refund(id, { amount: 500, status: 'pending' });
  await pass(purser, 400);
  assert.deepEqual(await figures(purser), [CENTS - 500, 0]);
  stripe.tell('refund.failed', refund.data.object, { status: 'failed' });
  await pass(purser, 400);
  assert.deepEqual(await figures(purser), [CENTS, 0]);
  const dispute = stripe.dispute(id);
  await pass(purser, 400);
  assert.deepEqual(await figures(purser), [0, 0]);
  stripe.tell('charge.dispute.closed', dispute.data.object, { status: 'won' });
  for (let i = 0; i < 3; i++) await pass(purser, 400);
  assert.deepEqual(await figures(purser), [CENTS, 0]);
  const asked = lists(stripe.calls).length;
  assert.ok(asked < 10);
  await pass(purser, 181 * 86_400);
  assert.equal(lists(stripe.calls).length, asked, 'what was paid so long ago is disputed no more');
});

test('more events than fit a page are all read, oldest first, and what fails to be read is read again', async (t) => {
  const { purser, stripe } = await openShop(t, NAT);
  const ids = [];
  for (let i = 0; i < 15; i++) ids.push(await begin(purser));
  for (const id of ids) stripe.pay(id);
  await pass(purser, 60);
  for (let i = 0; i < 240; i++)
    stripe.tell('refund.created', { id: `re_foreign${i}`, amount: 1, currency: 'usd', payment_intent: 'pi_foreign' });
  for (const id of ids) stripe.refund(id, { amount: 100 });
  stripe.down = { kind: 'status', status: 500 };
  await pass(purser, 400);
  stripe.down = undefined;
  await pass(purser, 1000);
  assert.deepEqual(await figures(purser), [15 * (CENTS - 100), 0]);
});

test('the first payment of all is taken back where it was refunded before anybody here knew of it', async (t) => {
  const { purser, stripe } = await openShop(t, NAT);
  const id = await begin(purser);
  stripe.pay(id);
  stripe.refund(id);
  for (const seconds of [2 * 86_400, 400, 400]) await pass(purser, seconds);
  assert.equal((await rowOf(purser, id)).status, 'paid');
  assert.deepEqual(await figures(purser), [0, 0]);
});

test('thousands of foreign refunds do not keep ours from being read', async (t) => {
  const { purser, stripe } = await openShop(t, NAT);
  const id = await begin(purser);
  stripe.pay(id);
  await pass(purser, 60);
  const foreign = { amount: 1, currency: 'usd', payment_intent: 'pi_foreign' };
  for (let i = 0; i < 2500; i++) {
    if (i % 100 === 0) purser.clock.advance(60);
    stripe.tell('refund.created', { id: `re_foreign${i}`, ...foreign });
  }
  stripe.refund(id, { amount: 100 });
  // Each pass reads a span of time that has fewer of them than one call lists.
  for (let i = 0; i < 20; i++) await pass(purser, 1);
  assert.deepEqual(await figures(purser), [CENTS - 100, 0]);
});

test('thousands of foreign refunds within a few minutes do not keep ours from being read, nor what comes after them', async (t) => {
  const { purser, stripe } = await openShop(t, NAT);
  const [early, late] = [await begin(purser), await begin(purser)];
  for (const id of [early, late]) stripe.pay(id);
  await pass(purser, 60);
  for (let i = 0; i < 2400; i++) {
    if (i % 800 === 0) purser.clock.advance(60);
    stripe.tell('refund.created', { id: `re_foreign${i}`, amount: 1, currency: 'usd', payment_intent: null });
  }
  stripe.refund(early, { amount: 100 });
  await pass(purser, 400);
  stripe.refund(late, { amount: 100 });
  for (let i = 0; i < 20; i++) await pass(purser, 60);
  assert.deepEqual(await figures(purser), [2 * (CENTS - 100), 0]);
  assert.deepEqual(events(purser, 'payments.failed'), []);
});

test('an event of the list that is not as documented is an error, once, and the others are taken', async (t) => {
  const { purser, stripe } = await openShop(t, NAT);
  const id = await begin(purser);
  stripe.pay(id);
  await pass(purser, 60);
  stripe.tell('refund.created', { id: 're_odd', amount: 'much' });
  stripe.refund(id);
  for (let i = 0; i < 3; i++) await pass(purser, 400); // The list has it again each time.
  assert.deepEqual(await figures(purser), [0, 0]);
  const [failed, ...others] = events(purser, 'payments.failed');
  assert.match(failed?.err.message, /refund\.created is not as it is documented \(amount/);
  assert.deepEqual(others, []);
});

test('what a webhook told of and the list tells again is taken once', async (t) => {
  const { purser, stripe } = await openShop(t);
  const id = await begin(purser);
  await deliver(purser, stripe.pay(id));
  const refund = stripe.refund(id, { amount: 700 });
  await deliver(purser, refund);
  for (let i = 0; i < 3; i++) await pass(purser, 400);
  assert.deepEqual(await figures(purser), [CENTS - 700, 0]);
});

test('books that are restored from before a payment and a refund learn of both by asking, once', async (t) => {
  const { purser, stripe } = await openShop(t);
  const [early, late] = [await begin(purser), await begin(purser)];
  await deliver(purser, stripe.pay(early));
  await pass(purser, 20); // Stripe's list has been read up to here.
  const backup = join(temporaryDirectory(t), 'backup.db');
  await backUp(purser.directory, backup, '1.2.3', purser.app.clock.now());
  const told = [stripe.pay(late), stripe.refund(early, { amount: 700 })];
  for (const event of told) await deliver(purser, event);
  assert.deepEqual(await figures(purser), [2 * CENTS - 700, 0]);

  await purser.close();
  const config = readConfig({ data: purser.directory }, {});
  await restore(config, { file: backup, force: false });
  await purser.reopen();
  await purser.app.reaper.stop();
  assert.deepEqual(await figures(purser), [CENTS, 0]);
  for (let i = 0; i < 3; i++) await pass(purser, 400);
  assert.deepEqual(await figures(purser), [2 * CENTS - 700, 0]);
  for (const event of told) await deliver(purser, event);
  assert.deepEqual(await figures(purser), [2 * CENTS - 700, 0]);
});
