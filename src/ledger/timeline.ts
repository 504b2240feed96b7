import { asc, eq, sql } from 'drizzle-orm';
import { Nanos, ZERO } from '../base/money.ts';
import { prepare, type Reader } from '../db/handle.ts';
import { entries, operations, walletChanges, wallets } from '../db/schema.ts';
import { book } from './journal.ts';
import type { Wallet } from './wallet.ts';
import { OPERATIONS_OF_WALLET } from './wallet-operations.ts';

const reads = prepare((read: Reader) => ({
  ofWallet: read
    .select({ entry: entries, operation: operations, change: walletChanges, opened: wallets.requestId })
    .from(entries)
    .leftJoin(operations, eq(operations.id, entries.causeId))
    .leftJoin(walletChanges, eq(walletChanges.id, entries.causeId))
    .leftJoin(wallets, eq(wallets.id, entries.causeId))
    .where(
      // An operation has one entry for its hold, and one or two, in a row, for its settlement.
      sql`${entries.seq} in (
        with own as materialized (select id, hold_entry, settle_entry from ${OPERATIONS_OF_WALLET})
        select hold_entry from own
        union all
        select settle_entry from own
        union all
        select e.seq from own join entry e on e.seq = own.settle_entry + 1 and e.cause_id = own.id
        union all
        select seq from entry where substr(cause_id, 1, 3) <> 'op_' and cause_id in (
          select ${sql.placeholder('walletId')}
          union all
          select id from wallet_change where wallet_id = ${sql.placeholder('walletId')}
          union all
          -- The amounts that its children got when they opened or were raised, and those that they gave back.
          select id from wallet where parent_id = ${sql.placeholder('walletId')}
          union all
          select c.id from wallet_change c join wallet w on w.id = c.wallet_id
            where w.parent_id = ${sql.placeholder('walletId')}))`,
    )
    .orderBy(asc(entries.seq))
    .prepare(),
  /** Stops counting at `limit`: the rest is not read. */
  causes: read
    .select({ count: sql<number>`count(*)` })
    .from(
      sql`(
        select 1 from ${OPERATIONS_OF_WALLET}
        union all
        select 1 from wallet_change where wallet_id = ${sql.placeholder('walletId')}
        union all
        select 1 from wallet where parent_id = ${sql.placeholder('walletId')}
        union all
        select 1 from wallet w join wallet_change c on c.wallet_id = w.id
          where w.parent_id = ${sql.placeholder('walletId')}
        limit ${sql.placeholder('limit')})`,
    )
    .prepare(),
}));

export type TimelineStep = {
  seq: number;
  at: number;
  what:
    | 'opened'
    | 'raised'
    | 'lowered'
    | 'refilled'
    | 'delegated'
    | 'recovered'
    | 'held'
    | 'charged'
    | 'released'
    | 'returned'
    | 'rounded';
  amount: Nanos;
  /** The wallet's available money afterwards. */
  available: Nanos;
  operationId: string | null;
  /** Null for money that a child gave back: the request that closed it is not in the books. */
  requestId: string | null;
  /** The model or the resource, and the metered quantity. */
  subject: string | null;
  usage: string | null;
  settledBy: string | null;
  reason: string | null;
};

/** Returns every movement of a wallet's money in order, from opening to closing. */
export function timeline(read: Reader, wallet: Wallet): TimelineStep[] {
  let available = ZERO;
  return reads(read)
    .ofWallet.all({ walletId: wallet.id })
    .map(({ entry, operation, change, opened }) => {
      const own = book.wallet(wallet.id);
      if (entry.credit === own) available = Nanos(available + entry.amount);
      if (entry.debit === own) available = Nanos(available - entry.amount);
      const settling = operation !== null && entry.debit === book.hold(wallet.id);
      const what = describe(entry, own, wallet, change);
      return {
        seq: entry.seq,
        at: entry.at,
        what,
        amount: entry.amount,
        available,
        operationId: operation?.id ?? null,
        requestId: operation?.requestId ?? change?.requestId ?? (what === 'recovered' ? null : opened),
        subject: operation?.subject ?? change?.period ?? childIn(entry, own),
        usage: settling ? operation.usage : null,
        settledBy: settling ? operation.settledBy : null,
        reason: settling ? operation.reason : null,
      };
    });
}

/** Returns whether at most `max` operations, changes and children, with the changes of these, make up a wallet's timeline. */
export function isTimelineWithin(read: Reader, walletId: string, max: number): boolean {
  return Number(reads(read).causes.get({ walletId, limit: max + 1 })?.count) <= max;
}

type TimelineEntry = typeof entries.$inferSelect;

function describe(
  { debit, credit, causeId }: TimelineEntry,
  own: string,
  wallet: Wallet,
  change: typeof walletChanges.$inferSelect | null,
): TimelineStep['what'] {
  if (credit.startsWith('hold:')) return 'held';
  if (credit.startsWith('sales:')) return 'charged';
  if (credit === book.rounding) return 'rounded';
  if (debit.startsWith('hold:')) return 'released';
  if (change?.kind === 'refill' && credit === own) return 'refilled';
  if (change?.walletId === wallet.id) return credit === own ? 'raised' : 'lowered';
  if (causeId === wallet.id) return credit === own ? 'opened' : 'returned';
  return credit === own ? 'recovered' : 'delegated';
}

/** Returns the child on the other side of an entry, or null. */
function childIn({ debit, credit }: TimelineEntry, own: string): string | null {
  const other = debit === own ? credit : debit;
  return other.startsWith('wallet:') ? other.slice('wallet:'.length) : null;
}
