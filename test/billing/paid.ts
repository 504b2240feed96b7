import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import type { TestContext } from 'node:test';
import type { Checkout } from '../../src/ledger/checkout.ts';
import { type Answer, handClock, openTestServer, type TestServer, type TestServerOptions } from '../helper/server.ts';
import { type FakeStripe, KEY, openStripe, WEBHOOK_SECRET } from './fake-stripe.ts';

export const CENTS = 2000;

/** A payment provider, and the options of a server whose it is: without credit, by a clock in the test's hand. */
export async function shopOf(t: TestContext, stripeSettings: object = {}) {
  const time = handClock();
  const now = () => Math.floor(time.wall() / 1000);
  const stripe = await openStripe(t, now);
  const settings = {
    secret_key: KEY,
    webhook_secrets: [WEBHOOK_SECRET],
    success_url: 'https://agents.example/paid?session={CHECKOUT_SESSION_ID}',
    cancel_url: 'https://agents.example/',
    api_base: stripe.url,
    ...stripeSettings,
  };
  const options = { creditCents: 0, time, settings: { billing: { stripe: settings } } };
  return { stripe, now, options };
}

/** A purser with a payment provider behind it. Its reaper runs when the test says so. */
export async function openShop(t: TestContext, stripeSettings: object = {}, more: TestServerOptions = {}) {
  const { stripe, now, options } = await shopOf(t, stripeSettings);
  const purser = await openTestServer(t, { ...options, ...more, settings: { ...options.settings, ...more.settings } });
  await purser.app.reaper.stop();
  return { purser, stripe, now };
}

/** POST /v1/billing/checkout with a fresh key unless one is given. */
export const ask = (
  purser: TestServer,
  body: object = { amount_cents: CENTS },
  key: string = randomUUID(),
): Promise<Answer> => purser.ask('POST', '/v1/billing/checkout', { token: purser.operatorKey, key, body });

/** A checkout that is open. Answers its id. */
export async function begin(purser: TestServer): Promise<string> {
  const answer = await ask(purser);
  assert.equal(answer.status, 200, answer.text);
  return answer.body.id;
}

export async function rowOf(purser: TestServer, id: string) {
  return purser.run('checkout.show', { id });
}

/** Available and owed cents of the account, with books that agree. */
export async function figures(purser: TestServer): Promise<[number, number]> {
  assert.deepEqual(purser.problems(), []);
  const { available_cents, owed_cents } = await purser.run('account.show', { id: purser.accountId });
  return [available_cents, owed_cents];
}

/** A pass of the reaper, so much later. */
export async function pass(purser: TestServer, seconds: number) {
  purser.clock.advance(seconds);
  const reaped = await purser.app.reaper.runOnce();
  await purser.app.paymentPoller?.pass();
  return reaped;
}

export const events = (purser: TestServer, event: string): Record<string, any>[] =>
  purser.log.filter((line) => line.includes(`"event":"${event}"`)).map((line) => JSON.parse(line));

export const sessionsOf = (stripe: FakeStripe) =>
  stripe.calls.filter(({ method, path }) => method === 'POST' && path === '/v1/checkout/sessions');
export type { Checkout };
