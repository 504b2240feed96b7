import assert from 'node:assert/strict';
import test from 'node:test';
import { createRandom, SEED } from '../helper/random.ts';
import { gate } from '../helper/upstream.ts';
import { deliver } from './fake-stripe.ts';
import { begin, CENTS, events, figures, openShop, pass } from './paid.ts';
import { openPaid, wallet } from './reversal-shared.ts';

test('a refund while an agent works: what is available goes, the rest is owed, the agent works on, and its wallet pays the debt when it closes', async (t) => {
  const { purser, stripe, id } = await openPaid(t);
  const { id: walletId, token } = await purser.openWallet({ budget_cents: 1500 });
  const { handler, open } = gate();
  purser.upstream.handle = handler;
  const running = purser.chat(token);
  await purser.upstream.arrived(1);
  assert.equal((await deliver(purser, stripe.refund(id))).status, 200);
  assert.deepEqual(await figures(purser), [0, 1500]);
  assert.deepEqual(
    [events(purser, 'checkout.reversed')[0]?.moved_cents, events(purser, 'checkout.reversed')[0]?.kind],
    [CENTS, 'refund'],
  );
  open();
  assert.equal((await running).status, 200);
  assert.equal((await purser.chat(token)).status, 200, 'what was set aside before may be spent');
  const refused = await wallet(purser);
  assert.deepEqual([refused.status, refused.body.error.code], [402, 'insufficient_funds']);
  assert.match(refused.body.error.message, /owes 15\.00 USD of reversed payments/);

  const closed = await purser.ask('POST', `/v1/wallets/${walletId}/close`, { token: purser.accountKey });
  assert.equal(closed.status, 200);
  const spent = 1500 - closed.body.returned_cents;
  assert.deepEqual(await figures(purser), [0, spent]);
  const second = await begin(purser);
  await deliver(purser, stripe.pay(second));
  assert.deepEqual(await figures(purser), [CENTS - spent, 0]);
  assert.equal((await wallet(purser)).status, 201);
  assert.deepEqual(await figures(purser), [CENTS - spent - 100, 0]);
});

test('refunds in parts, twice, late, failed and in the wrong order come to what they come to', async (t) => {
  const { purser, stripe, id } = await openPaid(t);
  const first = stripe.refund(id, { amount: 300, status: 'pending' });
  const second = stripe.refund(id, { amount: 200, status: 'requires_action' });
  purser.clock.advance(5);
  const done = stripe.tell('refund.updated', first.data.object, { status: 'succeeded' });
  const failed = stripe.tell('refund.failed', second.data.object, { status: 'failed' });
  const canceled = stripe.tell(
    'refund.updated',
    { ...first.data.object, id: 're_3', amount: 50 },
    { status: 'canceled' },
  );
  await Promise.all([failed, canceled, done, second, first, done, failed].map((event) => deliver(purser, event)));
  assert.deepEqual(await figures(purser), [CENTS - 300, 0]);
});

test('a refund that overtakes its own payment is taken when the payment is heard of', async (t) => {
  const { purser, stripe } = await openShop(t);
  const id = await begin(purser);
  const paid = stripe.pay(id);
  await deliver(purser, stripe.refund(id, { amount: 1200 }));
  assert.deepEqual(await figures(purser), [0, 0]);
  await deliver(purser, paid);
  assert.deepEqual(await figures(purser), [CENTS - 1200, 0]);
});

test('a refund of somebody else’s payment changes nothing', async (t) => {
  const { purser, stripe, id } = await openPaid(t);
  for (const payment_intent of ['pi_of_others', null])
    assert.equal((await deliver(purser, stripe.refund(id, { payment_intent }))).status, 200);
  assert.deepEqual(await figures(purser), [CENTS, 0]);
});

test('a refund in another currency counts for all that was paid, and for no more', async (t) => {
  const { purser, stripe, id } = await openPaid(t);
  await deliver(purser, stripe.refund(id, { currency: 'jpy', amount: 1 }));
  assert.deepEqual(await figures(purser), [0, 0]);
});

for (const [end, left] of [
  ['won', CENTS],
  ['lost', 0],
  ['warning_closed', CENTS],
  ['prevented', CENTS],
] as const)
  test(`a dispute that ends as ${end}: no new wallets until then, and ${left} cents are there afterwards`, async (t) => {
    const { purser, stripe, id } = await openPaid(t);
    const { token } = await purser.openWallet();
    const dispute = stripe.dispute(id, { status: 'warning_needs_response' });
    await deliver(purser, dispute);
    assert.deepEqual(await figures(purser), [CENTS - 1000, 0], 'an inquiry takes nothing');
    const refused = await wallet(purser);
    assert.deepEqual([refused.status, refused.body.error.code], [403, 'account_suspended']);
    assert.match(refused.body.error.message, /disputed/);
    assert.equal((await purser.chat(token)).status, 200, 'what was set aside before may be spent');
    const shown = await purser.run('account.show', { id: purser.accountId });
    assert.ok(shown.disputed_at);

    purser.clock.advance(5);
    await deliver(purser, stripe.tell('charge.dispute.updated', dispute.data.object, { status: 'needs_response' }));
    assert.deepEqual(await figures(purser), [0, 1000]);
    purser.clock.advance(5);
    await deliver(purser, stripe.tell('charge.dispute.closed', dispute.data.object, { status: end }));
    await deliver(purser, dispute);
    const [available, owed] = await figures(purser);
    assert.deepEqual([available, owed], left ? [CENTS - 1000, 0] : [0, 1000]);
    assert.equal((await purser.run('account.show', { id: purser.accountId })).disputed_at, null);
    assert.equal((await wallet(purser)).status, left ? 201 : 402);
  });

test('account resume lifts what a dispute blocks', async (t) => {
  const { purser, stripe, id } = await openPaid(t);
  await purser.run('account.credit', { id: purser.accountId, cents: 5000 });
  await deliver(purser, stripe.dispute(id));
  assert.equal((await wallet(purser)).status, 403);
  await purser.run('account.resume', { id: purser.accountId });
  assert.equal((await wallet(purser)).status, 201);
  await pass(purser, 400);
  assert.equal((await wallet(purser)).status, 201, 'told once more, it does not block again');
  assert.deepEqual(await figures(purser), [5000 - 200, 0]);
});

test(`a hundred words of refunds and disputes in a random order leave the books right, twice told (PURSER_TEST_SEED=${SEED})`, async (t) => {
  const { purser, stripe } = await openShop(t);
  const ids = [];
  for (let i = 0; i < 10; i++) ids.push(await begin(purser));
  const words = ids.map((id) => stripe.pay(id));
  for (const id of ids) {
    const refund = stripe.refund(id, { amount: 500 });
    purser.clock.advance(2);
    words.push(refund, stripe.tell('refund.updated', refund.data.object, { status: 'succeeded' }));
    const dispute = stripe.dispute(id, { amount: 1000 });
    purser.clock.advance(2);
    words.push(
      dispute,
      stripe.tell('charge.dispute.closed', dispute.data.object, { status: ids.indexOf(id) % 2 ? 'won' : 'lost' }),
    );
  }
  const random = createRandom(SEED);
  const all = [...words, ...words]
    .map((event) => ({ event, at: random.whole(0, 1e9) }))
    .sort((a, b) => a.at - b.at)
    .map(({ event }) => event);
  await Promise.all(all.map((event) => deliver(purser, event)));
  // Each keeps 1500 of 2000; every other lost 1000 more.
  assert.deepEqual(await figures(purser), [10 * 1500 - 5 * 1000, 0]);
});
