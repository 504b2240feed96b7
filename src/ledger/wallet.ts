import assert from 'node:assert/strict';
import {
  and,
  asc,
  count,
  desc,
  eq,
  getTableColumns,
  gt,
  gte,
  lt,
  lte,
  or,
  type Placeholder,
  type SQL,
  sql,
} from 'drizzle-orm';
import { Nanos, ZERO } from '../base/money.ts';
import { Refusal } from '../base/refusal.ts';
import { prepare, type Reader, type Tx } from '../db/handle.ts';
import { plain, recordOf } from '../db/plain.ts';
import { balances, wallets } from '../db/schema.ts';

const { number: _, ...FIGURES } = getTableColumns(balances);
const COLUMNS = { ...getTableColumns(wallets), ...FIGURES };
export type Wallet = typeof wallets.$inferSelect & Omit<typeof balances.$inferSelect, 'number'>;

/** The condition of an open wallet. Written out, as a partial index is not used for a value that is bound. */
export const IS_OPEN_WALLET = sql`${wallets.status} <> 'closed'`;

/** Begins a query of wallets: their records with their figures. */
export const selectWallets = (read: Reader) =>
  read.select(COLUMNS).from(wallets).innerJoin(balances, eq(balances.number, wallets.number));

/** Lists return the latest 100 rows unless asked for fewer (interface, section 1). */
export const LIST_COUNT_MAX = 100;
/** A page of a list: rows before this id, at most `limit` of them. */
export type ListPage = { before?: string | undefined; limit?: number | undefined };

const record = recordOf(COLUMNS);
const lookUps = plain({
  byId: `select ${record.list} from wallet join balance on balance.number = wallet.number where wallet.id = ?`,
});

const reads = prepare((read: Reader) => ({
  byToken: selectWallets(read)
    .where(eq(wallets.tokenHash, sql.placeholder('tokenHash')))
    .prepare(),
  byKey: selectWallets(read)
    .where(and(eq(wallets.accountId, sql.placeholder('accountId')), eq(wallets.idempotencyKey, sql.placeholder('key'))))
    .prepare(),
  openOfAccount: selectWallets(read)
    .where(and(eq(wallets.accountId, sql.placeholder('accountId')), sql`${wallets.parentId} is null`, IS_OPEN_WALLET))
    .orderBy(asc(wallets.id))
    .prepare(),
  anyChild: read
    .select({ id: wallets.id })
    .from(wallets)
    .where(and(sql`${wallets.parentId} is not null`, eq(wallets.parentId, sql.placeholder('parentId'))))
    .limit(1)
    .prepare(),
  openChildren: read
    .select({ id: wallets.id })
    .from(wallets)
    .where(and(sql`${wallets.parentId} is not null`, eq(wallets.parentId, sql.placeholder('parentId')), IS_OPEN_WALLET))
    .orderBy(asc(wallets.id))
    .limit(sql.placeholder('max'))
    .prepare(),
  due: read
    .select({ id: wallets.id, expiresAt: wallets.expiresAt })
    .from(wallets)
    .where(
      and(
        sql`${wallets.status} = 'active' and ${wallets.expiresAt} is not null`,
        lte(wallets.expiresAt, sql.placeholder('now')),
        or(
          gt(wallets.expiresAt, sql.placeholder('afterAt')),
          and(eq(wallets.expiresAt, sql.placeholder('afterAt')), gt(wallets.id, sql.placeholder('afterId'))),
        ),
      ),
    )
    .orderBy(asc(wallets.expiresAt), asc(wallets.id))
    .limit(LIST_COUNT_MAX)
    .prepare(),
  nextExpiry: read
    .select({ at: wallets.expiresAt })
    .from(wallets)
    .where(sql`${wallets.status} = 'active' and ${wallets.expiresAt} is not null`)
    .orderBy(asc(wallets.expiresAt))
    .limit(1)
    .prepare(),
  ending: read
    .select({ id: wallets.id, parentId: wallets.parentId })
    .from(wallets)
    .where(and(sql`${wallets.status} in ('closing', 'expired')`, gt(wallets.id, sql.placeholder('after'))))
    .orderBy(asc(wallets.id))
    .limit(LIST_COUNT_MAX)
    .prepare(),
}));

