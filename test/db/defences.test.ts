import assert from 'node:assert/strict';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import type { Database as Client } from 'better-sqlite3';
import { knownMigrations } from '../../src/db/migrate.ts';
import { openDatabase } from '../../src/db/open.ts';
import { temporaryDirectory } from '../ledger/books.ts';

type Row = Record<string, string | number | Buffer | null>;
const HASH = Buffer.alloc(32, 1);

/** A row of each table that is as it should be. */
const ACCOUNT: Row = {
  id: 'acct_1',
  name: 'one',
  available_cents: 0,
  reserved_cents: 0,
  spent_cents: 0,
  welcome_credit_cents: 0,
  owed_cents: 0,
  created_at: 1,
};
const KEY: Row = {
  id: 'key_1',
  kind: 'account',
  account_id: 'acct_1',
  name: 'one',
  token_hash: HASH,
  last4: 'abcd',
  minted_by: 'cli',
  created_at: 1,
};
const FUNDING: Row = { id: 'evt_1', account_id: 'acct_1', kind: 'credit', amount_cents: 1, created_at: 1 };
const WALLET: Row = {
  id: 'wal_1',
  account_id: 'acct_1',
  name: 'one',
  status: 'active',
  budget_nanos: 10,
  held_nanos: 0,
  spent_nanos: 0,
  master_key_id: 'mk_1',
  token_hash: HASH,
  token_hint: 'abcd',
  idempotency_key: 'k',
  fingerprint: HASH,
  request_id: 'req_1',
  created_at: 1,
  cleanup_attempts: 0,
};
const CLOSED: Row = { ...WALLET, status: 'closed', closed_at: 2, returned_cents: 0, close_reason: 'operator' };
const OPERATION: Row = {
  id: 'op_1',
  wallet_id: 'wal_1',
  kind: 'chat',
  route: 'chat',
  idempotency_key: 'k',
  fingerprint: HASH,
  request_id: 'req_1',
  state: 'reserved',
  hold_nanos: 10,
  price: '{}',
  subject: 'model',
  created_at: 1,
};
const SETTLED: Row = {
  ...OPERATION,
  state: 'settled',
  outcome: 'charged',
  charge_nanos: 5,
  settled_by: 'answer',
  settled_at: 2,
};
const ENTRY: Row = {
  seq: 1,
  at: 1,
  cause_id: 'x',
  debit: 'a',
  credit: 'b',
  amount_nanos: 1,
  prev_hash: HASH,
  hash: HASH,
};
const INSTALLATION: Row = { id: 1, installation_id: 'inst_1', created_at: 1, master_key_id: 'mk_1' };
const RESOURCE: Row = {
  id: 'res_1',
  wallet_id: 'wal_1',
  operation_id: 'op_1',
  slot: 'provider_one',
  backend: 'container',
  tag: 'purser-1',
  ref: 'one',
  spec: '{}',
  status: 'provisioning',
  price_hourly_nanos: 1,
  charged_nanos: 0,
  purchased_seconds: 60,
  max_seconds: 60,
  created_at: 1,
  ready_by: 2,
  expires_at: 3,
  due_at: 1,
  attempts: 0,
  absent_count: 0,
};
const ENDED: Row = { ...RESOURCE, status: 'stopped', ended_at: 2, end_reason: 'requested' };
const CHECKOUT: Row = {
  id: 'chk_1',
  account_id: 'acct_1',
  amount_cents: 500,
  status: 'creating',
  taken_cents: 0,
  idempotency_key: 'k',
  fingerprint: HASH,
  request_id: 'req_1',
  created_at: 1,
  expires_at: 3,
  due_at: 2,
};
const PAID: Row = { ...CHECKOUT, status: 'paid', session_id: 'cs_1', paid_at: 2, due_at: null };
const REVERSAL: Row = {
  id: 're_1',
  kind: 'refund',
  payment_intent: 'pi_1',
  amount_cents: 5,
  state: 'taken',
  as_of: 1,
  created_at: 1,
};
const LEARNED: Row = {
  upstream: 'local',
  upstream_model: 'chat',
  basis: 'settings',
  permille: 1000,
  context_tokens: 0,
  operation_id: 'op_1',
  learned_at: 1,
};
const CHANGE: Row = { id: 'chg_1', wallet_id: 'wal_1', kind: 'raise', amount_nanos: 1, created_at: 1 };
const FEED: Row = { id: 1, read_to: 1, due_at: 1 };
const EVENT: Row = { seq: 1, id: 'msg_1', type: 'disk.low', subject: 'disk', data: '{}', created_at: 1 };
const DELIVERY: Row = {
  event_seq: 1,
  receiver: 'ops',
  subject: 'disk',
  queued_at: 1,
  delivered_at: null,
  gave_up_at: null,
  due_at: 1,
  attempts: 0,
};
const KEEP: Row = {
  id: 'keep_1',
  wallet_id: 'wal_1',
  resource_id: 'res_1',
  idempotency_key: 'k',
  fingerprint: HASH,
  request_id: 'req_1',
  extend_seconds: 60,
  max_seconds: 600,
  bought_seconds: 0,
  created_at: 1,
};
const SESSION: Row = {
  id: 'ses_1',
  kind: 'account',
  account_id: 'acct_1',
  token_hash: HASH,
  created_at: 1,
  expires_at: 3,
  last_used_at: 1,
};
const PLAIN = {
  checkout: CHECKOUT,
  reversal: REVERSAL,
  payment_feed: FEED,
  account: ACCOUNT,
  key: KEY,
  funding: FUNDING,
  wallet: WALLET,
  wallet_change: CHANGE,
  operation: OPERATION,
  resource: RESOURCE,
  learned_bound: LEARNED,
  entry: ENTRY,
  installation: INSTALLATION,
  event: EVENT,
  delivery: DELIVERY,
  browser_session: SESSION,
  keep: KEEP,
};
type Table = keyof typeof PLAIN;

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
  ['keep_step', 'keep', { ...KEEP, extend_seconds: 0 }],
  ['keep_bought', 'keep', { ...KEEP, bought_seconds: -1 }],
  ['keep_bought', 'keep', { ...KEEP, bought_seconds: 601 }],
  ['keep_ended', 'keep', { ...KEEP, ended_at: 2 }],
  ['keep_ended', 'keep', { ...KEEP, end_reason: 'idle' }],
  ['browser_session_kind', 'browser_session', { ...SESSION, kind: 'guest', account_id: null }],
  ['browser_session_account', 'browser_session', { ...SESSION, account_id: null }],
  ['browser_session_account', 'browser_session', { ...SESSION, kind: 'operator' }],
  ['payment_feed_one', 'payment_feed', { ...FEED, id: 2 }],
  ['wallet_status', 'wallet', { ...WALLET, status: 'asleep', close_reason: 'operator' }],
  ['wallet_name', 'wallet', { ...WALLET, name: '' }],
  ['wallet_name', 'wallet', { ...WALLET, name: 'x'.repeat(81) }],
  ['wallet_held', 'wallet', { ...WALLET, held_nanos: -1 }],
  ['wallet_spent', 'wallet', { ...WALLET, spent_nanos: -1 }],
  ['wallet_budget', 'wallet', { ...WALLET, held_nanos: 6, spent_nanos: 5 }],
  ['wallet_delegated', 'wallet', { ...WALLET, delegated_nanos: -1 }],
  ['wallet_delegated', 'wallet', { ...WALLET, delegated_nanos: 8, held_nanos: 2, spent_nanos: 1 }],
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
  ['wallet_settled', 'wallet', { ...CLOSED, held_nanos: 1 }],
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
  ['resource_charged', 'resource', { ...RESOURCE, charged_nanos: -1 }],
  ['resource_seconds', 'resource', { ...RESOURCE, purchased_seconds: 0 }],
  ['entry_amount', 'entry', { ...ENTRY, amount_nanos: 0 }],
  ['entry_books', 'entry', { ...ENTRY, credit: 'a' }],
  ['installation_one', 'installation', { ...INSTALLATION, id: 2 }],
  ['installation_report_only', 'installation', { ...INSTALLATION, report_only_since: 1 }],
  ['installation_report_only', 'installation', { ...INSTALLATION, report_only_reason: 'restored' }],
];

