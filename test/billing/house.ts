import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import type { TestContext } from 'node:test';
import type { Checkout } from '../../src/ledger/checkout.ts';
import { type Answer, handClock, openTestServer, type TestServer, type TestServerOptions } from '../helper/server.ts';
import { type FakeStripe, KEY, openStripe, WEBHOOK_SECRET } from './fake-stripe.ts';

export const CENTS = 2000;

/** A payment provider, and the options of a house whose it is: without credit, by a clock in the test's hand. */
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

/** A house with a payment provider behind it. Its reaper runs when the test says so. */
export async function openShop(t: TestContext, stripeSettings: object = {}, more: TestServerOptions = {}) {
  const { stripe, now, options } = await shopOf(t, stripeSettings);
  const house = await openTestServer(t, { ...options, ...more, settings: { ...options.settings, ...more.settings } });
  await house.app.reaper.stop();
  return { house, stripe, now };
}

/** POST /v1/billing/checkout with a fresh key unless one is given. */
export const ask = (
  house: TestServer,
  body: object = { amount_cents: CENTS },
  key: string = randomUUID(),
): Promise<Answer> => house.ask('POST', '/v1/billing/checkout', { token: house.operatorKey, key, body });

/** A checkout that is open. Answers its id. */
export async function begin(house: TestServer): Promise<string> {
  const answer = await ask(house);
  assert.equal(answer.status, 200, answer.text);
  return answer.body.id;
}

export async function rowOf(house: TestServer, id: string) {
  return house.run('checkout.show', { id });
}

/** Available and owed cents of the account, with books that agree. */
export async function figures(house: TestServer): Promise<[number, number]> {
  assert.deepEqual(house.problems(), []);
  const { available_cents, owed_cents } = await house.run('account.show', { id: house.accountId });
  return [available_cents, owed_cents];
}

/** A pass of the reaper, so much later. */
export async function pass(house: TestServer, seconds: number) {
  house.clock.advance(seconds);
  const reaped = await house.app.reaper.runOnce();
  await house.app.paymentPoller?.pass();
  return reaped;
}

export const events = (house: TestServer, event: string): Record<string, any>[] =>
  house.log.filter((line) => line.includes(`"event":"${event}"`)).map((line) => JSON.parse(line));

export const sessionsOf = (stripe: FakeStripe) =>
  stripe.calls.filter(({ method, path }) => method === 'POST' && path === '/v1/checkout/sessions');
export type { Checkout };
