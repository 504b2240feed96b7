import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { checkouts } from '../../src/db/schema.ts';
import type { Checkout } from '../../src/ledger/checkout.ts';
import { AUDIENCE, openIssuer } from '../access/issuer.ts';
import { holdTimeouts } from '../helper/held-timeouts.ts';
import { until } from '../helper/waiting.ts';
import { inWrongFuture } from '../helper/wrong-future.ts';
import { deliver, type Fault, KEY, WEBHOOK_SECRET } from './fake-stripe.ts';
import { ask, begin, CENTS, events, figures, openShop, pass, rowOf, sessionsOf } from './paid.ts';

test('a checkout is a session to pay at; the same key is the same one, another body a conflict', async (t) => {
  const { purser, stripe, now } = await openShop(t);
  const key = randomUUID();
  const first = await ask(purser, { amount_cents: CENTS }, key);
  assert.equal(first.status, 200, first.text);
  const { id, url } = first.body;
  assert.match(id, /^chk_[0-9a-z]{26}$/);
  assert.equal(url, stripe.session(id).url);
  assert.deepEqual(first.body, { id, url, status: 'open', amount_cents: CENTS, expires_at: now() + 3 * 3600 });
  const again = await ask(purser, { amount_cents: CENTS }, key);
  assert.deepEqual(again.body, first.body);
  assert.equal(again.headers['idempotent-replayed'], 'true');
  const other = await ask(purser, { amount_cents: CENTS + 1 }, key);
  assert.deepEqual([other.status, other.body.error.code], [409, 'idempotency_conflict']);
  assert.notEqual((await ask(purser)).body.id, id);
  assert.equal(stripe.sessions.size, 2);
});

test('Stripe is told the amount, whose it is, and nothing about this machine', async (t) => {
  const { purser, stripe } = await openShop(t);
  const id = await begin(purser);
  const [call] = sessionsOf(stripe);
  assert(call);
  assert.deepEqual(Object.fromEntries(call.params), {
    mode: 'payment',
    client_reference_id: id,
    'metadata[checkout_id]': id,
    'metadata[account_id]': purser.accountId,
    'metadata[installation_id]': purser.app.installationId,
    'payment_intent_data[metadata][checkout_id]': id,
    'payment_intent_data[metadata][account_id]': purser.accountId,
    'payment_intent_data[metadata][installation_id]': purser.app.installationId,
    'line_items[0][quantity]': '1',
    'line_items[0][price_data][currency]': 'usd',
    'line_items[0][price_data][unit_amount]': String(CENTS),
    'line_items[0][price_data][product_data][name]': 'Prepaid credit',
    'adaptive_pricing[enabled]': 'false',
    expires_at: call.params.get('expires_at'),
    success_url: 'https://agents.example/paid?session={CHECKOUT_SESSION_ID}',
    cancel_url: 'https://agents.example/',
  });
  assert.equal(call.key, id);
  const { host: _, connection: __, ...headers } = call.headers;
  assert.deepEqual(Object.keys(headers).sort(), [
    'accept',
    'authorization',
    'content-length',
    'content-type',
    'idempotency-key',
    'stripe-version',
    'user-agent',
  ]);
  assert.equal(headers['user-agent'], 'purser');
});

for (const [what, body] of [
  ['499 cents', { amount_cents: 499 }],
  ['100,001 cents', { amount_cents: 100_001 }],
  ['half a cent', { amount_cents: 500.5 }],
  ['a text', { amount_cents: '500' }],
  ['no amount', {}],
] as const)
  test(`a checkout of ${what} is 400, and nobody outside hears of it`, async (t) => {
    const { purser, stripe } = await openShop(t);
    const answer = await ask(purser, body);
    assert.deepEqual([answer.status, answer.body.error.code], [400, 'invalid_request'], answer.text);
    assert.match(answer.body.error.message, /amount_cents/);
    assert.equal(stripe.calls.length, 0);
  });