/** What is final: a statement that the database refuses, on top of these rows. */
const FINAL: [trigger: string, rows: [Table, Row][], statement: string][] = [
  ['entry_is_never_changed', [['entry', ENTRY]], `update entry set amount_nanos = 2`],
  ['entry_is_never_changed', [['entry', ENTRY]], `update entry set seq = 2`],
  ['entry_is_never_deleted', [['entry', ENTRY]], `delete from entry`],
  [
    'entry_is_contiguous',
    [['entry', ENTRY]],
    `insert into entry select 3, at, cause_id, debit, credit, amount_nanos, prev_hash, hash from entry`,
  ],
  [
    'entry_is_contiguous',
    [['entry', ENTRY]],
    `insert or replace into entry select 1, 2, cause_id, debit, credit, amount_nanos, prev_hash, hash from entry`,
  ],
  [
    'operation_is_never_deleted',
    [
      ['wallet', WALLET],
      ['operation', OPERATION],
    ],
    `delete from operation`,
  ],
  [
    'operation_settles_once',
    [
      ['wallet', WALLET],
      ['operation', SETTLED],
    ],
    `update operation set state = 'reserved', outcome = null, charge_nanos = null, settled_by = null, settled_at = null`,
  ],
  [
    'operation_settles_once',
    [
      ['wallet', WALLET],
      ['operation', SETTLED],
    ],
    `update operation set charge_nanos = 4`,
  ],
  [
    'operation_settles_once',
    [
      ['wallet', WALLET],
      ['operation', SETTLED],
    ],
    `update operation set usage = '{}'`,
  ],
  [
    'resource_is_never_deleted',
    [
      ['wallet', WALLET],
      ['operation', OPERATION],
      ['resource', RESOURCE],
    ],
    `delete from resource`,
  ],
  [
    'resource_ends_once',
    [
      ['wallet', WALLET],
      ['operation', OPERATION],
      ['resource', ENDED],
    ],
    `update resource set status = 'running', ended_at = null, end_reason = null, ready_at = 1`,
  ],
  ['wallet_is_never_deleted', [['wallet', WALLET]], `delete from wallet`],
  [
    'wallet_closes_once',
    [['wallet', CLOSED]],
    `update wallet set status = 'active', closed_at = null, returned_cents = null, close_reason = null`,
  ],
  ['wallet_closes_once', [['wallet', CLOSED]], `update wallet set spent_nanos = 1`],
  ['wallet_owner_is_fixed', [['wallet', WALLET]], `update wallet set parent_id = 'wal_1'`],
  [
    'wallet_change_is_never_changed',
    [
      ['wallet', WALLET],
      ['wallet_change', CHANGE],
    ],
    `update wallet_change set amount_nanos = 2`,
  ],
  [
    'wallet_change_is_never_deleted',
    [
      ['wallet', WALLET],
      ['wallet_change', CHANGE],
    ],
    `delete from wallet_change`,
  ],
  [
    'wallet_owner_is_fixed',
    [
      ['wallet', WALLET],
      ['account', { ...ACCOUNT, id: 'acct_2', name: 'two' }],
    ],
    `update wallet set account_id = 'acct_2'`,
  ],
  ['event_is_never_changed', [['event', EVENT]], `update event set data = '[]'`],
  ['checkout_is_never_deleted', [['checkout', CHECKOUT]], `delete from checkout`],
  ['checkout_is_paid_once', [['checkout', PAID]], `update checkout set status = 'expired', paid_at = null`],
  ['checkout_is_paid_once', [['checkout', PAID]], `update checkout set session_id = 'cs_2'`],
  ['checkout_amount_is_fixed', [['checkout', CHECKOUT]], `update checkout set amount_cents = 501`],
  ['reversal_is_never_deleted', [['reversal', REVERSAL]], `delete from reversal`],
  ['funding_is_never_changed', [['funding', FUNDING]], `update funding set amount_cents = 2`],
  ['funding_is_never_deleted', [['funding', FUNDING]], `delete from funding`],
  [
    'account_is_never_deleted',
    [['account', { ...ACCOUNT, id: 'acct_2', name: 'two' }]],
    `delete from account where id = 'acct_2'`,
  ],
];

