import type { WalletEntry } from '../../torture/journal.ts';
import { CENT, change, lineOf, moveOf, rechange, testWrongs, walletOf } from './judge-shared.ts';

/** Raises, lowers, extensions, refills and children. */
testWrongs([
  [
    'an acknowledged raise without a row',
    'acknowledged and lost',
    (it) => rechange(it, (all) => all.filter(({ id }) => id !== 'chg_1')),
  ],
  [
    'an acknowledged extension without a row',
    'acknowledged and lost',
    (it) => rechange(it, (all) => all.filter(({ id }) => id !== 'chg_3')),
  ],
  [
    'a refill that was seen to happen and has no row',
    'acknowledged and lost',
    (it) => rechange(it, (all) => all.filter(({ id }) => id !== 'chg_4')),
  ],
  [
    'a raise whose row was taken back',
    'acknowledged and lost',
    ({ books }) => {
      books.changes = books.changes.slice(1);
    },
  ],
  [
    'a key that raised twice',
    'charged twice',
    (it) => rechange(it, (all) => [...all, change('chg_9', 'raise', 50n * CENT)]),
  ],
  [
    'a period that was refilled twice',
    'charged twice',
    (it) => rechange(it, (all) => [...all, change('chg_9', 'refill', CENT, { key: null, period: '2026-01-01' })]),
  ],
  [
    'a raise with two lines in the journal',
    'charged twice',
    (it) => void it.books.entries.push({ ...lineOf(it, 'chg_1', 'wallet:wal_1'), seq: 99 }),
  ],
  [
    'a raise by another amount',
    'charged wrongly',
    (it) => rechange(it, (all) => all.map((row) => (row.id === 'chg_1' ? { ...row, amount: row.amount + CENT } : row))),
  ],
  [
    'a lower by more than was asked for',
    'charged wrongly',
    (it) => rechange(it, (all) => all.map((row) => (row.id === 'chg_2' ? { ...row, amount: -31n * CENT } : row))),
  ],
  [
    'a refused raise that has a row',
    'charged wrongly',
    (it) => {
      moveOf(it, 'raise').outcome = 'refused';
    },
  ],
  ['a change that nobody ordered', 'charged wrongly', ({ journal }) => void journal.moves.shift()],
  [
    'a refill that nobody set',
    'charged wrongly',
    ({ wallet }) => {
      delete wallet.refill;
    },
  ],
  [
    'a child below another wallet',
    'charged wrongly',
    (it) => {
      walletOf(it, 'wal_2').parent = null;
    },
  ],
  [
    'a refused child that is there',
    'charged wrongly',
    ({ journal }) => void Object.assign(journal.wallets[1] as WalletEntry, { outcome: 'refused' }),
  ],
  [
    'a move that nobody knows of',
    'unresolved',
    (it) => {
      moveOf(it, 'lower').outcome = 'unknown';
    },
  ],
  [
    'a wallet that delegated more than it was given',
    'over budget',
    (it) => {
      walletOf(it, 'wal_1').delegated = 230n * CENT;
    },
  ],
  [
    'a parent below nothing at one line of the journal',
    'over budget',
    (it) => {
      lineOf(it, 'wal_2', 'wallet:wal_2').amount = 231n * CENT;
    },
  ],
  [
    'a child that gave back a nano too little',
    'money not conserved',
    (it) => void lineOf(it, 'wal_2', 'wallet:wal_1').amount--,
  ],
  [
    'a raise that moved less than its row says',
    'money not conserved',
    (it) => void lineOf(it, 'chg_1', 'wallet:wal_1').amount--,
  ],
  [
    'a refill to another amount',
    'money not conserved',
    ({ wallet }) => {
      wallet.refill = { cents: 249, isPast: true };
    },
  ],
  [
    'a budget that is not the sum of its moves',
    'money not conserved',
    (it) => {
      walletOf(it, 'wal_1').budget += 1n;
    },
  ],
  [
    'a closed wallet that keeps something',
    'money not conserved',
    (it) => void lineOf(it, 'wal_1', 'account:acct_1').amount--,
  ],
]);
