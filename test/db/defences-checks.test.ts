import assert from 'node:assert/strict';
import test from 'node:test';
import { knownSchema } from '../../src/db/known-schema.ts';
import {
  ACCOUNT,
  CHANGE,
  CHECKOUT,
  CLOSED,
  DELIVERY,
  ENDED,
  ENTRY,
  EVENT,
  FEED,
  FUNDING,
  HASH,
  INSTALLATION,
  KEEP,
  KEY,
  LEARNED,
  OPERATION,
  openSchema,
  PAID,
  PASSKEY,
  PLAIN,
  prepareFor,
  RESOURCE,
  REVERSAL,
  type Row,
  SANDBOX,
  SESSION,
  SETTLED,
  SNAPSHOT,
  type Table,
  WALLET,
} from './defences-shared.ts';

/** For every CHECK the rows that it refuses and no other CHECK does. */
const REFUSED: [check: string, table: Table, row: Row][] = [
  ['event_data', 'event', { ...EVENT, data: '{' }],
  ['delivery_ended', 'delivery', { ...DELIVERY, delivered_at: 2, gave_up_at: 2 }],
  ['account_available', 'account', { ...ACCOUNT, available_cents: -1 }],
  ['account_reserved', 'account', { ...ACCOUNT, reserved_cents: -1 }],
  ['account_spent', 'account', { ...ACCOUNT, spent_cents: -1 }],
  ['account_welcome', 'account', { ...ACCOUNT, welcome_credit_cents: -1 }],
  ['account_owed', 'account', { ...ACCOUNT, owed_cents: -1 }],
  ['key_kind', 'key', { ...KEY, kind: 'session' }],
  ['key_name', 'key', { ...KEY, name: '' }],
  ['key_name', 'key', { ...KEY, name: 'x'.repeat(81) }],
  ['funding_kind', 'funding', { ...FUNDING, kind: 'gift' }],
  ['funding_amount', 'funding', { ...FUNDING, amount_cents: 0 }],
  ['funding_source', 'funding', { ...FUNDING, session_id: 'cs_1' }],
  ['funding_source', 'funding', { ...FUNDING, kind: 'checkout' }],
  ['funding_source', 'funding', { ...FUNDING, kind: 'clawback' }],
  ['checkout_status', 'checkout', { ...CHECKOUT, status: 'lost', due_at: null }],
  ['checkout_amount', 'checkout', { ...CHECKOUT, amount_cents: 0 }],
  ['checkout_taken', 'checkout', { ...PAID, taken_cents: 501 }],
  ['checkout_taken', 'checkout', { ...PAID, taken_cents: -1 }],
  ['checkout_taken_back', 'checkout', { ...CHECKOUT, taken_cents: 1 }],
  ['checkout_paid', 'checkout', { ...PAID, paid_at: null }],
  ['checkout_paid', 'checkout', { ...CHECKOUT, paid_at: 2 }],
  ['checkout_asked', 'checkout', { ...CHECKOUT, due_at: null }],
  ['checkout_asked', 'checkout', { ...PAID, due_at: 2 }],
  ['checkout_known', 'checkout', { ...CHECKOUT, status: 'open' }],
  ['checkout_known', 'checkout', { ...PAID, session_id: null }],
  ['checkout_freed', 'checkout', { ...CHECKOUT, status: 'refused', due_at: null }],
  ['reversal_kind', 'reversal', { ...REVERSAL, kind: 'gift' }],
  ['reversal_state', 'reversal', { ...REVERSAL, state: 'asleep' }],
  ['reversal_amount', 'reversal', { ...REVERSAL, amount_cents: -1 }],
  ['keep_step', 'keep', { ...KEEP, extend_seconds: -1 }],
  ['keep_bought', 'keep', { ...KEEP, bought_seconds: -1 }],
  ['keep_bought', 'keep', { ...KEEP, bought_seconds: 601 }],
  ['keep_ended', 'keep', { ...KEEP, ended_at: 2 }],
  ['keep_ended', 'keep', { ...KEEP, end_reason: 'idle' }],
  ['passkey_name', 'passkey', { ...PASSKEY, name: '' }],
  ['passkey_uses', 'passkey', { ...PASSKEY, use_count: -1 }],
  ['passkey_rule', 'passkey', { ...PASSKEY, subject: 'alice' }],
  ['browser_session_kind', 'browser_session', { ...SESSION, kind: 'guest', account_id: null }],
  ['browser_session_account', 'browser_session', { ...SESSION, account_id: null }],
  ['browser_session_account', 'browser_session', { ...SESSION, kind: 'operator' }],
  ['browser_session_rule', 'browser_session', { ...SESSION, kind: 'operator', account_id: null, subject: 'alice' }],
  ['browser_session_rule', 'browser_session', { ...SESSION, kind: 'operator', account_id: null, rule: HASH }],
  ['browser_session_subject', 'browser_session', { ...SESSION, subject: 'alice', rule: HASH }],
  ['payment_feed_one', 'payment_feed', { ...FEED, id: 2 }],
  ['wallet_status', 'wallet', { ...WALLET, status: 'asleep', close_reason: 'operator' }],
  ['wallet_name', 'wallet', { ...WALLET, name: '' }],
  ['wallet_name', 'wallet', { ...WALLET, name: 'x'.repeat(81) }],
  ['wallet_delegated', 'wallet', { ...WALLET, delegated_nanos: -1 }],
  ['wallet_delegated', 'wallet', { ...WALLET, delegated_nanos: 11 }],
  ['wallet_refilled', 'wallet', { ...WALLET, refill_at: 2 }],
  ['wallet_change_kind', 'wallet_change', { ...CHANGE, kind: 'gift' }],
  ['wallet_change_period', 'wallet_change', { ...CHANGE, period: '2026-11-22' }],
  ['wallet_change_period', 'wallet_change', { ...CHANGE, kind: 'refill' }],
  ['wallet_change_expiry', 'wallet_change', { ...CHANGE, kind: 'extend' }],
  ['wallet_change_expiry', 'wallet_change', { ...CHANGE, expires_at: 2 }],
  ['wallet_change_raise', 'wallet_change', { ...CHANGE, amount_nanos: 0 }],
  ['wallet_change_lower', 'wallet_change', { ...CHANGE, kind: 'lower', amount_nanos: 1 }],
  ['wallet_closed', 'wallet', { ...CLOSED, closed_at: null }],
  ['wallet_closed', 'wallet', { ...WALLET, closed_at: 2 }],
  ['wallet_returned', 'wallet', { ...CLOSED, returned_cents: null }],
  ['wallet_returned', 'wallet', { ...WALLET, returned_cents: 1 }],
  ['wallet_reason', 'wallet', { ...WALLET, close_reason: 'operator' }],
  ['wallet_reason', 'wallet', { ...CLOSED, close_reason: null }],
  ['operation_kind', 'operation', { ...OPERATION, kind: 'gift' }],
  ['operation_state', 'operation', { ...OPERATION, state: 'gone' }],
  ['operation_outcome', 'operation', { ...SETTLED, outcome: 'lost' }],
  ['operation_settled', 'operation', { ...SETTLED, outcome: null }],
  ['operation_settled', 'operation', { ...OPERATION, outcome: 'charged' }],
  ['operation_charge', 'operation', { ...SETTLED, charge_nanos: null }],
  ['operation_charge', 'operation', { ...OPERATION, charge_nanos: 1 }],
  ['operation_decided', 'operation', { ...SETTLED, settled_by: null }],
  ['operation_decided', 'operation', { ...OPERATION, settled_by: 'policy' }],
  ['operation_time', 'operation', { ...SETTLED, settled_at: null }],
  ['operation_time', 'operation', { ...OPERATION, settled_at: 2 }],
  ['operation_doubt', 'operation', { ...OPERATION, state: 'uncertain' }],
  ['operation_hold', 'operation', { ...OPERATION, hold_nanos: -1 }],
  ['learned_bound_permille', 'learned_bound', { ...LEARNED, permille: 999 }],
  ['learned_bound_context', 'learned_bound', { ...LEARNED, context_tokens: -1 }],
  ['sandbox_seconds', 'sandbox', { ...SANDBOX, seconds: 0 }],
  ['snapshot_status', 'snapshot', { ...SNAPSHOT, status: 'kept' }],
  ['snapshot_ended', 'snapshot', { ...SNAPSHOT, ended_at: 2, end_reason: 'lost' }],
  ['snapshot_ended', 'snapshot', { ...SNAPSHOT, status: 'failed', end_reason: 'lost' }],
  ['snapshot_reason', 'snapshot', { ...SNAPSHOT, status: 'failed', ended_at: 2 }],
  ['snapshot_ready', 'snapshot', { ...SNAPSHOT, status: 'ready', size_hundredths: 1 }],
  ['snapshot_ready', 'snapshot', { ...SNAPSHOT, status: 'ready', paid_until: 1 }],
  ['snapshot_deleting', 'snapshot', { ...SNAPSHOT, status: 'deleting' }],
  ['snapshot_size', 'snapshot', { ...SNAPSHOT, size_hundredths: 101 }],
  ['snapshot_size', 'snapshot', { ...SNAPSHOT, size_hundredths: -1 }],
  ['snapshot_days', 'snapshot', { ...SNAPSHOT, days: -1 }],
  ['operation_bound', 'operation', { ...SETTLED, charge_nanos: 11 }],
  ['operation_bound', 'operation', { ...SETTLED, charge_nanos: -1 }],
  ['operation_released', 'operation', { ...SETTLED, outcome: 'released' }],
  ['resource_status', 'resource', { ...RESOURCE, status: 'asleep' }],
  ['resource_ended', 'resource', { ...ENDED, status: 'running', ready_at: 1 }],
  ['resource_ended', 'resource', { ...ENDED, ended_at: null, end_reason: null }],
  ['resource_reason', 'resource', { ...ENDED, end_reason: null }],
  ['resource_reason', 'resource', { ...RESOURCE, end_reason: 'requested' }],
  ['resource_ready', 'resource', { ...RESOURCE, status: 'running' }],
  ['resource_ready', 'resource', { ...RESOURCE, status: 'running', ready_at: 1, ref: null }],
  ['resource_paused', 'resource', { ...RESOURCE, status: 'paused', ready_at: 1, paused_at: 1, seconds_left: 0 }],
  ['resource_paused', 'resource', { ...RESOURCE, status: 'resuming', ready_at: 1, paused_at: null, seconds_left: 9 }],
  [
    'resource_paused',
    'resource',
    { ...RESOURCE, status: 'pausing', ready_at: 1, paused_at: 1, seconds_left: 9, ref: null },
  ],
  ['resource_charged', 'resource', { ...RESOURCE, charged_nanos: -1 }],
  ['resource_seconds', 'resource', { ...RESOURCE, purchased_seconds: 0 }],
  ['entry_amount', 'entry', { ...ENTRY, amount_nanos: 0 }],
  ['entry_books', 'entry', { ...ENTRY, credit: 'a' }],
  ['installation_one', 'installation', { ...INSTALLATION, id: 2 }],
  ['installation_report_only', 'installation', { ...INSTALLATION, report_only_since: 1 }],
  ['installation_report_only', 'installation', { ...INSTALLATION, report_only_reason: 'restored' }],
];

