import { join } from 'node:path';
import type { TestContext } from 'node:test';
import type { Database as Client } from 'better-sqlite3';
import { openDatabase } from '../../src/db/open.ts';
import { temporaryDirectory } from '../ledger/books.ts';

export type Row = Record<string, string | number | Buffer | null>;
export const HASH = Buffer.alloc(32, 1);

/** A row of each table that is as it should be. */
export const ACCOUNT: Row = {
  id: 'acct_1',
  name: 'one',
  available_cents: 0,
  reserved_cents: 0,
  spent_cents: 0,
  welcome_credit_cents: 0,
  owed_cents: 0,
  created_at: 1,
};
export const KEY: Row = {
  id: 'key_1',
  kind: 'account',
  account_id: 'acct_1',
  name: 'one',
  token_hash: HASH,
  last4: 'abcd',
  minted_by: 'cli',
  created_at: 1,
};
export const FUNDING: Row = { id: 'evt_1', account_id: 'acct_1', kind: 'credit', amount_cents: 1, created_at: 1 };
export const WALLET: Row = {
  id: 'wal_1',
  account_id: 'acct_1',
  name: 'one',
  status: 'active',
  budget_nanos: 10,
  master_key_id: 'mk_1',
  token_hash: HASH,
  token_hint: 'abcd',
  idempotency_key: 'k',
  fingerprint: HASH,
  request_id: 'req_1',
  created_at: 1,
  cleanup_attempts: 0,
};
export const CLOSED: Row = { ...WALLET, status: 'closed', closed_at: 2, returned_cents: 0, close_reason: 'operator' };
export const OPERATION: Row = {
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
  key_digest: HASH,
};
export const SETTLED: Row = {
  ...OPERATION,
  state: 'settled',
  outcome: 'charged',
  charge_nanos: 5,
  settled_by: 'answer',
  settled_at: 2,
};
export const ENTRY: Row = {
  seq: 1,
  at: 1,
  cause_id: 'x',
  debit: 'a',
  credit: 'b',
  amount_nanos: 1,
  prev_hash: HASH,
  hash: HASH,
};
export const INSTALLATION: Row = { id: 1, installation_id: 'inst_1', created_at: 1, master_key_id: 'mk_1' };
export const RESOURCE: Row = {
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
export const ENDED: Row = { ...RESOURCE, status: 'stopped', ended_at: 2, end_reason: 'requested' };
export const CHECKOUT: Row = {
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
export const PAID: Row = { ...CHECKOUT, status: 'paid', session_id: 'cs_1', paid_at: 2, due_at: null };
export const REVERSAL: Row = {
  id: 're_1',
  kind: 'refund',
  payment_intent: 'pi_1',
  amount_cents: 5,
  state: 'taken',
  as_of: 1,
  created_at: 1,
};
export const LEARNED: Row = {
  upstream: 'local',
  upstream_model: 'chat',
  basis: 'settings',
  permille: 1000,
  context_tokens: 0,
  operation_id: 'op_1',
  learned_at: 1,
};
export const SANDBOX: Row = { resource_id: 'res_1', template: 'base', metadata: '{}', seconds: 300 };
export const CHANGE: Row = { id: 'chg_1', wallet_id: 'wal_1', kind: 'raise', amount_nanos: 1, created_at: 1 };
export const FEED: Row = { id: 1, read_to: 1, due_at: 1 };
export const EVENT: Row = { seq: 1, id: 'msg_1', type: 'disk.low', subject: 'disk', data: '{}', created_at: 1 };
export const DELIVERY: Row = {
  event_seq: 1,
  receiver: 'ops',
  subject: 'disk',
  queued_at: 1,
  delivered_at: null,
  gave_up_at: null,
  due_at: 1,
  attempts: 0,
};
export const KEEP: Row = {
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
export const SNAPSHOT: Row = {
  id: 'snap_1',
  wallet_id: 'wal_1',
  resource_id: 'res_1',
  operation_id: 'op_1',
  slot: 'provider_one',
  backend: 'container',
  tag: 'purser-snap-1',
  status: 'taking',
  limit_gib: 1,
  price_nanos: 1,
  days: 0,
  created_at: 1,
  due_at: 1,
  attempts: 0,
};
export const SESSION: Row = {
  id: 'ses_1',
  kind: 'account',
  account_id: 'acct_1',
  token_hash: HASH,
  created_at: 1,
  expires_at: 3,
  last_used_at: 1,
};
export const PASSKEY: Row = {
  id: 'pass_1',
  name: 'one',
  origin: 'http://localhost:7420',
  credential_id: HASH,
  public_key: HASH,
  use_count: 0,
  created_at: 1,
};
export const PLAIN = {
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
  passkey: PASSKEY,
  keep: KEEP,
  sandbox: SANDBOX,
  snapshot: SNAPSHOT,
};
export type Table = keyof typeof PLAIN;

type Insert = (table: string, row: Row) => void;

/** Opens a database with the account alone, and returns a function that inserts a row. */
export function openSchema(t: TestContext): { client: Client; insert: Insert } {
  const { client } = openDatabase(join(temporaryDirectory(t), 'purser.db'), { migrate: true });
  t.after(() => client.close());
  return { client, insert: insertInto(client) };
}

/** Adds the account to an empty database, and returns a function that inserts a row. */
export function insertInto(client: Client): Insert {
  const insert = (table: string, plain: Row) => {
    const row = table === 'entry' ? plain : { ...plain, seal: 0 }; // Whether it fits is for `verify` to say.
    const names = Object.keys(row);
    client.prepare(`insert into "${table}" (${names}) values (${names.map(() => '?')})`).run(...Object.values(row));
  };
  insert('master_key', { id: 'mk_1', created_at: 1 });
  insert('account', ACCOUNT);
  return insert;
}

/** What a row needs beside the account. */
export function prepareFor(table: Table, insert: Insert): void {
  if (['operation', 'resource', 'learned_bound', 'wallet_change', 'keep', 'sandbox', 'snapshot'].includes(table))
    insert('wallet', WALLET);
  if (['resource', 'learned_bound', 'keep', 'sandbox', 'snapshot'].includes(table)) insert('operation', OPERATION);
  if (['keep', 'sandbox', 'snapshot'].includes(table)) insert('resource', RESOURCE);
  if (table === 'delivery') insert('event', EVENT);
}
