import assert from 'node:assert/strict';
import test from 'node:test';
import type { Entry, Operation } from '../../torture/books.ts';
import type { Failure, OrderEntry, WalletEntry } from '../../torture/journal.ts';
import { type Evidence, judge } from '../../torture/judge.ts';
import type { Call } from '../../torture/models.ts';
import type { MoveEntry } from '../../torture/move.ts';

export const CENT = 10_000_000n;
export const FLAT = CENT; // One request of the model `flat`.
const LEASE = 6_000_000n;

/** Returns an operation that was charged for an answer of the model `flat`. */
export const operation = (id: string, key: string, more: Partial<Operation> = {}): Operation => ({
  id,
  wallet: 'wal_1',
  kind: 'chat',
  route: 'chat/completions',
  key,
  state: 'settled',
  outcome: 'charged',
  settledBy: 'answer',
  hold: FLAT,
  charge: FLAT,
  resourceId: null,
  ...more,
});

/** Returns a call that the model server answered whole. */
export const call = (key: string, more: Partial<Call> = {}): Call => ({
  key,
  model: 'flat',
  seen: 1,
  refused: 0,
  answered: 'whole',
  usage: { prompt_tokens: 3, completion_tokens: 2 },
  fault: 'none',
  ...more,
});

/** Returns an order that was answered and paid. */
const order = (wallet: WalletEntry, key: string, more: Partial<OrderEntry> = {}): OrderEntry => ({
  kind: 'chat',
  key,
  wallet,
  what: 'flat',
  path: '/v1/chat/completions',
  body: {},
  outcome: 'done',
  text: '{}',
  charged: FLAT,
  operationId: `op_${key}`,
  resourceId: '',
  isNew: false,
  flying: 0,
  ...more,
});

type Change = Evidence['books']['changes'][number];

/** Returns a change of the wallet `wal_1`. */
export const change = (id: string, kind: string, amount: bigint, more: Partial<Change> = {}): Change => ({
  id,
  wallet: 'wal_1',
  kind,
  key: `key ${kind}`,
  amount,
  period: null,
  ...more,
});

const FUNDED = 1050n * CENT;
/** What the child was given. */
const CHILD = 123_456_789n;

/** The lines of the journal that a wallet, its changes, its child and their operations leave, from funding to close. */
function linesOf(operations: readonly Operation[], changes: readonly Change[]): Entry[] {
  const lines: Omit<Entry, 'seq' | 'hash'>[] = [
    { cause: 'fnd_1', debit: 'funding', credit: 'account:acct_1', amount: FUNDED },
    { cause: 'wal_1', debit: 'account:acct_1', credit: 'wallet:wal_1', amount: 100n * CENT },
  ];
  for (const { id, amount } of changes.filter((it) => it.amount > 0n))
    lines.push({ cause: id, debit: 'account:acct_1', credit: 'wallet:wal_1', amount });
  for (const { id, amount } of changes.filter((it) => it.amount < 0n))
    lines.push({ cause: id, debit: 'wallet:wal_1', credit: 'account:acct_1', amount: -amount });
  lines.push({ cause: 'wal_2', debit: 'wallet:wal_1', credit: 'wallet:wal_2', amount: CHILD });
  for (const { id, wallet, hold, charge } of operations) {
    const paid = charge ?? 0n;
    lines.push({ cause: id, debit: `wallet:${wallet}`, credit: `hold:${wallet}`, amount: hold });
    if (paid) lines.push({ cause: id, debit: `hold:${wallet}`, credit: 'sales:chat', amount: paid });
    if (hold > paid)
      lines.push({ cause: id, debit: `hold:${wallet}`, credit: `wallet:${wallet}`, amount: hold - paid });
  }
  const paidBy = (wallet: string) =>
    operations.filter((it) => it.wallet === wallet).reduce((sum, { charge }) => sum + (charge ?? 0n), 0n);
  const rest = CHILD - paidBy('wal_2');
  lines.push({ cause: 'wal_2', debit: 'wallet:wal_2', credit: 'wallet:wal_1', amount: rest });
  const moved = changes.reduce((sum, { amount }) => sum + amount, 0n);
  const left = 100n * CENT + moved - CHILD + rest - paidBy('wal_1');
  const rounding = left % CENT;
  lines.push({ cause: 'wal_1', debit: 'wallet:wal_1', credit: 'account:acct_1', amount: left - rounding });
  if (rounding) lines.push({ cause: 'wal_1', debit: 'wallet:wal_1', credit: 'rounding', amount: rounding });
  return lines.map((it, i) => ({ ...it, seq: i + 1, hash: `hash ${i + 1}` }));
}

/**
 * A run in which all is well: an answer, one charged by policy, a refusal, a lease, a credit, a raise, a lower that stops
 * at what is held, an extension, a refill, and a child that spends.
 */