const writes = plain({
  hold: `update balance set held_nanos = held_nanos + ?, operation_count = operation_count + 1, last_operation = ?
    where number = ?`,
  begin: 'update wallet set first_operation = ? where number = ?',
  settle: `update balance set held_nanos = held_nanos - ?, spent_nanos = spent_nanos + ?, answer_count = answer_count + ?
    where number = ?`,
});

/** Returns the wallet with this id, or undefined. */
export function findWallet(read: Reader, id: string): Wallet | undefined {
  const row = lookUps(read).byId.get(id);
  return row && record.from(row);
}

/** Returns the wallet whose token has this hash, or undefined. */
export function findWalletByToken(read: Reader, tokenHash: Buffer): Wallet | undefined {
  return reads(read).byToken.get({ tokenHash });
}

/** Returns the wallet that this idempotency key of the account made. */
export function findWalletByKey(read: Reader, accountId: string, key: string): Wallet | undefined {
  return reads(read).byKey.get({ accountId, key });
}

/**
 * Returns a wallet of this account. Throws `not_found` alike for an unknown id and for another account's (design 2.5).
 */
export function walletOf(read: Reader, accountId: string, id: string): Wallet {
  const wallet = findWallet(read, id);
  if (!wallet || wallet.accountId !== accountId) throw new Refusal('not_found', 'There is no such wallet.');
  return wallet;
}

export type WalletFilter = {
  accountId?: string | undefined;
  parentId?: string | undefined;
  /** The effective status at `now`. */
  status?: Wallet['status'] | undefined;
  /** Opened at or after this, Unix seconds. */
  since?: number | undefined;
  /** Only wallets that are frozen and may otherwise spend. */
  isFrozen?: boolean;
  /** A part of the name, in any case. */
  named?: string | undefined;
  now: number;
};

/**
 * Returns what `statusAt` returns, in SQL. It looks upwards from an active child, to the nearest above it that has ended, and only
 * while wallets are ending: a closed one has no active child.
 */
const effectiveStatus = (now: number | Placeholder): SQL => {
  const isExpired = sql`(wallet.expires_at is not null and wallet.expires_at <= ${now})`;
  const endedAbove = sql`(
    with recursive above(parent_id, status, since) as (
      select parent_id, status, closing_since from wallet as it where it.id = wallet.parent_id
      union all select it.parent_id, it.status, it.closing_since
        from above join wallet as it on it.id = above.parent_id where above.status = 'active'
    ) select status from above where status <> 'active' and (not ${isExpired} or since < wallet.expires_at))`;
  const mayBeEnded = sql`wallet.parent_id is not null
    and exists (select 1 from wallet as ending where ending.status in ('closing', 'expired'))`;
  return sql`case when wallet.status <> 'active' then wallet.status
    else coalesce(iif(${mayBeEnded}, ${endedAbove}, null), iif(${isExpired}, 'expired', 'active')) end`;
};

/** Holds for wallets that are frozen and may otherwise spend. Its first part must match the partial index's condition. */
export const isFrozenOnly = (now: number | Placeholder): SQL =>
  sql`${wallets.frozenAt} is not null and ${wallets.status} = 'active' and ${effectiveStatus(now)} = 'active'`;

/**
 * Holds for wallets that would be active, and spend nothing as they or one above them is frozen. It looks upwards only while anything is
 * frozen.
 */
const spendsNothing = (now: number): SQL => {
  const isAnyFrozen = sql`exists (select 1 from wallet as it where it.frozen_at is not null and it.status = 'active')`;
  const isFrozenAbove = sql`exists (
    with recursive above(parent_id, frozen_at) as (
      select parent_id, frozen_at from wallet as it where it.id = wallet.parent_id
      union all select it.parent_id, it.frozen_at from above join wallet as it on it.id = above.parent_id
    ) select 1 from above where frozen_at is not null)`;
  return sql`${effectiveStatus(now)} = 'active' and (wallet.frozen_at is not null
    or (wallet.parent_id is not null and ${isAnyFrozen} and ${isFrozenAbove}))`;
};

