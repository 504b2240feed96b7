import { and, asc, eq, gte, lt, sql } from 'drizzle-orm';
import { prepare, type Reader } from '../db/handle.ts';
import { operations, wallets } from '../db/schema.ts';
import { Nanos, ZERO } from '../money.ts';
import { findWallet, TREE } from './wallet.ts';

export const SPEND_BY = ['model', 'wallet', 'account', 'day', 'tag', 'kind'] as const;
export type SpendBy = (typeof SPEND_BY)[number];

/** Whose charged operations are summed: those of a wallet and all below it, of an account, or all. */
export type SpendScope = { wallet: string } | { account: string } | undefined;

export type SpendOrder = {
  by: SpendBy;
  scope?: SpendScope;
  /** Charged at or after this, Unix seconds. */
  since?: number | undefined;
  /** Charged before this, Unix seconds. */
  until?: number | undefined;
};

export type SpendRow = {
  key: string;
  operations: number;
  promptTokens: number;
  completionTokens: number;
  charged: Nanos;
};

const OPERATION = {
  id: operations.id,
  walletId: operations.walletId,
  kind: operations.kind,
  subject: operations.subject,
  outcome: operations.outcome,
  charge: operations.charge,
  usage: operations.usage,
  tags: operations.tags,
  settledAt: operations.settledAt,
};
type Charged = Pick<typeof operations.$inferSelect, keyof typeof OPERATION>;

/** Rows that are read at a time: a millisecond or two, in which nothing else is served. */
const PAGE_COUNT = 500;

const reads = prepare((read: Reader) => ({
  all: read
    .select(OPERATION)
    .from(operations)
    .where(
      and(
        sql`${operations.outcome} = 'charged'`, // must match the partial index's condition
        gte(operations.settledAt, sql.placeholder('afterAt')),
        lt(operations.settledAt, sql.placeholder('until')),
        sql`(${operations.settledAt}, ${operations.id}) > (${sql.placeholder('afterAt')}, ${sql.placeholder('afterId')})`,
      ),
    )
    .orderBy(asc(operations.settledAt), asc(operations.id))
    .limit(PAGE_COUNT)
    .prepare(),
  // What does not count is left out later: a page takes as long whatever it holds.
  ofWallet: read
    .select(OPERATION)
    .from(operations)
    .where(
      and(eq(operations.walletId, sql.placeholder('walletId')), sql`${operations.id} > ${sql.placeholder('afterId')}`),
    )
    .orderBy(asc(operations.id))
    .limit(PAGE_COUNT)
    .prepare(),
  walletsOfTree: read.select({ id: wallets.id }).from(wallets).where(sql`${wallets.id} in ${TREE}`).prepare(),
  walletsOfAccount: read
    .select({ id: wallets.id })
    .from(wallets)
    .where(eq(wallets.accountId, sql.placeholder('accountId')))
    .prepare(),
}));

/**
 * Sums what was charged, by model, wallet, account, UTC day, tag or kind: the journal's entries to sales, with the tokens of
 * their operations. An operation belongs to the second in which it was charged. Rows are ordered by day, or else by amount,
 * largest first. By tag, an operation counts for each of its tags, one without any under the empty key; the total counts it
 * once. Reads by pages and lets other work go on between them.
 */
export async function sumSpending(read: Reader, order: SpendOrder): Promise<{ rows: SpendRow[]; total: Nanos }> {
  const rows = new Map<string, SpendRow>();
  const keysOf = keysBy(read, order.by);
  let total = ZERO;
  for await (const operation of chargedOperations(read, order)) {
    const charge = operation.charge as Nanos;
    const { prompt_tokens: prompt = 0, completion_tokens: completion = 0 } = JSON.parse(operation.usage ?? '{}');
    total = Nanos(total + charge);
    for (const key of keysOf(operation)) {
      let row = rows.get(key);
      if (!row) {
        row = { key, operations: 0, promptTokens: 0, completionTokens: 0, charged: ZERO };
        rows.set(key, row);
      }
      row.operations += 1;
      row.promptTokens += prompt;
      row.completionTokens += completion;
      row.charged = Nanos(row.charged + charge);
    }
  }
  const byKey = (a: SpendRow, b: SpendRow) => (a.key < b.key ? -1 : 1);
  const byAmount = (a: SpendRow, b: SpendRow) =>
    a.charged === b.charged ? byKey(a, b) : a.charged < b.charged ? 1 : -1;
  return { rows: [...rows.values()].sort(order.by === 'day' ? byKey : byAmount), total };
}