test('500 and 100,000 cents are taken; a key is required; an account key is not enough', async (t) => {
  const { purser } = await openShop(t);
  assert.equal((await ask(purser, { amount_cents: 500 })).status, 200);
  assert.equal((await ask(purser, { amount_cents: 100_000 })).status, 200);
  const body = { amount_cents: CENTS };
  const keyless = await purser.ask('POST', '/v1/billing/checkout', { token: purser.operatorKey, body });
  assert.equal(keyless.body.error.code, 'idempotency_key_required');
  const account = await purser.ask('POST', '/v1/billing/checkout', { token: purser.accountKey, key: 'k', body });
  assert.deepEqual([account.status, account.body.error.code], [403, 'wrong_token_scope']);
});

test('whoever is signed in tops up an account of their own', async (t) => {
  const issuer = await openIssuer(t, () => 0); // Times are given below, by the house's own clock.
  const identity = { issuer: issuer.url, audience: AUDIENCE };
  const { purser, stripe, now } = await openShop(t, {}, { settings: { identity } });
  const token = await issuer.token({ exp: now() + 300, iat: now() });
  const body = { amount_cents: CENTS };
  const { status, body: checkout } = await purser.ask('POST', '/v1/billing/checkout', { token, key: 'k', body });
  assert.equal(status, 200);
  await deliver(purser, stripe.pay(checkout.id));
  assert.equal((await purser.ask('GET', '/v1/account', { token })).body.available_cents, CENTS);
  assert.deepEqual(await figures(purser), [0, 0], 'the default account has none of it');
});

const UNKNOWN: [what: string, fault: Fault][] = [
  ['resets the connection after accepting', { kind: 'reset', accepted: true }],
  ['resets the connection before', { kind: 'reset' }],
  ['answers 500 after accepting', { kind: 'status', status: 500, accepted: true }],
  ['answers 500 without accepting', { kind: 'status', status: 500 }],
  ['answers 502', { kind: 'status', status: 502, accepted: true }],
  ['breaks off in the middle of its answer', { kind: 'half', accepted: true }],
  ['answers with a page of a proxy', { kind: 'garbage', accepted: true }],
  [
    'says that the key is in use',
    { kind: 'status', status: 409, error: { type: 'invalid_request_error', code: 'idempotency_key_in_use' } },
  ],
  [
    'says that the key was used for something else',
    { kind: 'status', status: 400, error: { type: 'idempotency_error' } },
  ],
];
for (const [what, fault] of UNKNOWN)
  test(`when Stripe ${what}, nobody knows: the same key asks for the same session, and there is one`, async (t) => {
    const { purser, stripe } = await openShop(t);
    const key = randomUUID();
    stripe.faults = [fault];
    const answer = await ask(purser, { amount_cents: CENTS }, key);
    assert.deepEqual([answer.status, answer.body.error.code], [503, 'operation_uncertain'], answer.text);
    assert.ok(Number(answer.headers['retry-after']) > 0);
    const again = await ask(purser, { amount_cents: CENTS }, key);
    const isLost = fault.kind === 'status' && fault.status === 500 && !fault.accepted;
    // Stripe repeats its own failure to the same key: then nobody will ever know, and nobody can pay.
    if (isLost) return assert.equal(again.body.error.code, 'operation_uncertain');
    assert.equal(again.status, 200, again.text);
    assert.equal(stripe.sessions.size, 1);
    assert.equal(again.body.url, stripe.session(again.body.id).url);
    assert.deepEqual(
      sessionsOf(stripe).map((it) => it.key),
      sessionsOf(stripe).map(() => again.body.id),
    );
  });

test('an answer that does not come is given up after its time, and asked for again by the same key', async (t) => {
  const { purser, stripe } = await openShop(t);
  const key = randomUUID();
  stripe.faults = [{ kind: 'hang', accepted: true }];
  const limits = holdTimeouts(t, 10_000);
  const asked = ask(purser, { amount_cents: CENTS }, key);
  await limits.set(1);
  await until('Stripe has heard of it', () => stripe.sessions.size === 1);
  limits.expire();
  const answer = await asked;
  assert.equal(answer.body.error.code, 'operation_uncertain', answer.text);
  assert.equal((await ask(purser, { amount_cents: CENTS }, key)).status, 200);
  assert.equal(stripe.sessions.size, 1);
});