/** What there may be only one of: the second of these rows is refused, the third is not. */
const UNIQUE: [index: string, table: Table | 'payment_event', first: Row, second: Row, other: Row][] = [
  [
    'account.name',
    'account',
    { ...ACCOUNT, id: 'acct_2', name: 'two' },
    { ...ACCOUNT, id: 'acct_3', name: 'two' },
    { ...ACCOUNT, id: 'acct_3', name: 'three' },
  ],
  [
    'funding.account_id, funding.key',
    'funding',
    { ...FUNDING, key: 'k' },
    { ...FUNDING, id: 'evt_2', key: 'k' },
    { ...FUNDING, id: 'evt_2', key: null },
  ],
  [
    'funding.session_id',
    'funding',
    { ...FUNDING, kind: 'checkout', session_id: 'cs_1' },
    { ...FUNDING, kind: 'checkout', session_id: 'cs_1', id: 'evt_2' },
    { ...FUNDING, kind: 'clawback', session_id: 'cs_1', id: 'evt_2' },
  ],
  [
    'checkout.account_id, checkout.idempotency_key',
    'checkout',
    CHECKOUT,
    { ...CHECKOUT, id: 'chk_2' },
    { ...CHECKOUT, id: 'chk_2', status: 'refused', idempotency_key: null, due_at: null },
  ],
  [
    'checkout.session_id',
    'checkout',
    PAID,
    { ...PAID, id: 'chk_2', idempotency_key: 'l' },
    { ...PAID, id: 'chk_2', idempotency_key: 'l', session_id: 'cs_2' },
  ],
  [
    'checkout.payment_intent',
    'checkout',
    { ...PAID, payment_intent: 'pi_1' },
    { ...PAID, id: 'chk_2', idempotency_key: 'l', session_id: 'cs_2', payment_intent: 'pi_1' },
    { ...PAID, id: 'chk_2', idempotency_key: 'l', session_id: 'cs_2', payment_intent: 'pi_2' },
  ],
  [
    'payment_event.id',
    'payment_event',
    { id: 'evt_1', type: 't', subject: 's', received_at: 1 },
    { id: 'evt_1', type: 'u', subject: 'r', received_at: 2 },
    { id: 'evt_2', type: 't', subject: 's', received_at: 1 },
  ],
  [
    'wallet.account_id, wallet.idempotency_key',
    'wallet',
    WALLET,
    { ...WALLET, id: 'wal_2', token_hash: Buffer.alloc(32) },
    { ...WALLET, id: 'wal_2', token_hash: Buffer.alloc(32), idempotency_key: 'l' },
  ],
  [
    'wallet.token_hash',
    'wallet',
    WALLET,
    { ...WALLET, id: 'wal_2', idempotency_key: 'l' },
    { ...WALLET, id: 'wal_2', idempotency_key: 'l', token_hash: Buffer.alloc(32) },
  ],
  [
    'wallet_change.wallet_id, wallet_change.idempotency_key',
    'wallet_change',
    { ...CHANGE, idempotency_key: 'k' },
    { ...CHANGE, id: 'chg_2', idempotency_key: 'k' },
    { ...CHANGE, id: 'chg_2', idempotency_key: 'l' },
  ],
  [
    'wallet_change.wallet_id, wallet_change.period',
    'wallet_change',
    { ...CHANGE, kind: 'refill', period: '2026-11-22' },
    { ...CHANGE, id: 'chg_2', kind: 'refill', period: '2026-11-22' },
    { ...CHANGE, id: 'chg_2', kind: 'refill', period: '2026-11-23' },
  ],
  ['event.id', 'event', EVENT, { ...EVENT, seq: 2 }, { ...EVENT, seq: 2, id: 'msg_2' }],
  [
    'browser_session.token_hash',
    'browser_session',
    SESSION,
    { ...SESSION, id: 'ses_2' },
    { ...SESSION, id: 'ses_2', token_hash: Buffer.alloc(32) },
  ],
  [
    'keep.wallet_id, keep.idempotency_key',
    'keep',
    { ...KEEP, ended_at: 2, end_reason: 'idle' },
    { ...KEEP, id: 'keep_2' },
    { ...KEEP, id: 'keep_2', idempotency_key: 'l' },
  ],
  [
    'keep.resource_id',
    'keep',
    KEEP,
    { ...KEEP, id: 'keep_2', idempotency_key: 'l' },
    { ...KEEP, id: 'keep_2', idempotency_key: 'l', ended_at: 2, end_reason: 'idle' },
  ],
  [
    'keep.operation_id',
    'keep',
    { ...KEEP, operation_id: 'op_1', ended_at: 2, end_reason: 'replaced' },
    { ...KEEP, id: 'keep_2', idempotency_key: 'l', operation_id: 'op_1' },
    { ...KEEP, id: 'keep_2', idempotency_key: 'l' },
  ],
  ['key.token_hash', 'key', KEY, { ...KEY, id: 'key_2' }, { ...KEY, id: 'key_2', token_hash: Buffer.alloc(32) }],
];
const OTHER = 'operation.wallet_id, operation.route, operation.idempotency_key';
const RELEASED: Row = { ...SETTLED, outcome: 'released', charge_nanos: 0 };

