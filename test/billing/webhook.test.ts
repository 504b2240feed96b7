import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import test from 'node:test';
import { gzipSync } from 'node:zlib';
import { deliver, WEBHOOK_SECRET } from './fake-stripe.ts';
import { ask, begin, CENTS, events, figures, openShop, pass, rowOf } from './paid.ts';

test('a payment that a webhook tells of is credited once, however often, late and disordered it is told', async (t) => {
  const { purser, stripe } = await openShop(t);
  const id = await begin(purser);
  const completed = stripe.pay(id);
  const succeeded = stripe.keepPromise(id);
  const answers = await Promise.all(
    Array.from({ length: 40 }, (_, i) => deliver(purser, i % 2 ? completed : succeeded)),
  );
  for (const it of answers) assert.deepEqual([it.status, it.body], [200, { received: true }]);
  assert.deepEqual(await figures(purser), [CENTS, 0]);
  await pass(purser, 60);
  await purser.reopen();
  await deliver(purser, completed);
  await pass(purser, 600);
  assert.deepEqual(await figures(purser), [CENTS, 0]);
  assert.equal((await rowOf(purser, id)).status, 'paid');
  assert.equal(events(purser, 'checkout.paid').length, 1);
});

test('a webhook and the server’s own question at the same moment are one credit', async (t) => {
  const { purser, stripe } = await openShop(t);
  const ids = await Promise.all(Array.from({ length: 10 }, () => begin(purser)));
  const told = ids.map((id) => stripe.pay(id));
  purser.clock.advance(60);
  await Promise.all([purser.app.reaper.runOnce(), ...told.map((event) => deliver(purser, event))]);
  await purser.app.paymentPoller?.pass();
  assert.deepEqual(await figures(purser), [10 * CENTS, 0]);
});

test('a 200 is given only for what is on disk: after a crash it is there', async (t) => {
  const { purser, stripe } = await openShop(t);
  const id = await begin(purser);
  assert.equal((await deliver(purser, stripe.pay(id))).status, 200);
  await purser.crash(() => {});
  assert.deepEqual(await figures(purser), [CENTS, 0]);
});

test('while the disk is full, a webhook is no 200, and what it told of is credited when it is told again', async (t) => {
  const { purser, stripe } = await openShop(t);
  const event = stripe.pay(await begin(purser));
  const { client } = purser.app.ledger;
  client.exec('VACUUM'); // Free pages would take what a full disk does not.
  client.pragma(`max_page_count = ${client.pragma('page_count', { simple: true })}`);
  let credited = 0;
  const fill = async () => {
    for (; credited < 1000; credited++) await purser.run('account.credit', { id: purser.accountId, cents: 1 });
  };
  await assert.rejects(fill(), /SQLITE_FULL/);
  const refused = await deliver(purser, event);
  assert.deepEqual([refused.status, refused.body.error?.code], [503, 'read_only'], refused.text);
  client.pragma('max_page_count = 1073741823');
  assert.equal((await deliver(purser, event)).status, 200);
  assert.deepEqual(await figures(purser), [credited + CENTS, 0]);
});

test('a signature that is not right is 400, without a word of why, and nothing is credited', async (t) => {
  const { purser, stripe, now } = await openShop(t);
  const id = await begin(purser);
  const event = stripe.pay(id);
  const text = JSON.stringify(event, null, 2);
  const tampered = Buffer.from(text.replace(String(CENTS), String(CENTS * 10)));
  assert.notEqual(tampered.toString(), text);
  const bad = [
    ['another secret', { secret: 'whsec_of_somebody_else_0123456789' }],
    ['a body that was changed', { body: tampered }],
    ['a body that was serialised again', { body: Buffer.from(JSON.stringify(event)) }],
    ['a gzipped body', { body: gzipSync(text), headers: { 'content-encoding': 'gzip' } }],
    ['no body', { body: Buffer.alloc(0) }],
    ['bytes that are no text', { body: Buffer.from([0xff, 0xfe, 0x00]) }],
    ['a signature of ten minutes ago', { at: now() - 600 }],
    ['a signature of 301 seconds ago', { at: now() - 301 }],
    ['a signature of another scheme', { headers: { 'stripe-signature': `t=${now()},v0=${'0'.repeat(64)}` } }],
    ['a signature without a time', { headers: { 'stripe-signature': `v1=${'0'.repeat(64)}` } }],
    ['an empty signature', { headers: { 'stripe-signature': '' } }],
    ['a signature of nonsense', { headers: { 'stripe-signature': ',=,==,v1=,t=' } }],
  ] as const;
  for (const [what, delivery] of bad) {
    const answer = await deliver(purser, event, delivery);
    assert.equal(answer.status, 400, what);
    assert.deepEqual(answer.body.error, { code: 'invalid_request', message: 'The request is not valid.' }, what);
  }
  const unsigned = await purser.ask('POST', '/webhooks/stripe', { body: text });
  assert.equal(unsigned.status, 400);
  assert.deepEqual(await figures(purser), [0, 0]);
  assert.equal(events(purser, 'webhook.refused').length, bad.length + 1);
  assert.equal((await deliver(purser, event, { at: now() - 299 })).status, 200);
  assert.deepEqual(await figures(purser), [CENTS, 0]);
});

