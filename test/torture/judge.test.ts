import assert from 'node:assert/strict';
import test from 'node:test';
import type { Entry, Operation } from '../../torture/books.ts';
import { FAILURES, type Failure, type OrderEntry, type WalletEntry } from '../../torture/journal.ts';
import { type Evidence, judge } from '../../torture/judge.ts';
import type { Call } from '../../torture/models.ts';
import type { MoveEntry } from '../../torture/move.ts';

const CENT = 10_000_000n;
const FLAT = CENT; // One request of the model `flat`.
const LEASE = 6_000_000n;

const operation = (id: string, key: string, more: Partial<Operation> = {}): Operation => ({
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
const call = (key: string, more: Partial<Call> = {}): Call => ({
  key,
  model: 'flat',
  seen: 1,
  answered: 'whole',
  usage: { prompt_tokens: 3, completion_tokens: 2 },
  fault: 'none',
  ...more,
});
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
const change = (id: string, kind: string, amount: bigint, more: Partial<Change> = {}): Change => ({
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
function well(): Evidence & { wallet: WalletEntry } {
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

test('a run in which all is well has no failures', () => {
  const verdict = judge(well());
  for (const name of FAILURES) assert.deepEqual(verdict[name], [], name);
});

test('a stream whose client left is charged what came, and the judge takes the sum that its client was told', () => {
  const run = well();
  Object.assign(rowOf(run, 'op_b'), { settledBy: 'cancelled', route: 'router/chat/completions' });
  assert.deepEqual(Object.values(judge(run)).flat(), []);
});

/** Every operation of the books in one list, so that its lines stand or fall with it. */
const rebook = ({ books }: Evidence, change: (operations: Operation[]) => Operation[]) => {
  books.operations = change(books.operations);
  books.entries = linesOf(books.operations, books.changes);
};
/** The same for the changes of wallets. */
const rechange = ({ books }: Evidence, change: (changes: Change[]) => Change[]) => {
  books.changes = change(books.changes);
  books.entries = linesOf(books.operations, books.changes);
};
const moveOf = ({ journal }: Evidence, kind: string) => journal.moves.find((it) => it.kind === kind) as MoveEntry;
const lineOf = ({ books }: Evidence, cause: string, credit: string) =>
  books.entries.find((it) => it.cause === cause && it.credit === credit) as Entry;
const walletOf = ({ books }: Evidence, id: string) =>
  books.wallets.find((it) => it.id === id) as Evidence['books']['wallets'][number];
const orderOf = ({ journal }: Evidence, key: string) => journal.orders.find((it) => it.key === key) as OrderEntry;
const rowOf = ({ books }: Evidence, id: string) => books.operations.find((it) => it.id === id) as Operation;

/** What went wrong, what the run then left, and what the judge has to call it. */
const WRONGS: [what: string, failure: Failure, breakIt: (run: ReturnType<typeof well>) => void][] = [
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
  ['books that `ledger verify` does not like', 'books wrong', ({ books }) => void books.problems.push('exit 1')],
  [
    'what the clients saw on the way',
    'over budget',
    ({ journal }) => void journal.findings.push({ failure: 'over budget', what: 'seen' }),
  ],
];
for (const [what, failure, breakIt] of WRONGS)
  test(`the judge finds ${what}`, () => {
    const run = well();
    breakIt(run);
    assert.notDeepEqual(judge(run)[failure], [], failure);
  });