function openSchema(t: TestContext): { client: Client; insert: (table: string, row: Row) => void } {
  const { client } = openDatabase(join(temporaryDirectory(t), 'purser.db'), { migrate: true });
  t.after(() => client.close());
  const insert = (table: string, plain: Row) => {
    const row = table === 'entry' ? plain : { ...plain, seal: 0 }; // Whether it fits is for `verify` to say.
    const names = Object.keys(row);
    client.prepare(`insert into "${table}" (${names}) values (${names.map(() => '?')})`).run(...Object.values(row));
  };
  insert('master_key', { id: 'mk_1', created_at: 1 });
  insert('account', ACCOUNT);
  return { client, insert };
}
/** What a row needs beside the account. */
function prepareFor(table: Table, insert: (table: string, row: Row) => void): void {
  if (['operation', 'resource', 'learned_bound', 'wallet_change', 'keep'].includes(table)) insert('wallet', WALLET);
  if (['resource', 'learned_bound', 'keep'].includes(table)) insert('operation', OPERATION);
  if (table === 'keep') insert('resource', RESOURCE);
  if (table === 'delivery') insert('event', EVENT);
}

test('a row that is as it should be is accepted by every table', (t) => {
  const { insert } = openSchema(t);
  for (const [table, row] of Object.entries(PLAIN)) if (table !== 'account') insert(table, row);
  insert('wallet', { ...CLOSED, id: 'wal_2', idempotency_key: 'l', token_hash: Buffer.alloc(32) });
  insert('operation', { ...SETTLED, id: 'op_2', idempotency_key: 'l' });
});

