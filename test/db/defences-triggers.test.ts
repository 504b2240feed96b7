import assert from 'node:assert/strict';
import test from 'node:test';
import {
  ACCOUNT,
  CHANGE,
  CHECKOUT,
  CLOSED,
  ENDED,
  ENTRY,
  EVENT,
  FUNDING,
  OPERATION,
  openSchema,
  PAID,
  RESOURCE,
  REVERSAL,
  type Row,
  SETTLED,
  SNAPSHOT,
  type Table,
  WALLET,
} from './defences-shared.ts';

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
  ...[
    `update operation set freed = 1`,
    `update operation set state = 'settled', outcome = 'released', charge_nanos = 0, settled_by = 'answer', settled_at = 2`,
    `update operation set state = 'settled', outcome = 'charged', charge_nanos = 5, settled_by = 'answer', settled_at = 2, freed = 1`,
    `update operation set state = 'settled', outcome = 'released', charge_nanos = 0, settled_by = 'answer', settled_at = 2, answered_at = 2, freed = 1`,
  ].map((statement): (typeof FINAL)[number] => [
    'operation_frees_its_key',
    [
      ['wallet', WALLET],
      ['operation', OPERATION],
    ],
    statement,
  ]),
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
  [
    'snapshot_is_never_deleted',
    [
      ['wallet', WALLET],
      ['operation', OPERATION],
      ['resource', RESOURCE],
      ['snapshot', SNAPSHOT],
    ],
    `delete from snapshot`,
  ],
  [
    'snapshot_ends_once',
    [
      ['wallet', WALLET],
      ['operation', OPERATION],
      ['resource', RESOURCE],
      ['snapshot', { ...SNAPSHOT, status: 'failed', ended_at: 2, end_reason: 'lost' }],
    ],
    `update snapshot set status = 'taking', ended_at = null, end_reason = null`,
  ],
  ['wallet_is_never_deleted', [['wallet', WALLET]], `delete from wallet`],
  [
    'wallet_closes_once',
    [['wallet', CLOSED]],
    `update wallet set status = 'active', closed_at = null, returned_cents = null, close_reason = null`,
  ],
  ['wallet_closes_once', [['wallet', CLOSED]], `update wallet set name = 'another'`],
  ['balance_is_never_deleted', [['wallet', WALLET]], `delete from balance`],
  ['balance_is_within_its_budget', [['wallet', WALLET]], `update balance set held_nanos = 6, spent_nanos = 5`],
  [
    'balance_is_within_its_budget',
    [['wallet', { ...WALLET, delegated_nanos: 8 }]],
    `update balance set held_nanos = 2, spent_nanos = 1`,
  ],
  ['balance_is_within_its_budget', [['wallet', CLOSED]], `update balance set spent_nanos = 1`],
  [
    'wallet_covers_its_balance',
    [['wallet', WALLET]],
    `update balance set held_nanos = 10; update wallet set budget_nanos = 9`,
  ],
  [
    'wallet_covers_its_balance',
    [['wallet', WALLET]],
    `update balance set spent_nanos = 3; update wallet set delegated_nanos = 8`,
  ],
  [
    'wallet_covers_its_balance',
    [['wallet', WALLET]],
    `update balance set held_nanos = 1;
      update wallet set status = 'closed', closed_at = 2, returned_cents = 0, close_reason = 'operator'`,
  ],
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