test('several secrets are good while one is being replaced', async (t) => {
  const next = 'whsec_the_next_one_0123456789';
  const { purser, stripe } = await openShop(t, { webhook_secrets: [WEBHOOK_SECRET, next] });
  for (const secret of [WEBHOOK_SECRET, next])
    assert.equal((await deliver(purser, stripe.pay(await begin(purser)), { secret })).status, 200);
  assert.deepEqual(await figures(purser), [2 * CENTS, 0]);
});

test('an event of the other mode is refused: test money is not real money', async (t) => {
  const { purser, stripe } = await openShop(t);
  const id = await begin(purser);
  assert.equal((await deliver(purser, { ...stripe.pay(id), livemode: true })).status, 400);
  const live = await openShop(t, { secret_key: 'sk_live_0123456789' });
  assert.equal((await deliver(live.purser, { ...stripe.pay(id), livemode: false })).status, 400);
  assert.deepEqual(await figures(purser), [0, 0]);
});

test('what does not concern us is 200 and leaves nothing behind', async (t) => {
  const { purser, stripe } = await openShop(t);
  const id = await begin(purser);
  const session = stripe.session(id);
  const { client } = purser.app.ledger;
  const kept = () => client.prepare('select count(*) from payment_event').pluck().get();
  for (const event of [
    stripe.tell('customer.created', { id: 'cus_1', object: 'customer' }),
    stripe.tell('charge.refunded', { id: 'ch_1', object: 'charge', amount_refunded: CENTS }),
    stripe.tell('checkout.session.completed', {
      ...session,
      id: 'cs_foreign',
      client_reference_id: 'order-17',
      metadata: {},
      payment_status: 'paid',
      status: 'complete',
    }),
    stripe.tell('checkout.session.completed', {
      ...session,
      id: 'cs_foreign',
      client_reference_id: null,
      metadata: null,
      payment_status: 'paid',
      status: 'complete',
    }),
    stripe.tell('__proto__', { id: 'x' }),
    stripe.tell('constructor', { id: 'x' }),
  ])
    assert.equal((await deliver(purser, event)).status, 200, event.type);
  assert.deepEqual(await figures(purser), [0, 0]);
  assert.equal(kept(), 0n);
  assert.equal(events(purser, 'checkout.unknown').length, 0);
});

test('an event that is signed, concerns us, and is not as documented is no 200: it comes again, and the log has it', async (t) => {
  const { purser, stripe } = await openShop(t);
  const session = stripe.session(await begin(purser));
  for (const object of [{ ...session, payment_status: 7 }, { ...session, amount_total: 'much' }, { id: session.id }]) {
    const answer = await deliver(purser, stripe.tell('checkout.session.completed', object));
    assert.deepEqual([answer.status, answer.body.error.code], [500, 'internal_error']);
  }
  assert.match(purser.log.join(''), /checkout\.session\.completed is not as it is documented \(payment_status\)/);
  assert.ok(!purser.log.join('').includes('payer@example.com'));
  assert.deepEqual(await figures(purser), [0, 0]);
});

for (const [what, change] of [
  ['a cent less', { amount_total: CENTS - 1 }],
  ['a hundred times as much', { amount_total: CENTS * 100 }],
  ['another currency', { currency: 'eur' }],
  ['nothing, by a coupon', { amount_total: 0, payment_status: 'no_payment_required' }],
] as const)
  test(`a session that was paid with ${what} is not credited, and is seen`, async (t) => {
    const { purser, stripe } = await openShop(t);
    const id = await begin(purser);
    assert.equal((await deliver(purser, stripe.pay(id, change))).status, 200);
    await pass(purser, 600);
    assert.deepEqual(await figures(purser), [0, 0]);
    const [logged] = events(purser, 'checkout.mismatch');
    assert.deepEqual([logged?.level, logged?.checkout], [50, id]);
    const { checkouts } = await purser.run('checkout.list', { trouble: true });
    assert.deepEqual(
      checkouts.map((it) => [it.id, it.status]),
      [[id, 'mismatch']],
    );
    const metrics = await purser.app.events.registry.metrics();
    assert.match(metrics, /purser_checkouts_total\{event="mismatch"\} 1/);
  });

test('the amount is that of our own row: a session is credited with what was asked for, and never with what it says', async (t) => {
  const { purser, stripe } = await openShop(t);
  const small = (await ask(purser, { amount_cents: 500 })).body.id;
  await deliver(purser, stripe.pay(small, { metadata: { checkout_id: 'chk_x', amount_cents: '100000' } }));
  assert.deepEqual(await figures(purser), [500, 0]);
});

