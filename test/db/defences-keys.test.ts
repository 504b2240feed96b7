import assert from 'node:assert/strict';
import test from 'node:test';
import {
  ACCOUNT,
  CHANGE,
  CHECKOUT,
  EVENT,
  FUNDING,
  HASH,
  KEEP,
  KEY,
  OPERATION,
  openSchema,
  PAID,
  PASSKEY,
  prepareFor,
  REVERSAL,
  type Row,
  SESSION,
  SETTLED,
  SNAPSHOT,
  type Table,
  WALLET,
} from './defences-shared.ts';

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
    'passkey.credential_id',
    'passkey',
    PASSKEY,
    { ...PASSKEY, id: 'pass_2' },
    { ...PASSKEY, id: 'pass_2', credential_id: Buffer.alloc(32) },
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
  [
    'snapshot.tag',
    'snapshot',
    SNAPSHOT,
    { ...SNAPSHOT, id: 'snap_2', operation_id: 'op_2' },
    { ...SNAPSHOT, id: 'snap_2', operation_id: 'op_2', tag: 'purser-snap-2' },
  ],
  [
    'snapshot.operation_id',
    'snapshot',
    SNAPSHOT,
    { ...SNAPSHOT, id: 'snap_2', tag: 'purser-snap-2' },
    { ...SNAPSHOT, id: 'snap_2', tag: 'purser-snap-2', operation_id: 'op_2' },
  ],
  ['key.token_hash', 'key', KEY, { ...KEY, id: 'key_2' }, { ...KEY, id: 'key_2', token_hash: Buffer.alloc(32) }],
];
const OTHER_KEY = Buffer.alloc(16, 2);
const RELEASED: Row = { ...SETTLED, outcome: 'released', charge_nanos: 0, freed: 1 };

for (const [columns, table, first, second, other] of UNIQUE)
  test(`there is one ${columns} only`, (t) => {
    const { insert } = openSchema(t);
    if (table === 'wallet_change' || table === 'keep' || table === 'snapshot') prepareFor(table, insert);
    if (table === 'snapshot') insert('operation', { ...OPERATION, id: 'op_2', key_digest: OTHER_KEY });
    insert(table, first);
    const message = `UNIQUE constraint failed: ${columns}`;
    assert.throws(() => insert(table, second), { message });
    insert(table, other);
  });

for (const [name, row] of Object.entries({
  reserved: OPERATION,
  uncertain: { ...OPERATION, state: 'uncertain', uncertain_at: 2 },
  charged: SETTLED,
  'released after a 200': { ...RELEASED, answered_at: 2, freed: null },
}))
  test(`an operation that is ${name} keeps its idempotency key`, (t) => {
    const { insert } = openSchema(t);
    insert('wallet', WALLET);
    insert('operation', row);
    assert.throws(() => insert('operation', { ...OPERATION, id: 'op_2' }), {
      message: 'UNIQUE constraint failed: operation.key_digest',
    });
    insert('operation', { ...OPERATION, id: 'op_2', key_digest: OTHER_KEY });
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
  assert.throws(() => insert('answer', { number: 9, operation_id: 'op_9', body: HASH, kept_until: 1 }), message);
});