function matching(
  { accountId, parentId, status, since, isFrozen, named, now }: WalletFilter,
  before?: string,
): SQL | undefined {
  return and(
    accountId === undefined ? undefined : eq(wallets.accountId, accountId),
    parentId === undefined ? undefined : and(sql`${wallets.parentId} is not null`, eq(wallets.parentId, parentId)),
    status === undefined || status === 'closed' ? undefined : IS_OPEN_WALLET, // For the partial indexes.
    status === undefined ? undefined : sql`${effectiveStatus(now)} = ${status}`,
    since === undefined ? undefined : gte(wallets.createdAt, since),
    isFrozen ? isFrozenOnly(now) : undefined,
    named === undefined ? undefined : sql`instr(lower(${wallets.name}), lower(${named})) > 0`,
    before === undefined ? undefined : lt(wallets.id, before),
  );
}

/** Returns wallets, newest first, before the id `before`, at most `limit`. */
export function listWallets(read: Reader, filter: WalletFilter, page: ListPage = {}): Wallet[] {
  return selectWallets(read)
    .where(matching(filter, page.before))
    .orderBy(desc(wallets.id))
    .limit(page.limit ?? LIST_COUNT_MAX)
    .all();
}

/** Counts the wallets that `listWallets` pages through. */
export function countWallets(read: Reader, filter: WalletFilter): number {
  return Number(read.select({ count: count() }).from(wallets).where(matching(filter)).get()?.count);
}

/** The columns by which lists of wallets are sorted. */
export const WALLET_COLUMNS = [
  'name',
  'state',
  'used',
  'spent',
  'available',
  'budget',
  'last',
  'expires',
  'account',
] as const;
export type WalletColumn = (typeof WALLET_COLUMNS)[number];
/** The number of wallets that are sorted, the newest: some 20 ms, in which nothing else is served. */
export const SORTED_COUNT_MAX = 10_000;

const IN_USE = '(balance.spent_nanos + balance.held_nanos + wallet.delegated_nanos)';
/** Returns what each order compares; null comes last in either direction. */
const sortKeys = (now: number): Record<WalletColumn, SQL> => ({
  name: sql`lower(wallet.name)`,
  state: sql`iif(${spendsNothing(now)}, 'frozen', ${effectiveStatus(now)})`,
  used: sql.raw(`case wallet.budget_nanos when 0 then null else ${IN_USE} * 1.0 / wallet.budget_nanos end`),
  spent: sql`balance.spent_nanos`,
  available: sql.raw(`case wallet.status when 'closed' then 0 else wallet.budget_nanos - ${IN_USE} end`),
  budget: sql`wallet.budget_nanos`,
  last: sql`balance.last_operation`,
  expires: sql.raw(`case wallet.status when 'closed' then null else coalesce(wallet.expires_at, 1 << 62) end`),
  account: sql`(select lower(account.name) from account where account.id = wallet.account_id)`,
});

/** Returns a part of the newest 10,000 wallets, sorted; those that are equal, newest first. */
export function sortWallets(
  read: Reader,
  filter: WalletFilter,
  { by, isDescending, from, limit }: { by: WalletColumn; isDescending: boolean; from: number; limit: number },
): Wallet[] {
  const sorted = read
    .select({ id: wallets.id, key: sql`${sortKeys(filter.now)[by]}`.as('key') })
    .from(wallets)
    .innerJoin(balances, eq(balances.number, wallets.number))
    .where(matching(filter))
    .orderBy(desc(wallets.id))
    .limit(SORTED_COUNT_MAX)
    .as('sorted');
  return read
    .select({ id: sorted.id })
    .from(sorted)
    .orderBy(sql`${sorted.key} is null`, (isDescending ? desc : asc)(sorted.key), desc(sorted.id))
    .limit(limit)
    .offset(from)
    .all()
    .map(({ id }) => findWallet(read, id) as Wallet);
}

type Balances = Pick<Wallet, 'budget' | 'held' | 'spent' | 'delegated'>;

/** Returns the amount that the wallet may still spend or delegate. */
export const available = ({ budget, held, spent, delegated }: Balances): Nanos =>
  Nanos(budget - held - spent - delegated);

/** Returns the available amount as it is displayed: zero for a closed wallet, which has given back its rest. */
export const shownAvailable = (wallet: Balances & Pick<Wallet, 'status'>): Nanos =>
  wallet.status === 'closed' ? ZERO : available(wallet);

/**
 * Returns the effective status at `now`: expiry is computed, and a wallet ends with the ones above it, so a late reaper never
 * changes an answer (design, section 9).
 */
