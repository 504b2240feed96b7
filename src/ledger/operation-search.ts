import { and, asc, count, desc, eq, gt, gte, lt, type SQL, sql } from 'drizzle-orm';
import { idsFrom } from '../base/id.ts';
import type { Nanos } from '../base/money.ts';
import type { OPERATION_OUTCOMES } from '../db/enums.ts';
import type { Reader } from '../db/handle.ts';
import { plain } from '../db/plain.ts';
import { operations, wallets } from '../db/schema.ts';
import { IS_OPEN, type Operation } from './operation.ts';
import { LIST_COUNT_MAX, TREE } from './wallet.ts';

/** What the operations of a list have in common. */
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

export type FoundOperations = {
  operations: Operation[];
  /** The id behind which the list goes on; undefined at its end. */
  goesOnAfter: string | undefined;
  /** True if it goes on because enough operations were examined, whether or not others match. */
  isCut: boolean;
};

/** Operations that one page looks at for those that match: some 30 ms. */
export const EXAMINED_COUNT = 10_000;
/** The number of operations that are examined at a time: a millisecond or two, in which nothing else is served. */
const STEP_COUNT = 500;
/** An operation begins at most so long after its id was made: a request waits for money, and for its price. */
const LATE_SECONDS = 600;
/** Ids begin with 48 bits of milliseconds. */
const ID_TIME_END = 2 ** 48;

const steps = plain({
  begun: 'select created_at from operation where id >= ? order by id limit 1',
  all: `select min(id), count(*) from
    (select id from operation where id < ? and id >= ? order by id desc limit ${STEP_COUNT})`,
  ofWallet: `select min(id), count(*) from
    (select id from operation where wallet_id = ? and id < ? and id >= ? order by id desc limit ${STEP_COUNT})`,
  newestInTree: `with recursive tree(id) as (
      select ? union all select wallet.id from wallet join tree on wallet.parent_id = tree.id)
    select newest, id from (
      select id, (select max(id) from operation where wallet_id = tree.id and id < ? and id >= ?) as newest from tree)
    where newest is not null order by newest`,
  before: 'select max(id) from operation where wallet_id = ? and id < ? and id >= ?',
});

/** The next operations of a search: their number, the id that they begin with, and of a tree the wallets that have them. */
type SearchStep = { from: string; rows: number; among?: string };

/** Returns what gives the steps of a search, each of `STEP_COUNT` operations or the last, from the id `end` down to `lowest`. */
function stepsOf(
  read: Reader,
  filter: OperationFilter,
  end: string,
  lowest: string,
): (to: string) => SearchStep | undefined {
  const { all, ofWallet } = steps(read);
  const { walletId, rootId } = filter;
  if (rootId !== undefined) return stepsInTree(read, rootId, end, lowest);
  return (to) => {
    const step = walletId === undefined ? all.get(to, lowest) : ofWallet.get(walletId, to, lowest);
    const [from, rows] = step as [string | null, bigint];
    return from === null ? undefined : { from, rows: Number(rows) };
  };
}

/** Merges the operations of the wallets of a tree: no index has them by their ids. */
function stepsInTree(read: Reader, rootId: string, end: string, lowest: string): () => SearchStep | undefined {
  const { newestInTree, before } = steps(read);
  /** The newest operation of each wallet that has not been passed, the newest of all last. */
  const heads = newestInTree.all<[id: string, walletId: string]>(rootId, end, lowest);
  return () => {
    const among = new Set<string>();
    let [from, rows] = ['', 0];
    for (let head = heads.pop(); head; head = ++rows < STEP_COUNT ? heads.pop() : undefined) {
      const [id, walletId] = head;
      from = id;
      among.add(walletId);
      const [next] = before.get(walletId, id, lowest) as [string | null];
      if (next !== null) heads.splice(placeIn(heads, next), 0, [next, walletId]);
    }
    return rows === 0 ? undefined : { from, rows, among: JSON.stringify([...among]) };
  };
}