export type SpendCell = { at: number; keys: string[]; operations: number; charged: Nanos };
export type SpendGrid = Omit<SpendOrder, 'by'> & {
  /** What the keys of a cell are, in this order. */
  by: readonly Exclude<SpendBy, 'tag'>[];
  /** The length of a cell in seconds. It begins at a multiple of it, so that a day is a UTC day. */
  seconds: number;
};

/** Sums what was charged in cells of time, by several keys at once. Reads like `sumSpending`. */
export async function spendingOverTime(read: Reader, { by, seconds, ...order }: SpendGrid): Promise<SpendCell[]> {
  const cells = new Map<string, SpendCell>();
  const keysOf = by.map((it) => keysBy(read, it));
  for await (const operation of chargedOperations(read, { ...order, by: 'model' })) {
    const at = Math.floor((operation.settledAt as number) / seconds) * seconds;
    const keys = keysOf.map((of) => of(operation)[0] as string);
    const name = [at, ...keys].join('\n');
    let cell = cells.get(name);
    if (!cell) {
      cell = { at, keys, operations: 0, charged: ZERO };
      cells.set(name, cell);
    }
    cell.operations += 1;
    cell.charged = Nanos(cell.charged + (operation.charge as Nanos));
  }
  return [...cells.values()];
}

function keysBy(read: Reader, by: SpendBy): (operation: Charged) => string[] {
  const accounts = new Map<string, string>();
  const accountOf = (walletId: string) => {
    let id = accounts.get(walletId);
    if (id === undefined) {
      id = findWallet(read, walletId)?.accountId ?? '';
      accounts.set(walletId, id);
    }
    return id;
  };
  const keys: Record<SpendBy, (operation: Charged) => string[]> = {
    model: (it) => [it.subject],
    wallet: (it) => [it.walletId],
    account: (it) => [accountOf(it.walletId)],
    day: (it) => [new Date((it.settledAt as number) * 1000).toISOString().slice(0, 10)],
    kind: (it) => [it.kind],
    tag(it) {
      if (it.tags === null) return [''];
      return Object.entries(JSON.parse(it.tags) as Record<string, string>).map(([name, value]) => `${name}=${value}`);
    },
  };
  return keys[by];
}

async function* chargedOperations(
  read: Reader,
  { scope, since = 0, until = Number.MAX_SAFE_INTEGER }: SpendOrder,
): AsyncGenerator<Charged> {
  if (!scope) {
    for (let after = { at: since, id: '' }; ; ) {
      const page = reads(read).all.all({ afterAt: after.at, afterId: after.id, until });
      yield* page;
      const last = page.at(-1);
      if (!last || page.length < PAGE_COUNT) return;
      after = { at: last.settledAt as number, id: last.id };
      await nextTurn();
    }
  }
  const ids =
    'wallet' in scope
      ? reads(read).walletsOfTree.all({ walletId: scope.wallet })
      : reads(read).walletsOfAccount.all({ accountId: scope.account });
  const counts = (it: Charged) =>
    it.outcome === 'charged' && (it.settledAt as number) >= since && (it.settledAt as number) < until;
  let rows = 0;
  for (const { id: walletId } of ids)
    for (let afterId = ''; ; ) {
      const page = reads(read).ofWallet.all({ walletId, afterId });
      yield* page.filter(counts);
      rows += page.length + 1; // A wallet without operations takes a look as well.
      if (rows >= PAGE_COUNT) {
        rows = 0;
        await nextTurn();
      }
      const last = page.at(-1);
      if (!last || page.length < PAGE_COUNT) break;
      afterId = last.id;
    }
}

const nextTurn = () => new Promise<void>((resolve) => setImmediate(resolve));
