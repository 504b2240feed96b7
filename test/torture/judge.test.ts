import assert from 'node:assert/strict';
import test from 'node:test';
import type { Entry, Operation } from '../../torture/books.ts';
import { FAILURES } from '../../torture/journal.ts';
import { judge } from '../../torture/judge.ts';
import type { Call } from '../../torture/models.ts';
import { call, FLAT, operation, orderOf, rebook, rowOf, testWrongs, well } from './judge-shared.ts';

test('a run in which all is well has no failures', () => {
  const verdict = judge(well());
  for (const name of FAILURES) assert.deepEqual(verdict[name], [], name);
});

test('a stream whose client left is charged what came, and the judge takes the sum that its client was told', () => {
  const run = well();
  Object.assign(rowOf(run, 'op_b'), { settledBy: 'cancelled', route: 'router/chat/completions' });
  assert.deepEqual(Object.values(judge(run)).flat(), []);
});

/** Requests, wallets, credits and leases. */
testWrongs([
  ['an acknowledged answer without a row', 'acknowledged and lost', (it) => rebook(it, (all) => all.slice(1))],
  [
    'a charge that was given back after its answer',
    'acknowledged and lost',
    (it) => rebook(it, ([a, ...rest]) => [{ ...(a as Operation), outcome: 'released', charge: 0n }, ...rest]),
  ],
  [
    'an acknowledged wallet without a row',
    'acknowledged and lost',
    (it) => {
      it.books.wallets = [];
    },
  ],
  [
    'an acknowledged close of a wallet that is open',
    'acknowledged and lost',
    ({ books }) => void Object.assign(books.wallets[0] as object, { status: 'closing' }),
  ],
  ['an acknowledged credit without a row', 'acknowledged and lost', ({ books }) => void books.fundings.pop()],
  [
    'a lease that was paid for and has no row',
    'acknowledged and lost',
    (it) => rebook(it, (all) => all.filter(({ id }) => id !== 'op_d')),
  ],
  [
    'a backup that is no part of the journal',
    'acknowledged and lost',
    ({ books }) => void Object.assign(books.entries[1] as object, { hash: 'another' }),
  ],
  [
    'an answer without a usage that was charged more than its hold',
    'charged wrongly',
    (it) => {
      Object.assign(it.calls.get('op_a') as object, { usage: undefined });
      orderOf(it, 'a').charged = 'estimate';
      rebook(it, ([a, ...rest]) => [{ ...(a as Operation), charge: FLAT + 1n }, ...rest]);
    },
  ],
  [
    'an answer without a usage that was charged less than what was delivered',
    'charged wrongly',
    (it) => {
      Object.assign(it.calls.get('op_a') as object, { usage: undefined });
      orderOf(it, 'a').charged = 'estimate';
      rebook(it, ([a, ...rest]) => [{ ...(a as Operation), charge: FLAT - 1n }, ...rest]);
    },
  ],
  ['a key that was charged twice', 'charged twice', (it) => rebook(it, (all) => [...all, operation('op_e', 'a')])],
  [
    'an operation with two charges in the journal',
    'charged twice',
    ({ books }) =>
      void books.entries.push({ ...(books.entries.find(({ credit }) => credit === 'sales:chat') as Entry), seq: 99 }),
  ],
  [
    'an operation that the model server saw twice',
    'charged twice',
    ({ calls }) => void Object.assign(calls.get('op_a') as object, { seen: 2 }),
  ],
  [
    'an operation that a third server of a pool of two saw',
    'charged twice',
    ({ calls }) => void Object.assign(calls.get('op_a') as object, { seen: 3, refused: 2 }),
  ],
  [
    'an operation without a pool that was asked again after a refusal',
    'charged twice',
    ({ calls }) => void Object.assign(calls.get('op_a') as object, { model: 'free', seen: 2, refused: 1 }),
  ],
  [
    'a key that the model server worked for twice',
    'charged twice',
    ({ calls }) => void (calls as Map<string, Call>).set('op_z', call('b')),
  ],
  [
    'a wallet that was made twice',
    'charged twice',
    ({ books }) => void books.wallets.push({ ...(books.wallets[0] as (typeof books.wallets)[0]), id: 'wal_2' }),
  ],
  [
    'a credit that was booked twice',
    'charged twice',
    ({ books }) => void books.fundings.push({ key: 'invoice', cents: 50n }),
  ],
  [
    'a refused order that was charged',
    'charged wrongly',
    (it) =>
      rebook(it, (all) => all.map((row) => (row.key === 'c' ? { ...row, outcome: 'charged', charge: FLAT } : row))),
  ],
  [
    'an answer in one piece that was cancelled',
    'charged wrongly',
    (it) => void Object.assign(rowOf(it, 'op_b'), { settledBy: 'cancelled' }),
  ],
  [
    'an answer that was charged a nano too much',
    'charged wrongly',
    (it) => {
      rowOf(it, 'op_a').charge = FLAT + 1n;
    },
  ],
  [
    'an answer that cost nothing',
    'charged wrongly',
    ({ calls }) => void Object.assign(calls.get('op_c') as object, { answered: 'whole' }),
  ],
  [
    'an answer of another operation',
    'charged wrongly',
    (it) => {
      orderOf(it, 'a').operationId = 'op_x';
    },
  ],
  ['a charge that nobody ordered', 'charged wrongly', (it) => rebook(it, (all) => [...all, operation('op_e', 'e')])],
  [
    'a charge above its hold',
    'over budget',
    (it) => {
      rowOf(it, 'op_a').hold = FLAT - 1n;
    },
  ],
  [
    'a wallet below nothing at one line of the journal',
    'over budget',
    ({ books }) => void Object.assign(books.entries[1] as object, { amount: 1n }),
  ],
  ['a machine that is left', 'orphans', (it) => void Object.assign(it, { machines: [{ tag: 'tag-1' }] })],
  ['a machine that no row knows', 'orphans', (it) => void Object.assign(it, { machines: [{ tag: 'tag-9' }] })],
  [
    'an order that nobody knows of',
    'unresolved',
    (it) => {
      orderOf(it, 'c').outcome = 'unknown';
    },
  ],
  [
    'an operation that is not settled',
    'unresolved',
    (it) => {
      rowOf(it, 'op_b').state = 'uncertain';
    },
  ],
  [
    'a lease that has not ended',
    'unresolved',
    ({ books }) => void Object.assign(books.resources[0] as object, { ended: null }),
  ],
  [
    'a wallet that says a nano too little',
    'money not conserved',
    ({ wallet }) => {
      wallet.closed.used_usd = '0.035999999';
    },
  ],
  [
    'a cent that is missing from the account',
    'money not conserved',
    ({ books }) => {
      books.account.available -= 1n;
    },
  ],
  [
    'a line that gives back too much',
    'money not conserved',
    ({ books }) =>
      void (books.entries.find(({ cause, credit }) => cause === 'op_c' && credit === 'wallet:wal_1') as Entry).amount++,
  ],
  ['books that `ledger verify` does not like', 'books wrong', ({ books }) => void books.problems.push('exit 1')],
  [
    'what the clients saw on the way',
    'over budget',
    ({ journal }) => void journal.findings.push({ failure: 'over budget', what: 'seen' }),
  ],
]);
