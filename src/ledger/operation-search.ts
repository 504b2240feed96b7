import { and, asc, count, desc, eq, gt, gte, lt, type SQL, sql } from 'drizzle-orm';
import type { Nanos } from '../base/money.ts';
import { nextTurn } from '../base/turn.ts';
import type { OPERATION_OUTCOMES } from '../db/enums.ts';
import type { Reader } from '../db/handle.ts';
import { plain } from '../db/plain.ts';
import { balances, operations, wallets } from '../db/schema.ts';
import { IS_OPEN, type Operation } from './operation.ts';
import { LIST_COUNT_MAX } from './wallet.ts';
import { BLOCK_COUNT, blockOf, numbersIn, rowsInBlock, spendersIn } from './wallet-operations.ts';
import { walletsBelow } from './wallet-tree.ts';

/** The filter that the operations of a list have in common. */
export type OperationFilter = {
  walletId?: string | undefined;
  /** The wallet at the top of a tree: itself, and all below it. */
  rootId?: string | undefined;
  accountId?: string | undefined;
  /** The state, or for a settled one its outcome. */
  state?: Operation['state'] | (typeof OPERATION_OUTCOMES)[number] | undefined;
  /** The model or the slot. */
  subject?: string | undefined;
  /** A tag as `name=value`. */
  tag?: string | undefined;
  /** Begun at or after this, and before this: Unix seconds. */
  since?: number | undefined;
  until?: number | undefined;
  /** The charge, or the hold of one that is not settled: at least this, and at most this. */
  costMin?: Nanos | undefined;
  costMax?: Nanos | undefined;
};

type SearchPage = {
  /** Begins behind the operation with this id. */
  after?: string | undefined;
  limit?: number | undefined;
  first?: 'newest' | 'oldest';
  /** Looks at about this many operations at most: whole pages of them. */
  examinedMax?: number;
  /** Ends the search: what it returns then is not all. */
  signal?: AbortSignal;
};

type OperationPage = {
  operations: Operation[];
  /** The id after which the list continues; undefined at its end. */
  goesOnAfter: string | undefined;
  /** True if it continues because enough operations were examined, whether or not others match. */
  isCut: boolean;
};

/** Operations that one page looks at for those that match: some 30 ms. */
export const EXAMINED_COUNT = 10_000;
/** The number of operations that are examined at a time: a millisecond or two, in which nothing else is served. */
const STEP_COUNT = 500;
const reads = plain({
  newest: 'select max(number) from operation',
  begun: 'select created_at from operation where number = ?',
  wentBack: 'select 1 from epoch join entry on entry.seq = epoch.after_seq where entry.at > epoch.started_at limit 1',
  numberUpTo: 'select number from operation where id <= ? order by id desc limit 1',
  numberFrom: 'select number from operation where id >= ? order by id limit 1',
  idOf: 'select id from operation where number = ?',
});

/** The next operations of a search: from this number on, and of wallets only theirs, newest first. */
type SearchStep = { from: number; rows: number; numbers?: number[] };

/** Returns what gives the steps of a search, each of `STEP_COUNT` operations or the last, below a number and down to `lowest`. */
async function stepsOf(
  read: Reader,
  { walletId, rootId }: OperationFilter,
  lowest: number,
  signal?: AbortSignal,
): Promise<(to: number) => SearchStep> {
  if (rootId === undefined && walletId === undefined)
    return (to) => {
      const from = Math.max(lowest, to - STEP_COUNT);
      return { from, rows: to - from };
    };
  const among = rootId === undefined ? [[walletId as string]] : walletsBelow(read, rootId);
  const { ids, first, last } = await spendersIn(read, among, signal);
  const below = numbersIn(read, ids);
  const blocksMax = STEP_COUNT / rowsInBlock(ids);
  const begin = Math.max(lowest, first);
  return (to) => {
    const numbers: number[] = [];
    let from = Math.min(to, last + 1);
    for (let blocks = 0; from > begin && numbers.length < STEP_COUNT && blocks < blocksMax; blocks++) {
      const block = blockOf(from - 1);
      const end = from;
      numbers.push(...below(block).filter((it) => it >= begin && it < end));
      from = block * BLOCK_COUNT;
    }
    return { from: from > begin ? from : lowest, rows: numbers.length, numbers };
  };
}