test('a row that is as it should be is accepted by every table', (t) => {
  const { insert } = openSchema(t);
  for (const [table, row] of Object.entries(PLAIN)) if (table !== 'account') insert(table, row);
  insert('wallet', { ...CLOSED, id: 'wal_2', idempotency_key: 'l', token_hash: Buffer.alloc(32) });
  insert('operation', { ...SETTLED, id: 'op_2', key_digest: Buffer.alloc(16) });
});

for (const [check, table, row] of REFUSED)
  test(`${check} refuses ${differences(row, table)}`, (t) => {
    const { client, insert } = openSchema(t);
    prepareFor(table, insert);
    if (table === 'account') client.exec(`update account set id = 'acct_0', name = 'zero'`);
    assert.throws(() => insert(table, row), { message: `CHECK constraint failed: ${check}` });
  });

/** A wallet brings its balance with it, so that these are changed. */
const BALANCES = { balance_held: 'held_nanos = -1', balance_spent: 'spent_nanos = -1' };
for (const [check, change] of Object.entries(BALANCES))
  test(`${check} refuses ${change}`, (t) => {
    const { client, insert } = openSchema(t);
    insert('wallet', WALLET);
    assert.throws(() => client.exec(`update balance set ${change}`), { message: `CHECK constraint failed: ${check}` });
  });

test('every CHECK has a row above that it refuses', () => {
  const named = [...knownSchema().values()].flatMap((sql) => [...sql.matchAll(/CONSTRAINT "(\w+)" CHECK/g)]);
  const refusing = [...REFUSED.map(([check]) => check), ...Object.keys(BALANCES)];
  assert.deepEqual([...new Set(refusing)].sort(), [...new Set(named.map((it) => it[1]))].sort());
});

test('an amount that is not whole, or not a number, is refused', (t) => {
  const { insert } = openSchema(t);
  for (const amount of [0.5, 'ten', '1e-3', HASH])
    assert.throws(
      () => insert('entry', { ...ENTRY, amount_nanos: amount }),
      /cannot store \w+ value in INTEGER column/,
    );
});

/** What a row has otherwise than the plain one of its table. */
function differences(row: Row, table: Table): string {
  const plain = PLAIN[table] as Row;
  const changed = Object.entries(row).filter(([name, value]) => plain[name] !== value);
  return changed.map(([name, value]) => `${name} = ${String(value).slice(0, 20)}`).join(', ');
}