/** Returns the place of an id among others in their order. */
function placeIn(heads: readonly (readonly [id: string, walletId: string])[], id: string): number {
  let [low, high] = [0, heads.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((heads[middle]?.[0] as string) < id) low = middle + 1;
    else high = middle;
  }
  return low;
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
 * Returns operations, by the order of their ids: newest first unless asked otherwise. No list is read from its beginning: those that
 * hold money are found by their index; others are read backwards from where the time or the page begins, in steps between
 * which other work runs, until the page is full or `examinedMax` is reached.
 */
export async function searchOperations(
  read: Reader,
  filter: OperationFilter,
  { after, limit = LIST_COUNT_MAX, first = 'newest', examinedMax = Number.POSITIVE_INFINITY, signal }: SearchPage = {},
): Promise<FoundOperations> {
  const { since, until } = filter;
  if (filter.state === 'reserved' || filter.state === 'uncertain')
    return cut(openMatching(read, filter, after, limit + 1, first), limit);
  const matching = read
    .select()
    .from(operations)
    .where(
      and(
        filter.walletId === undefined ? undefined : eq(operations.walletId, filter.walletId),
        filter.rootId === undefined
          ? undefined
          : sql`${operations.walletId} in (select value from json_each(${sql.placeholder('among')}))`,
        gte(operations.id, sql.placeholder('from')),
        lt(operations.id, sql.placeholder('to')),
        ...testedBy(filter),
      ),
    )
    .orderBy(desc(operations.id))
    .limit(limit + 1)
    .prepare();
  const lowest = since === undefined ? '' : idsBegunFrom(read, since - LATE_SECONDS);
  const end = until === undefined ? '~' : idsBegunFrom(read, until + LATE_SECONDS);
  const begin = after !== undefined && after < end ? after : end;
  const next = stepsOf(read, filter, begin, lowest);
  const found: Operation[] = [];
  for (let to = begin, examined = 0; ; ) {
    const step = next(to);
    if (!step) return cut(found, limit);
    const { from, rows, among } = step;
    found.push(...matching.all({ from, to, among }));
    if (found.length > limit || rows < STEP_COUNT || signal?.aborted) return cut(found, limit);
    to = from;
    examined += rows;
    if (examined >= examinedMax) return { operations: found, goesOnAfter: from, isCut: true };
    await new Promise<void>((resolve) => setImmediate(resolve));
  }
}

/** Separates a page from what was found beyond it. */
function cut(found: readonly Operation[], limit: number): FoundOperations {
  const page = found.slice(0, limit);
  return { operations: page, goesOnAfter: found.length > limit ? page.at(-1)?.id : undefined, isCut: false };
}

/** Reads those that hold money. There are few: of them alone there is an index, from which `+id` does not lead away. */
function openMatching(
  read: Reader,
  filter: OperationFilter,
  after: string | undefined,
  limit: number,
  first: 'newest' | 'oldest',
): Operation[] {
  const byId = sql`+${operations.id}`;
  return read
    .select()
    .from(operations)
    .where(
      and(
        IS_OPEN,
        filter.walletId === undefined ? undefined : eq(operations.walletId, filter.walletId),
        filter.rootId === undefined ? undefined : sql`${operations.walletId} in ${TREE}`,
        after === undefined ? undefined : first === 'newest' ? lt(byId, after) : gt(byId, after),
        ...testedBy(filter),
      ),
    )
    .orderBy(first === 'newest' ? desc(byId) : asc(byId))
    .limit(limit)
    .prepare()
    .all({ walletId: filter.rootId });
}

/**
 * Returns the text among the ids from which on all operations were begun at or after `at` (Unix seconds). Ids have the order of
 * their beginnings, up to `LATE_SECONDS`, but not the same clock: its jumps backwards are held back in what is begun.
 */
function idsBegunFrom(read: Reader, at: number): string {
  const { begun } = steps(read);
  let [low, high] = [0, ID_TIME_END];
  while (low < high) {
    const middle = Math.floor((low + high) / 2);
    const [begunAt] = begun.get<[bigint]>(idsFrom('op', middle)) ?? [];
    if (begunAt === undefined || begunAt >= at) high = middle;
    else low = middle + 1;
  }
  return idsFrom('op', high);
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
    .select({ count: sql<bigint | null>`sum(${wallets.operationCount})` })
    .from(wallets)
    .where(
      and(
        walletId === undefined ? undefined : eq(wallets.id, walletId),
        accountId === undefined ? undefined : eq(wallets.accountId, accountId),
      ),
    )
    .get();
  return Number(all?.count ?? 0) - open;
}
