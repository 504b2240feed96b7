import { randomUUID } from 'node:crypto';
import type { TestContext } from 'node:test';
import { deliver } from './fake-stripe.ts';
import { begin, openShop } from './paid.ts';

/** A shop in which a checkout was paid. */
export async function openPaid(t: TestContext) {
  const { purser, stripe, now } = await openShop(t);
  const id = await begin(purser);
  await deliver(purser, stripe.pay(id));
  return { purser, stripe, now, id };
}

export const wallet = (purser: Awaited<ReturnType<typeof openPaid>>['purser'], budget_cents = 100) =>
  purser.ask('POST', '/v1/wallets', {
    token: purser.accountKey,
    key: randomUUID(),
    body: { name: 'w', budget_cents, expires_in_seconds: 3600 },
  });