/** Returns the conditions of a filter that no index answers. They are tested row by row. */
function testedBy({ accountId, state, subject, tag, since, until, costMin, costMax }: OperationFilter): SQL[] {
  const isOutcome = state === 'charged' || state === 'released';
  const cost = sql`coalesce(${operations.charge}, ${operations.hold})`;
  return [
    accountId === undefined
      ? undefined
      : sql`(select account_id from wallet where id = ${operations.walletId}) = ${accountId}`,
    state === undefined ? undefined : isOutcome ? eq(operations.outcome, state) : eq(operations.state, state),
    subject === undefined ? undefined : eq(operations.subject, subject),
    tag === undefined
      ? undefined
      : sql`exists (select 1 from json_each(${operations.tags}) as t where t.key || '=' || t.value = ${tag})`,
    since === undefined ? undefined : gte(operations.createdAt, since),
    until === undefined ? undefined : lt(operations.createdAt, until),
    costMin === undefined ? undefined : sql`${cost} >= ${costMin}`,
    costMax === undefined ? undefined : sql`${cost} <= ${costMax}`,
  ].filter((it) => it !== undefined);
}

/**
 * Returns operations, in the order in which they began: newest first unless asked otherwise. No list is read from its beginning:
 * those that hold money are found by their index; others are read backwards from the time or the page, in steps between which other
 * work runs, until the page is full or `examinedMax` is reached.
 */
export async function searchOperations(
  read: Reader,
  filter: OperationFilter,
  { after, limit = LIST_COUNT_MAX, first = 'newest', examinedMax = Number.POSITIVE_INFINITY, signal }: SearchPage = {},
): Promise<OperationPage> {
  const before = after === undefined ? undefined : (first === 'newest' ? numberFrom : numberUpTo)(read, after);
  if (filter.state === 'reserved' || filter.state === 'uncertain')
    return cut(openMatching(read, filter, before, limit + 1, first), limit);
  const { lowest, end } = boundsOf(read, filter);
  const next = await stepsOf(read, filter, lowest, signal);
  const matching = matchingIn(read, filter, limit + 1);
  const operations: Operation[] = [];
  let examined = 0;
  let last = 0;
  for (let to = Math.min(end, before ?? end); to > lowest; ) {
    const { from, rows, numbers } = next(to);
    if (rows) operations.push(...matching.all({ from, to, numbers: JSON.stringify(numbers) }));
    if (operations.length > limit || signal?.aborted) return cut(operations, limit);
    to = from;
    last = numbers ? (numbers.at(-1) ?? last) : from;
    examined += rows;
    if (to > lowest && examined >= examinedMax) return { operations, goesOnAfter: idOf(read, last), isCut: true };
    await nextTurn();
  }
  return cut(operations, limit);
}

/** Returns the query of the operations that match in a step. */
const matchingIn = (read: Reader, filter: OperationFilter, limit: number) =>
  read
    .select()
    .from(operations)
    .where(
      and(
        filter.walletId === undefined && filter.rootId === undefined
          ? and(gte(operations.number, sql.placeholder('from')), lt(operations.number, sql.placeholder('to')))
          : sql`${operations.number} in (select value from json_each(${sql.placeholder('numbers')}))`,
        filter.rootId === undefined || filter.walletId === undefined
          ? undefined
          : sql`+${operations.walletId} = ${filter.walletId}`,
        ...testedBy(filter),
      ),
    )
    .orderBy(desc(operations.number))
    .limit(limit)
    .prepare();

/** Separates a page from what was found beyond it. */
function cut(found: readonly Operation[], limit: number): OperationPage {
  const page = found.slice(0, limit);
  return { operations: page, goesOnAfter: found.length > limit ? page.at(-1)?.id : undefined, isCut: false };
}

/** The ids of the wallet of an operation and of all above it: a subquery. */
const ABOVE_OPERATION = sql`(
  with recursive above(id) as (
    select ${operations.walletId}
    union all select wallet.parent_id from wallet join above on wallet.id = above.id where wallet.parent_id is not null
  ) select id from above)`;

