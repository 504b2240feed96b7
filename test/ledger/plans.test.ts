import assert from 'node:assert/strict';
import test from 'node:test';
import type { Database as Client } from 'better-sqlite3';
import { Nanos } from '../../src/base/money.ts';
import type { Tx } from '../../src/db/handle.ts';
import {
  dueCheckouts,
  listCheckouts,
  nextDueCheckout,
  openCheckout,
  reportPayment,
} from '../../src/ledger/checkout.ts';
import { figures, moneyOf, moneyOfEach } from '../../src/ledger/figures.ts';
import { openOperations, reservedOperations } from '../../src/ledger/operation.ts';
import { nextDelivery, nextDeliveryAt, nextStaleEvent, waitingCount } from '../../src/ledger/outbox.ts';
import { hasPaymentsSince } from '../../src/ledger/payment-events.ts';
import { liveResourcesBelow, unmarkedResourcesBelow } from '../../src/ledger/resource.ts';
import { liveSnapshotsBelow, unmarkedSnapshotsBelow } from '../../src/ledger/snapshot.ts';
import {
  countWallets,
  dueWallets,
  endingWallets,
  nextExpiry,
  openChildren,
  openWalletsOf,
} from '../../src/ledger/wallet.ts';
import { openBooks } from './books.ts';

/** The plan of the statement that was prepared. */
function planOf(client: Client, statement: string): string {
  const values = Array((statement.match(/\?/g) ?? []).length).fill('x');
  const rows = client.prepare(`explain query plan ${statement}`).all(...values) as { detail: string }[];
  return rows.map((it) => it.detail).join(' | ');
}

test('what the reaper and the budget ask walks what is due, never what exists', async (t) => {
  const books = await openBooks(t);
  const { ledger } = books;
  const accountId = await books.account(1000);
  const parent = await books.wallet(accountId);
  await books.wallet(accountId, { parentId: parent.id, budget: Nanos(1n) });
  const asked: string[] = [];
  const { client } = ledger;
  const prepare = client.prepare.bind(client);
  const { drizzle } = await import('drizzle-orm/better-sqlite3');
  const read = drizzle(client); // A fresh handle: its statements are prepared now.
  client.prepare = ((sql: string) => {
    asked.push(sql);
    return prepare(sql);
  }) as typeof client.prepare;
  openOperations(read, 'wal_x');
  reservedOperations(read);
  dueWallets(read, 1);
  endingWallets(read);
  for (const id of [parent.id, 'wal_x']) {
    liveResourcesBelow(read, id);
    unmarkedResourcesBelow(read, id);
    liveSnapshotsBelow(read, id);
    unmarkedSnapshotsBelow(read, id);
  }
  nextExpiry(read);
  dueCheckouts(read, 1);
  nextDueCheckout(read);
  listCheckouts(read, { trouble: true });
  hasPaymentsSince(read, 1);
  nextDelivery(read, 'ops', 1);
  nextDeliveryAt(read, 'ops', 1);
  waitingCount(read, 'ops');
  nextStaleEvent(read);
  const report = { sessionId: 'cs_x', checkoutId: null, outcome: 'open', currency: null, amountCents: null } as const;
  const order = { accountId, amountCents: 1, fingerprint: Buffer.alloc(32), requestId: 'req_1', expiresAt: 9 };
  await ledger.write(openCheckout, { order: { ...order, idempotencyKey: 'one' }, now: 1 });
  reportPayment.run(read as unknown as Tx, { report: { ...report, paymentIntent: null }, event: undefined, now: 1 });
  client.prepare = prepare as typeof client.prepare;

  const planned = (part: RegExp) => {
    const statement = asked.find((it) => part.test(it));
    assert(statement, `no statement has ${part}`);
    return planOf(client, statement);
  };
  assert.match(planned(/"wallet_id" = \? and "operation"\."state" <> 'settled'\) order by/), /operation_open/);
  assert.match(planned(/"state" = 'reserved'/), /operation_open/);
  assert.match(planned(/"expires_at" <= \?/), /wallet_expiry/);
  assert.match(planned(/"status" in \('closing', 'expired'\)/), /wallet_ending/);
  assert.match(
    planned(/above\(live, id\)/),
    /resource_live.* SCAN above \| SEARCH wallet USING INDEX wallet_id \(id=\?\)/,
  );
  for (const table of ['resource', 'snapshot']) // Those of one wallet, whatever others have.
    for (const part of [
      `"${table}"."ended_at" is null\\)$`,
      `"ended_at" is null and "${table}"."end_wanted" is null\\)`,
    ])
      assert.match(planned(new RegExp(part)), new RegExp(`^SEARCH ${table} USING INDEX ${table}_live_wallet`));
  assert.match(planned(/"checkout"."due_at" <= \?/), /checkout_due/);
  assert.match(planned(/"due_at" is not null/), /checkout_due/);
  assert.match(planned(/"status" in \('mismatch', 'abandoned'\)/), /checkout_trouble/);
  assert.match(planned(/"paid_at" > \?/), /checkout_paid/);
  assert.match(planned(/"session_id" = \?/), /checkout_session/);
  assert.match(planned(/"status" in \('creating', 'open'\)/), /checkout_waiting/);
  assert.match(planned(/"delivery"."due_at" <= \?/), /delivery_waiting .*delivery_order \(receiver=\? AND subject=\?/);
  for (const part of [/"delivery"."due_at" > \?/, /count\(\*\).* from "delivery"/])
    assert.match(planned(part), /^SEARCH delivery USING (COVERING )?INDEX delivery_(waiting|order)/);
  assert.match(planned(/"created_at" from "event"/), /event_created/);
});

test('what asks for open wallets walks none that are closed: they are kept for ever', async (t) => {
  const books = await openBooks(t);
  const { client } = books.ledger;
  const asked: string[] = [];
  const prepare = client.prepare.bind(client);
  const { drizzle } = await import('drizzle-orm/better-sqlite3');
  const read = drizzle(client);
  client.prepare = ((sql: string) => {
    asked.push(sql);
    return prepare(sql);
  }) as typeof client.prepare;
  openChildren(read, 'wal_x');
  openWalletsOf(read, 'acct_x');
  moneyOf(read, { id: 'acct_x', availableCents: 0, reservedCents: 0, spentCents: 0 });
  moneyOfEach(read);
  figures(read);
  for (const status of ['active', 'closing', 'expired'] as const)
    for (const whose of [{ accountId: 'acct_x' }, { parentId: 'wal_x' }])
      countWallets(read, { ...whose, status, now: 1 });
  client.prepare = prepare as typeof client.prepare;
  const ofOpen = asked.filter((it) => /status"? <> 'closed'/.test(it));
  assert.equal(ofOpen.length, 5 + 3 * 2);
  for (const statement of ofOpen) {
    const plan = planOf(client, statement);
    assert.match(plan, /USING (COVERING )?INDEX wallet_open/, statement);
    assert.doesNotMatch(plan, /SCAN wallet(?! USING INDEX wallet_open)|INDEX wallet_(account|parent) /, statement);
  }
});