export function statusAt(read: Reader, wallet: Wallet, now: number, find = findWallet): Wallet['status'] {
  if (wallet.status !== 'active') return wallet.status;
  return endOf(read, wallet, now, find)?.status ?? 'active';
}

type WalletEnd = Pick<Wallet, 'status' | 'closeReason' | 'closingSince'>;

/**
 * Returns how a wallet with an active row has ended at `now`: by its own expiry, or with one above it, whichever came first, so that
 * the answer stays the same. Undefined while it may spend.
 */
export function endOf(read: Reader, wallet: Wallet, now: number, find = findWallet): WalletEnd | undefined {
  const ended = endedBy(read, wallet, find);
  const { expiresAt } = wallet;
  if (expiresAt === null || expiresAt > now || (ended?.closingSince ?? now) < expiresAt) return ended;
  return { status: 'expired', closeReason: 'expired', closingSince: expiresAt };
}

/**
 * Returns the wallet whose end this one shares: itself, or the nearest above it that spends no more by its row. Undefined where all
 * are active.
 */
export function endedBy(read: Reader, wallet: Wallet, find = findWallet): Wallet | undefined {
  for (const it of lineage(read, wallet, find)) if (it.status !== 'active') return it;
  return undefined;
}

/** Throws `wallet_closed` or `wallet_expired` unless the wallet may spend at `now`. */
export function refuseInactive(read: Reader, wallet: Wallet, now: number, find = findWallet): void {
  const status = statusAt(read, wallet, now, find);
  if (status === 'active') return;
  const byExpiry = status === 'expired' || wallet.closeReason === 'expired';
  throw new Refusal(
    byExpiry ? 'wallet_expired' : 'wallet_closed',
    `The wallet ${wallet.id} ${byExpiry ? 'has expired' : status === 'closed' ? 'is closed' : 'is closing'}.`,
  );
}

/** Throws `wallet_frozen` while the wallet, or one that its budget comes from, is frozen (design, section 13). */
export function refuseFrozen(read: Reader, wallet: Wallet, find = findWallet): void {
  const it = frozenAncestor(read, wallet, find);
  if (!it) return;
  const whose = it.id === wallet.id ? `The wallet ${it.id}` : `The wallet ${it.id}, which this one is a child of,`;
  const why = it.freezeReason === null ? '' : `: ${it.freezeReason}`;
  throw new Refusal('wallet_frozen', `${whose} is frozen${why}. It spends nothing until it is unfrozen.`);
}

/**
 * Returns the wallet whose freeze applies to this one: itself, or the nearest above it. Undefined where none is frozen, and for a
 * closed wallet that is not frozen itself: its record is final.
 */
export function frozenAncestor(read: Reader, wallet: Wallet, find = findWallet): Wallet | undefined {
  if (wallet.status === 'closed') return wallet.frozenAt === null ? undefined : wallet;
  for (const it of lineage(read, wallet, find)) if (it.frozenAt !== null) return it;
  return undefined;
}

/** Returns the wallet, its parent, and so on up to the one whose budget comes from the account. */
export function* lineage(read: Reader, wallet: Wallet, find = findWallet): Generator<Wallet> {
  for (let it: Wallet | undefined = wallet; it; it = it.parentId === null ? undefined : find(read, it.parentId))
    yield it;
}

/**
 * The ids of the live leases or snapshots of a wallet and of all below it: a subquery with the placeholder `walletId`. It walks
 * upwards from all that is live, as a tree may have many more wallets than machines: for a wallet with children only.
 */
export const liveBelow = (table: 'resource' | 'snapshot') => sql`(
  with recursive above(live, id) as (
    select id, wallet_id from ${sql.identifier(table)} where ended_at is null
    union all select live, wallet.parent_id from wallet join above on wallet.id = above.id where wallet.parent_id is not null
  ) select live from above where id = ${sql.placeholder('walletId')})`;

/**
 * Returns the ids of the wallets that have ended by themselves and have, or have below them, live leases or snapshots that are not marked
 * to be ended.
 */
export const endedWithUnmarked = (read: Reader): Set<string> =>
  new Set(
    unmarked(read)
      .owners.all<[string]>()
      .map(([id]) => id),
  );