test('a delayed payment is credited when it has come, and not when it fails', async (t) => {
  const { purser, stripe } = await openShop(t);
  const [good, bad] = [await begin(purser), await begin(purser)];
  for (const id of [good, bad]) {
    await deliver(purser, stripe.promise(id));
    assert.equal((await rowOf(purser, id)).status, 'pending');
  }
  assert.deepEqual(await figures(purser), [0, 0]);
  await deliver(purser, stripe.keepPromise(good));
  await deliver(purser, stripe.breakPromise(bad));
  assert.deepEqual([(await rowOf(purser, good)).status, (await rowOf(purser, bad)).status], ['paid', 'failed']);
  assert.deepEqual(await figures(purser), [CENTS, 0]);
});

test('in the wrong order it ends the same', async (t) => {
  const { purser, stripe } = await openShop(t);
  const [good, bad] = [await begin(purser), await begin(purser)];
  const told = [stripe.promise(good), stripe.keepPromise(good), stripe.promise(bad), stripe.breakPromise(bad)];
  for (const event of told.reverse()) await deliver(purser, event);
  assert.deepEqual([(await rowOf(purser, good)).status, (await rowOf(purser, bad)).status], ['paid', 'failed']);
  assert.deepEqual(await figures(purser), [CENTS, 0]);
});

test('a session that expired is so; if it was paid all the same, that counts', async (t) => {
  const { purser, stripe } = await openShop(t);
  const id = await begin(purser);
  await deliver(purser, stripe.expire(id));
  assert.deepEqual([(await rowOf(purser, id)).status, (await rowOf(purser, id)).due_at], ['expired', null]);
  await deliver(purser, stripe.pay(id));
  assert.deepEqual(await figures(purser), [CENTS, 0]);
});

test('a reference that a payer can set himself brings no credit', async (t) => {
  const { purser, stripe } = await openShop(t);
  const key = randomUUID();
  stripe.faults = [{ kind: 'status', status: 500 }];
  await ask(purser, { amount_cents: CENTS }, key);
  const [row] = (await purser.run('checkout.list', {})).checkouts;
  const paid = { status: 'complete', payment_status: 'paid', currency: 'usd', amount_total: CENTS };
  const link = { id: 'cs_link', object: 'checkout.session', client_reference_id: row?.id, metadata: {}, ...paid };
  await deliver(purser, stripe.tell('checkout.session.completed', link));
  assert.deepEqual(await figures(purser), [0, 0]);
});

test('a payment of this installation that its books do not know is an error that names it, and 200', async (t) => {
  const { purser, stripe } = await openShop(t);
  const id = await begin(purser);
  const event = stripe.pay(id);
  const metadata = { ...event.data.object.metadata, checkout_id: 'chk_lost' };
  event.data.object = { ...event.data.object, id: 'cs_lost', metadata };
  assert.equal((await deliver(purser, event)).status, 200);
  const [logged] = events(purser, 'checkout.unknown');
  assert.deepEqual(
    [logged?.level, logged?.session, logged?.account, logged?.cents],
    [50, 'cs_lost', purser.accountId, CENTS],
  );
  assert.deepEqual(await figures(purser), [0, 0]);
});

test('a webhook is POST alone, of a bounded size, and not many in a minute', async (t) => {
  const { purser, stripe } = await openShop(t);
  const get = await purser.ask('GET', '/webhooks/stripe');
  assert.deepEqual([get.status, get.headers.allow], [405, 'POST']);
  const large = await deliver(purser, { padding: 'x'.repeat(300_000) });
  assert.equal(large.status, 413);
  const event = stripe.pay(await begin(purser));
  const limited = [];
  for (let i = 0; i < 14; i++) {
    const wrong = { secret: 'whsec_wrong_0123456789' };
    const answers = await Promise.all(Array.from({ length: 50 }, () => deliver(purser, event, wrong)));
    limited.push(...answers.filter((it) => it.status === 429));
  }
  assert.ok(limited.length > 0);
  for (const it of limited) assert.ok(Number(it.headers['retry-after']) > 0);
});

test('books that are not served take no webhook: it comes again', async (t) => {
  const { purser, stripe } = await openShop(t);
  const event = stripe.pay(await begin(purser));
  purser.app.health.fault = 'a test';
  const answer = await deliver(purser, event);
  assert.deepEqual([answer.status, answer.body.error.code], [503, 'read_only']);
  purser.app.health.fault = undefined;
  assert.equal((await deliver(purser, event)).status, 200);
});

test('without a secret there is no such path', async (t) => {
  const { purser, stripe } = await openShop(t, { webhook_secrets: [] });
  const answer = await deliver(purser, stripe.pay(await begin(purser)));
  assert.deepEqual([answer.status, answer.body.error.code], [404, 'not_found']);
});