export function well(): Evidence & { wallet: WalletEntry } {
  const used = 3n * FLAT + LEASE;
  const wallet: WalletEntry = {
    kind: 'wallet',
    key: 'w',
    budget: 100n * CENT,
    parent: undefined,
    parentExpiredAt: undefined,
    expiresInSeconds: 0,
    outcome: 'closed',
    isOver: true,
    id: 'wal_1',
    token: 'token',
    routerKey: '',
    askedAt: 0,
    closed: { used_usd: '0.036', returned_cents: 226 },
    frozen: { state: 'no', turn: 0, flying: 0 },
    refill: { cents: 250, dueAt: 1, isPast: true },
    known: used,
  };
  const child: WalletEntry = {
    ...wallet,
    key: 'v',
    id: 'wal_2',
    budget: CHILD,
    parent: wallet,
    closed: { used_usd: '0.01', returned_cents: 11 },
    known: FLAT,
  };
  delete child.refill;
  const operations = [
    operation('op_a', 'a'),
    operation('op_b', 'b', { settledBy: 'policy' }),
    operation('op_c', 'c', { outcome: 'released', charge: 0n }),
    operation('op_d', 'd', { kind: 'compute_create', hold: LEASE, charge: LEASE, resourceId: 'res_1' }),
    operation('op_k', 'k', { wallet: 'wal_2' }),
  ];
  const changes = [
    change('chg_1', 'raise', 50n * CENT),
    change('chg_2', 'lower', -20n * CENT),
    change('chg_3', 'extend', 0n),
    change('chg_4', 'refill', 100n * CENT, { key: null, period: '2026-01-01' }),
  ];
  const move = (kind: MoveEntry['kind'], by: number): MoveEntry => ({
    kind,
    key: `key ${kind}`,
    wallet,
    by,
    outcome: 'done',
    flying: 0,
  });
  return {
    wallet,
    creditCents: 1000,
    machines: [],
    calls: new Map([
      ['op_a', call('a')],
      ['op_b', call('b', { answered: 'part', fault: 'half a body' })],
      ['op_c', call('c', { answered: 'no', fault: '500' })],
      ['op_k', call('k')],
    ]),
    journal: {
      wallets: [wallet, child],
      orders: [
        order(wallet, 'a'),
        order(wallet, 'b', { outcome: 'lost', text: '', operationId: '' }),
        order(wallet, 'c', { outcome: 'refused', text: '', charged: undefined, operationId: '' }),
        order(wallet, 'd', { kind: 'create', what: 'small', charged: LEASE, operationId: '', resourceId: 'res_1' }),
        order(child, 'k'),
      ],
      moves: [move('raise', 50), move('lower', -30), move('extend', 60)],
      credits: [{ kind: 'credit', key: 'invoice', cents: 50, outcome: 'done' }],
      backups: [{ file: 'backup.db', seq: 2, hash: 'hash 2' }],
      findings: [],
    },
    books: {
      operations,
      wallets: [
        {
          id: 'wal_1',
          key: 'w',
          parent: null,
          status: 'closed',
          budget: 230n * CENT,
          spent: used,
          held: 0n,
          delegated: 0n,
        },
        {
          id: 'wal_2',
          key: 'v',
          parent: 'wal_1',
          status: 'closed',
          budget: CHILD,
          spent: FLAT,
          held: 0n,
          delegated: 0n,
        },
      ],
      changes,
      resources: [
        {
          id: 'res_1',
          wallet: 'wal_1',
          slot: 'provider_three',
          backend: 'container',
          tag: 'tag-1',
          status: 'stopped',
          ended: 1n,
        },
      ],
      fundings: [
        { key: null, cents: 1000n },
        { key: 'invoice', cents: 50n },
      ],
      account: { available: 1046n, reserved: 0n, spent: 4n },
      entries: linesOf(operations, changes),
      problems: [],
    },
  };
}

/** Every operation of the books in one list, so that its lines stand or fall with it. */
export const rebook = ({ books }: Evidence, change: (operations: Operation[]) => Operation[]) => {
  books.operations = change(books.operations);
  books.entries = linesOf(books.operations, books.changes);
};
/** The same for the changes of wallets. */
export const rechange = ({ books }: Evidence, change: (changes: Change[]) => Change[]) => {
  books.changes = change(books.changes);
  books.entries = linesOf(books.operations, books.changes);
};
/** Returns the move of a kind from the journal. */
export const moveOf = ({ journal }: Evidence, kind: string) =>
  journal.moves.find((it) => it.kind === kind) as MoveEntry;
/** Returns the line of the books with this cause and credit. */
export const lineOf = ({ books }: Evidence, cause: string, credit: string) =>
  books.entries.find((it) => it.cause === cause && it.credit === credit) as Entry;
/** Returns a wallet from the books. */
export const walletOf = ({ books }: Evidence, id: string) =>
  books.wallets.find((it) => it.id === id) as Evidence['books']['wallets'][number];
/** Returns an order from the journal. */
export const orderOf = ({ journal }: Evidence, key: string) =>
  journal.orders.find((it) => it.key === key) as OrderEntry;
/** Returns an operation from the books. */
export const rowOf = ({ books }: Evidence, id: string) => books.operations.find((it) => it.id === id) as Operation;

/** What went wrong, what the run then left, and what the judge has to call it. */
export type Wrong = [what: string, failure: Failure, breakIt: (run: ReturnType<typeof well>) => void];

/** Registers a test for each of them. */
export function testWrongs(wrongs: readonly Wrong[]): void {
  for (const [what, failure, breakIt] of wrongs)
    test(`the judge finds ${what}`, () => {
      const run = well();
      breakIt(run);
      assert.notDeepEqual(judge(run)[failure], [], failure);
    });
}