const LIVE_UNMARKED = 'where ended_at is null and end_wanted is null';
const unmarked = plain({
  owners: `with recursive above(id) as (
      select wallet_id from resource ${LIVE_UNMARKED}
      union select wallet_id from snapshot ${LIVE_UNMARKED}
      union select parent_id from wallet join above on wallet.id = above.id where parent_id is not null
    ) select above.id from above join wallet on wallet.id = above.id where status in ('closing', 'expired')`,
});

/** Returns the open wallets of an account whose budget comes from the account itself, oldest first. */
export function openWalletsOf(read: Reader, accountId: string): Wallet[] {
  return reads(read).openOfAccount.all({ accountId });
}

/** Returns whether a wallet has, or had, children: the answer takes no longer for one that has had very many. */
export const hasChildren = (read: Reader, parentId: string): boolean =>
  reads(read).anyChild.get({ parentId }) !== undefined;

/** Returns whether a wallet has open children. */
export const hasOpenChildren = (read: Reader, id: string): boolean => openChildren(read, id, 1).length > 0;

/** Returns the ids of the open children of a wallet, oldest first, at most `max`. */
export function openChildren(read: Reader, parentId: string, max = 2 ** 31): string[] {
  return reads(read)
    .openChildren.all({ parentId, max })
    .map((it) => it.id);
}

/**
 * Adds an operation and its hold to a wallet's figures, and returns the wallet after it. The caller has checked that it fits and
 * posts the entry.
 */
export function raiseHeld(tx: Tx, wallet: Wallet, { number, hold }: { number: number; hold: Nanos }): Wallet {
  assert.equal(writes(tx).hold.run(hold, number, wallet.number), 1);
  if (wallet.firstOperation === null) assert.equal(writes(tx).begin.run(number, wallet.number), 1);
  const [held, operationCount] = [Nanos(wallet.held + hold), wallet.operationCount + 1];
  return { ...wallet, held, operationCount, firstOperation: wallet.firstOperation ?? number, lastOperation: number };
}

/** A hold that ends, its charge, and the number of answers that are stored with it. */
type EndedHold = { hold: Nanos; charge: Nanos; answers: number };

/**
 * Turns a hold into a charge in a wallet's figures, releases the rest, and returns the wallet after it. The caller posts the entries.
 */
export function settleHeld(tx: Tx, wallet: Wallet, { hold, charge, answers }: EndedHold): Wallet {
  assert.equal(writes(tx).settle.run(hold, charge, answers, wallet.number), 1);
  const [held, spent] = [Nanos(wallet.held - hold), Nanos(wallet.spent + charge)];
  return { ...wallet, held, spent, answerCount: wallet.answerCount + answers };
}

export type DueCursor = { id: string; expiresAt: number | null };

/** Returns active wallets whose expiry has come, earliest first, at most 100, after `cursor`. */
export function dueWallets(read: Reader, now: number, cursor: DueCursor = { id: '', expiresAt: -1 }): DueCursor[] {
  return reads(read).due.all({ now, afterAt: cursor.expiresAt, afterId: cursor.id });
}

/** Returns the Unix seconds of the earliest expiry of an active wallet. */
export function nextExpiry(read: Reader): number | undefined {
  return reads(read).nextExpiry.get()?.at ?? undefined;
}

/**
 * Returns since when a wallet that has ended and is not closed spends nothing (Unix seconds); null for others, and where that was not
 * recorded.
 */
export function endedSince(read: Reader, wallet: Wallet, now: number): number | null {
  const { status, closingSince, expiresAt } = { ...wallet, ...endOf(read, wallet, now) };
  if (status !== 'closing' && status !== 'expired') return null;
  return closingSince ?? (status === 'expired' ? expiresAt : null);
}

/** Returns how many wallets have ended and could not be closed at their second attempt either, and the first of them, by id. */
export function stuckWallets(read: Reader, limit: number): { total: number; first: Wallet[] } {
  const isStuck = sql`${wallets.status} in ('closing', 'expired') and ${wallets.cleanupAttempts} > 1`;
  const total = Number(read.select({ count: count() }).from(wallets).where(isStuck).get()?.count);
  return { total, first: selectWallets(read).where(isStuck).orderBy(asc(wallets.id)).limit(limit).all() };
}

/** Returns wallets that are closing or expired and not yet closed, by id, at most 100, after `after`. */
export function endingWallets(read: Reader, after = ''): Pick<Wallet, 'id' | 'parentId'>[] {
  return reads(read).ending.all({ after });
}