for (const [status, error] of [
  [400, { type: 'invalid_request_error', message: `success_url of ${KEY} is no address` }],
  [401, { type: 'invalid_request_error', message: `Invalid API Key provided: ${KEY}` }],
  [402, { type: 'card_error' }],
  [403, { type: 'invalid_request_error', message: 'The key does not have the permission.' }],
  [404, { type: 'invalid_request_error' }],
  [429, { type: 'invalid_request_error', code: 'rate_limit' }],
] as const)
  test(`Stripe's ${status} is a clear no: nothing was made, the key is free, and the log has the reason without the key`, async (t) => {
    const { purser, stripe } = await openShop(t);
    const key = randomUUID();
    stripe.faults = [{ kind: 'status', status, error }];
    const answer = await ask(purser, { amount_cents: CENTS }, key);
    assert.deepEqual([answer.status, answer.body.error.code], [503, 'provider_unavailable'], answer.text);
    assert.doesNotMatch(answer.text, /stripe|sk_test/i);
    const [logged] = events(purser, 'checkout.refused');
    assert.match(logged?.reason, new RegExp(`^${status} `));
    assert.ok(!purser.log.join('').includes(KEY));
    assert.equal((await ask(purser, { amount_cents: CENTS + 1 }, key)).status, 200, 'with another body too');
    assert.equal(stripe.sessions.size, 1);
  });

test('a Stripe that cannot be reached is a clear no', async (t) => {
  const { purser } = await openShop(t, { api_base: 'http://127.0.0.1:1' });
  const key = randomUUID();
  for (let i = 0; i < 2; i++) {
    const answer = await ask(purser, { amount_cents: CENTS }, key);
    assert.equal(answer.body.error.code, 'provider_unavailable', answer.text);
  }
  assert.equal((await purser.run('checkout.list', {})).checkouts.length, 2);
});

test('many with the same key at once are one session, and every one is answered', async (t) => {
  const { purser, stripe } = await openShop(t);
  const key = randomUUID();
  const answers = await Promise.all(Array.from({ length: 50 }, () => ask(purser, { amount_cents: CENTS }, key)));
  assert.equal(new Set(answers.map((it) => it.text)).size, 1);
  assert.equal(answers[0]?.status, 200);
  assert.equal(answers.filter((it) => it.headers['idempotent-replayed']).length, 49);
  assert.equal(sessionsOf(stripe).length, 1);
});

test('a process that dies while it asks leaves a row, and the same key finds what it had made', async (t) => {
  const { purser, stripe } = await openShop(t);
  const key = randomUUID();
  stripe.faults = [{ kind: 'hang', accepted: true }];
  const lost = ask(purser, { amount_cents: CENTS }, key).catch(() => undefined);
  await stripe.arrived(1);
  await purser.crash(() => stripe.release());
  const again = await ask(purser, { amount_cents: CENTS }, key);
  assert.equal(again.status, 200, again.text);
  assert.equal(stripe.sessions.size, 1);
  stripe.release();
  await lost;
});

test('a server that stops while it asks answers 503, and the next one goes on', async (t) => {
  const { purser, stripe } = await openShop(t, {}, { settings: { drain_seconds: 0 } });
  const key = randomUUID();
  stripe.faults = [{ kind: 'hang', accepted: true }];
  const cut = ask(purser, { amount_cents: CENTS }, key);
  await stripe.arrived(1);
  await purser.reopen();
  assert.equal((await cut).body.error.code, 'operation_uncertain');
  assert.equal((await ask(purser, { amount_cents: CENTS }, key)).status, 200);
  assert.equal(stripe.sessions.size, 1);
});