for (const [check, table, row] of REFUSED)
  test(`${check} refuses ${differences(row, table)}`, (t) => {
    const { client, insert } = openSchema(t);
    prepareFor(table, insert);
    if (table === 'account') client.exec(`update account set id = 'acct_0', name = 'zero'`);
    assert.throws(() => insert(table, row), { message: `CHECK constraint failed: ${check}` });
  });

test('every CHECK of the migrations has a row above that it refuses', () => {
  const sql = knownMigrations()
    .map((it) => it.sql)
    .join('\n');
  const named = [...sql.matchAll(/CONSTRAINT "(\w+)" CHECK/g)].map((it) => it[1] as string);
  assert.deepEqual([...new Set(REFUSED.map(([check]) => check))].sort(), [...new Set(named)].sort());
});

for (const [trigger, rows, statement] of FINAL)
  test(`${trigger}: ${statement.slice(0, 60)} is refused`, (t) => {
    const { client, insert } = openSchema(t);
    for (const [table, row] of rows) insert(table, row);
    const reason = client.prepare('select sql from sqlite_schema where name = ?').pluck().get(trigger) as string;
    const [, sentence = ''] = /RAISE\(ABORT, '(.*)'\)/.exec(reason) ?? [];
    assert.throws(() => client.exec(statement), { message: sentence });
  });

