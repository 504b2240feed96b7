import { randomUUID } from 'node:crypto';
import { Nanos } from '../../src/base/money.ts';
import { openCheckout } from '../../src/ledger/checkout.ts';
import { placeHold } from '../../src/ledger/hold.ts';
import { settle } from '../../src/ledger/operation.ts';
import { changeBudget } from '../../src/ledger/wallet-change.ts';
import { writeWith } from '../helper/closures.ts';
import type { TestServer } from '../helper/server.ts';
import { holdOrder } from '../ledger/books.ts';

// Long names and large sums, for pages and terminals of any width.

export const LONG = 'Nightly regression of the retrieval pipeline (staging, eu-west-1)';
/** Each character is as wide as two. */
export const WIDE = 'モデルーの名前はとても長いので、表の幅に収まりません';
export const UNBROKEN = 'retrieval_pipeline_regression_nightly_staging_eu_west_1_blue_green_canary_0001';
/** Nanodollars. */
const FORTUNE = 123_456_789_123_456_789n;
const FORTUNE_COUNT = 5;
const MODEL_COUNT = 40;

/**
 * Adds a wallet with so many requests, the first of which cost nine digits of dollars, wallets with long names, an account, a
 * key and a checkout.
 */
export async function fillWithLong(purser: TestServer, count: number): Promise<void> {
  const { ledger, clock } = purser.app;
  const { accountId } = purser;
  const now = clock.now();
  await purser.run('account.credit', { id: accountId, cents: 90_000_000_000, reason: LONG });
  const { id: walletId } = await purser.openWallet({ name: LONG, expires_in_seconds: 0 });
  for (const name of [WIDE, UNBROKEN]) await purser.openWallet({ name });
  await purser.run('account.create', { name: WIDE });
  await purser.run('key.create', { account: accountId, name: UNBROKEN });
  const rest = { fingerprint: Buffer.alloc(32), requestId: 'req_1' };
  const raise = { walletId, cents: 80_000_000_000, idempotencyKey: null, ...rest };
  await ledger.write(changeBudget, { order: raise, now, blocked: undefined });
  await writeWith(ledger, (tx) => {
    for (let at = 0; at < count; at++) {
      const charge = Nanos(at < FORTUNE_COUNT ? FORTUNE : 123_456n);
      const tags = JSON.stringify({ [LONG.slice(0, 40)]: WIDE });
      const order = holdOrder(walletId, charge, { subject: `${UNBROKEN}-${at % MODEL_COUNT}`, tags });
      settle(tx, placeHold(tx, order, now).id, { kind: 'done', charge, usage: null, answer: null }, 'answer', now);
    }
  });
  const top = { accountId, amountCents: 12_345_678, idempotencyKey: randomUUID(), expiresAt: now + 86_400, ...rest };
  await ledger.write(openCheckout, { order: top, now });
}