/** Reads those that hold money. There are few: of them alone there is an index, from which `+number` does not lead away. */
function openMatching(
  read: Reader,
  filter: OperationFilter,
  after: number | undefined,
  limit: number,
  first: 'newest' | 'oldest',
): Operation[] {
  const byNumber = sql`+${operations.number}`;
  return read
    .select()
    .from(operations)
    .where(
      and(
        IS_OPEN,
        filter.walletId === undefined ? undefined : eq(operations.walletId, filter.walletId),
        filter.rootId === undefined ? undefined : sql`${filter.rootId} in ${ABOVE_OPERATION}`,
        after === undefined ? undefined : first === 'newest' ? lt(byNumber, after) : gt(byNumber, after),
        ...testedBy(filter),
      ),
    )
    .orderBy(first === 'newest' ? desc(byNumber) : asc(byNumber))
    .limit(limit)
    .all();
}

const newestNumber = (read: Reader): number => Number(reads(read).newest.get<[bigint | null]>()?.[0] ?? 0n);
const idOf = (read: Reader, number: number): string | undefined => reads(read).idOf.get<[string]>(number)?.[0];

/**
 * Returns the number of the operation with this id, or of the one with the id after it; the next number where there is none. A page that
 * begins behind an operation that is gone, as after a restore, begins with the one before it.
 */
const numberFrom = (read: Reader, id: string): number =>
  Number(reads(read).numberFrom.get<[bigint]>(id)?.[0] ?? newestNumber(read) + 1);

/** Returns the number of the operation with this id, or of the one with the id before it; 0 where there is none. */
const numberUpTo = (read: Reader, id: string): number => Number(reads(read).numberUpTo.get<[bigint]>(id)?.[0] ?? 0n);

/**
 * Returns the numbers between which all operations of the filter's time are, the second one excluded. In books that went back to an
 * earlier time (docs/decisions/0047) they may be anywhere.
 */
function boundsOf(read: Reader, { since, until }: OperationFilter): { lowest: number; end: number } {
  const isInOrder = !reads(read).wentBack.get();
  return {
    lowest: since !== undefined && isInOrder ? firstBegunFrom(read, since) : 1,
    end: until !== undefined && isInOrder ? firstBegunFrom(read, until) : newestNumber(read) + 1,
  };
}

/** Returns the number of the first operation that began at or after `at`, Unix seconds. Their times have the order of their numbers. */
function firstBegunFrom(read: Reader, at: number): number {
  const { begun } = reads(read);
  let [low, high] = [1, newestNumber(read) + 1];
  while (low < high) {
    const middle = Math.floor((low + high) / 2);
    const [begunAt] = begun.get<[bigint]>(middle) as [bigint];
    if (begunAt >= at) high = middle;
    else low = middle + 1;
  }
  return high;
}

/**
 * Counts the operations that `searchOperations` finds where no row need be read for it: all of them, those of a wallet or
 * an account, and those in a state. Undefined for other filters.
 */
export function countOperations(
  read: Reader,
  { walletId, accountId, state, ...others }: OperationFilter,
): number | undefined {
  if (state === 'charged' || state === 'released') return undefined;
  if (Object.values(others).some((it) => it !== undefined)) return undefined;
  const isOpen = state === 'reserved' || state === 'uncertain';
  const open =
    state === undefined
      ? 0
      : Number(
          read
            .select({ count: count() })
            .from(operations)
            .where(
              and(
                IS_OPEN,
                walletId === undefined ? undefined : eq(operations.walletId, walletId),
                ...testedBy({ accountId, state: isOpen ? state : undefined }),
              ),
            )
            .get()?.count,
        );
  if (isOpen) return open;
  const all = read
    .select({ count: sql<bigint | null>`sum(${balances.operationCount})` })
    .from(wallets)
    .innerJoin(balances, eq(balances.number, wallets.number))
    .where(
      and(
        walletId === undefined ? undefined : eq(wallets.id, walletId),
        accountId === undefined ? undefined : eq(wallets.accountId, accountId),
      ),
    )
    .get();
  return Number(all?.count ?? 0) - open;
}