test('every trigger of the migrations that refuses something has a statement above that it refuses', (t) => {
  const { client } = openSchema(t);
  const triggers = client
    .prepare(`select name from sqlite_schema where type = 'trigger' and sql like '%raise(%' order by name`)
    .pluck()
    .all();
  assert.deepEqual([...new Set(FINAL.map(([trigger]) => trigger))].sort(), triggers);
});

for (const [columns, table, first, second, other] of UNIQUE)
  test(`there is one ${columns} only`, (t) => {
    const { insert } = openSchema(t);
    if (table === 'wallet_change' || table === 'keep') prepareFor(table, insert);
    insert(table, first);
    const message = `UNIQUE constraint failed: ${columns}`;
    assert.throws(() => insert(table, second), { message });
    insert(table, other);
  });

for (const [name, row] of Object.entries({
  reserved: OPERATION,
  uncertain: { ...OPERATION, state: 'uncertain', uncertain_at: 2 },
  charged: SETTLED,
}))
  test(`an operation that is ${name} keeps its idempotency key`, (t) => {
    const { insert } = openSchema(t);
    insert('wallet', WALLET);
    insert('operation', row);
    assert.throws(() => insert('operation', { ...OPERATION, id: 'op_2' }), {
      message: `UNIQUE constraint failed: ${OTHER}`,
    });
    insert('operation', { ...OPERATION, id: 'op_2', route: 'other' });
  });

test('an operation that was released frees its idempotency key', (t) => {
  const { insert } = openSchema(t);
  insert('wallet', WALLET);
  insert('operation', RELEASED);
  insert('operation', { ...RELEASED, id: 'op_2' });
  insert('operation', { ...OPERATION, id: 'op_3' });
});

test('a reference that leads nowhere is refused', (t) => {
  const { insert } = openSchema(t);
  const message = { message: 'FOREIGN KEY constraint failed' };
  assert.throws(() => insert('wallet', { ...WALLET, account_id: 'acct_9' }), message);
  assert.throws(() => insert('wallet', { ...WALLET, master_key_id: 'mk_9' }), message);
  assert.throws(() => insert('operation', OPERATION), message);
  assert.throws(() => insert('key', { ...KEY, account_id: 'acct_9' }), message);
  assert.throws(() => insert('funding', { ...FUNDING, account_id: 'acct_9' }), message);
  assert.throws(() => insert('checkout', { ...CHECKOUT, account_id: 'acct_9' }), message);
  assert.throws(() => insert('reversal', { ...REVERSAL, checkout_id: 'chk_9' }), message);
  assert.throws(() => insert('answer', { operation_id: 'op_9', body: HASH, kept_until: 1 }), message);
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
