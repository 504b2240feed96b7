import { asc, eq, or, sql } from 'drizzle-orm';
import { prepare, type Reader } from '../db/handle.ts';
import { entries, operations } from '../db/schema.ts';
import { Nanos, ZERO } from '../money.ts';
import { book } from './journal.ts';
import type { Wallet } from './wallet.ts';

const reads = prepare((read: Reader) => ({
  ofWallet: read
    .select({ entry: entries, operation: operations })
    .from(entries)
    .leftJoin(operations, eq(operations.id, entries.causeId))
    .where(
      or(
        eq(entries.causeId, sql.placeholder('walletId')),
        sql`${entries.causeId} in (select id from operation where wallet_id = ${sql.placeholder('walletId')})`,
      ),
    )
    .orderBy(asc(entries.seq))
    .prepare(),
}));

export type Step = {
  seq: number;
  at: number;
  what: 'opened' | 'held' | 'charged' | 'released' | 'returned' | 'rounded';
  amount: Nanos;
  /** What the wallet could spend afterwards. */
  available: Nanos;
  operationId: string | null;
  requestId: string;
  /** The model or the resource, and what was metered. */
  subject: string | null;
  usage: string | null;
  settledBy: string | null;
  reason: string | null;
};

/** Returns every movement of a wallet's money in order, from opening to closing: why is my $3.20 gone? */
export function timeline(read: Reader, wallet: Wallet): Step[] {
  let available = ZERO;
  return reads(read)
    .ofWallet.all({ walletId: wallet.id })
    .map(({ entry, operation }) => {
      const own = book.wallet(wallet.id);
      if (entry.credit === own) available = Nanos(available + entry.amount);
      if (entry.debit === own) available = Nanos(available - entry.amount);
      const settling = operation !== null && entry.debit === book.hold(wallet.id);
      return {
        seq: entry.seq,
        at: entry.at,
        what: describe(entry.debit, entry.credit, own),
        amount: entry.amount,
        available,
        operationId: operation?.id ?? null,
        requestId: operation?.requestId ?? wallet.requestId,
        subject: operation?.subject ?? null,
        usage: settling ? operation.usage : null,
        settledBy: settling ? operation.settledBy : null,
        reason: settling ? operation.reason : null,
      };
    });
}

function describe(debit: string, credit: string, own: string): Step['what'] {
  if (credit.startsWith('hold:')) return 'held';
  if (credit.startsWith('sales:')) return 'charged';
  if (credit === book.rounding) return 'rounded';
  if (credit === own) return debit.startsWith('hold:') ? 'released' : 'opened';
  return 'returned';
}