test('an attempt whose outcome nobody ever learned ends as expired, and its key says so', async (t) => {
  const { purser, stripe } = await openShop(t);
  const key = randomUUID();
  stripe.faults = [{ kind: 'status', status: 500 }];
  await ask(purser, { amount_cents: CENTS }, key);
  purser.clock.advance(3 * 3600);
  await purser.app.reaper.runOnce();
  const answer = await ask(purser, { amount_cents: CENTS }, key);
  assert.deepEqual([answer.status, answer.body.status, answer.body.url], [200, 'expired', null]);
});

test('the twenty-first checkout that waits to be paid is 429', async (t) => {
  const { purser, stripe } = await openShop(t);
  for (let i = 0; i < 20; i++) await begin(purser);
  const answer = await ask(purser);
  assert.deepEqual([answer.status, answer.body.error.code], [429, 'rate_limited']);
  assert.ok(Number(answer.headers['retry-after']) > 0);
  assert.equal(sessionsOf(stripe).length, 20);
});

test('a suspended account may pay, and a frozen installation takes money', async (t) => {
  const { purser } = await openShop(t);
  await purser.run('account.suspend', { id: purser.accountId });
  await purser.run('freeze', {});
  await begin(purser);
});

test('without a payment provider it is 501, after everything that is wrong with the request; a replay needs none', async (t) => {
  const { purser } = await openShop(t);
  const key = randomUUID();
  const made = (await ask(purser, { amount_cents: CENTS }, key)).body;
  const file = join(purser.directory, 'purser.yaml');
  writeFileSync(file, readFileSync(file, 'utf8').replace(/^billing:\n(?: .*\n)+/m, ''));
  await purser.reopen();
  assert.equal(purser.app.payments, undefined);
  assert.deepEqual((await ask(purser, { amount_cents: CENTS }, key)).body, made);
  assert.equal((await ask(purser, { amount_cents: CENTS + 1 }, key)).body.error.code, 'idempotency_conflict');
  const answer = await ask(purser);
  assert.deepEqual([answer.status, answer.body.error.code], [501, 'billing_not_configured']);
  assert.equal((await purser.ask('POST', '/webhooks/stripe', { body: '{}' })).status, 404);
  await purser.app.reaper.runOnce();
});

test('past its end a checkout shows no address any more', async (t) => {
  const { purser } = await openShop(t);
  const key = randomUUID();
  await ask(purser, { amount_cents: CENTS }, key);
  purser.clock.advance(3 * 3600);
  const { status, url } = (await ask(purser, { amount_cents: CENTS }, key)).body;
  assert.deepEqual([status, url], ['expired', null]);
});

test('nothing of the payer and no key is on disk or in the log', async (t) => {
  const { purser, stripe } = await openShop(t);
  const id = await begin(purser);
  stripe.pay(id);
  purser.clock.advance(60);
  await purser.app.reaper.runOnce();
  assert.equal((await rowOf(purser, id)).status, 'paid');
  const files = readdirSync(purser.directory).filter((name) => /^purser\.db/.test(name));
  const places = Buffer.concat([
    ...files.map((name) => readFileSync(join(purser.directory, name))),
    Buffer.from(purser.log.join('')),
  ]);
  assert.ok(places.includes(id));
  for (const secret of [KEY, WEBHOOK_SECRET, 'payer@example.com', 'P. Ayer'])
    assert.equal(places.includes(secret), false, secret);
  assert.deepEqual(await figures(purser), [CENTS, 0]);
});

test('a checkout of a wrong future expires as long after the clock is right as it could be paid', async (t) => {
  const { purser, stripe } = await openShop(t);
  await inWrongFuture(purser, async () => {
    await purser.app.reaper.stop();
    stripe.down = { kind: 'reset' };
    assert.equal((await ask(purser)).body.error.code, 'operation_uncertain');
    stripe.down = undefined;
  });
  const row = () => purser.app.ledger.read.select().from(checkouts).get() as Checkout;
  assert.deepEqual([row().status, row().dueAt], ['creating', row().expiresAt]);
  assert.ok(row().expiresAt <= purser.app.clock.now() + 3 * 3600);
  await pass(purser, 3 * 3600);
  assert.equal(row().status, 'expired');
});
