import { sql } from 'drizzle-orm';
import { Nanos, ZERO } from '../base/money.ts';
import { nextTurn } from '../base/turn.ts';
import { prepare, type Reader } from '../db/handle.ts';
import { plain } from '../db/plain.ts';
import { book } from './journal.ts';
import type { Wallet } from './wallet.ts';
import { OPERATIONS_OF_WALLET, operationPages, PAGE_COUNT } from './wallet-operations.ts';

const reads = prepare((read: Reader) => ({
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

const pages = plain({
  newest: 'select max(seq) from entry',
  // An operation has one entry for its hold, and one or two, in a row, for its settlement.
  ofOperations: 'select hold_entry, settle_entry from operation where number >> 8 = ? and wallet_id = ?',
  ofOthers: `select seq from entry where substr(cause_id, 1, 3) <> 'op_' and cause_id in (
    select ?
    union all
    select id from wallet_change where wallet_id = ?
    union all
    -- The amounts that its children got when they opened or were raised, and those that they gave back.
    select id from wallet where parent_id = ?
    union all
    select c.id from wallet_change c join wallet w on w.id = c.wallet_id where w.parent_id = ?)`,
  steps: `select e.seq, e.at, e.cause_id, e.debit, e.credit, e.amount_nanos,
      o.id, o.request_id, o.subject, o.usage, o.settled_by, o.reason, c.kind, c.wallet_id, c.period, c.request_id, w.request_id
    from entry e left join operation o on o.id = e.cause_id left join wallet_change c on c.id = e.cause_id
      left join wallet w on w.id = e.cause_id
    where e.seq in (select value from json_each(?)) and (o.id is null or o.wallet_id = ?) order by e.seq`,
});
type StepRow = [
  ...[seq: bigint, at: bigint, causeId: string, debit: string, credit: string, amount: bigint],
  ...[operationId: string | null, requestOfOperation: string | null, model: string | null, usage: string | null],
  ...[settledBy: string | null, reason: string | null],
  ...[kind: string | null, changedWallet: string | null, period: string | null, requestOfChange: string | null],
  opened: string | null,
];

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

/** Returns the numbers of the entries that may be of the operations of a wallet. Lets other work run between blocks of them. */
async function entriesOfOperations(read: Reader, walletId: string): Promise<number[]> {
  const numbers: number[] = [];
  const readBlock = (block: number) => pages(read).ofOperations.all<[bigint | null, bigint | null]>(block, walletId);
  for await (const page of operationPages(read, [[walletId]], readBlock))
    for (const [hold, settled] of page) {
      if (hold !== null) numbers.push(Number(hold));
      if (settled !== null) numbers.push(Number(settled), Number(settled) + 1); // The second one may be another's.
    }
  return numbers;
}

/**
 * Yields every movement of a wallet's money in order, from opening to closing, or to what was newest when it began. Reads by pages
 * and lets other work run between them: an agent may have sent any number of requests.
 */
export async function* timeline(read: Reader, wallet: Wallet): AsyncGenerator<TimelineStep> {
  const { id } = wallet;
  const own = book.wallet(id);
  const newest = Number(pages(read).newest.get<[bigint | null]>()?.[0] ?? 0n);
  const others = new Set(
    pages(read)
      .ofOthers.all<[bigint]>(id, id, id, id)
      .map(([seq]) => Number(seq)),
  );
  const ofOperations = await entriesOfOperations(read, id);
  const numbers = [...new Set([...others, ...ofOperations])].filter((it) => it <= newest).sort((a, b) => a - b);
  let available = ZERO;
  for (let from = 0; from < numbers.length; from += PAGE_COUNT) {
    if (from > 0) await nextTurn();
    const page = JSON.stringify(numbers.slice(from, from + PAGE_COUNT));
    for (const row of pages(read).steps.all<StepRow>(page, id)) {
      if (row[6] === null && !others.has(Number(row[0]))) continue;
      const step = stepOf(row, wallet, own, available);
      available = step.available;
      yield step;
    }
  }
}

/** Returns the step of an entry. `before` is the available money before it. */
function stepOf(row: StepRow, wallet: Wallet, own: string, before: Nanos): TimelineStep {
  const [seq, at, causeId, debit, credit, amount, operationId, ...rows] = row;
  const [requestOfOperation, model, usage, settledBy, reason, kind, changedWallet, period, requestOfChange, opened] =
    rows;
  const entry = { debit, credit, causeId };
  const what = describe(entry, own, wallet, { kind, walletId: changedWallet });
  const isSettling = operationId !== null && debit === book.hold(wallet.id);
  return {
    seq: Number(seq),
    at: Number(at),
    what,
    amount: Nanos(amount),
    available: Nanos(before + (credit === own ? amount : 0n) - (debit === own ? amount : 0n)),
    operationId,
    requestId: requestOfOperation ?? requestOfChange ?? (what === 'recovered' ? null : opened),
    subject: model ?? period ?? childIn(entry, own),
    usage: isSettling ? usage : null,
    settledBy: isSettling ? settledBy : null,
    reason: isSettling ? reason : null,
  };
}

/** Returns whether at most `max` operations, changes and children, with the changes of these, make up a wallet's timeline. */
export function isTimelineWithin(read: Reader, walletId: string, max: number): boolean {
  return Number(reads(read).causes.get({ walletId, limit: max + 1 })?.count) <= max;
}

type TimelineEntry = { debit: string; credit: string; causeId: string };

function describe(
  { debit, credit, causeId }: TimelineEntry,
  own: string,
  wallet: Wallet,
  change: { kind: string | null; walletId: string | null },
): TimelineStep['what'] {
  if (credit.startsWith('hold:')) return 'held';
  if (credit.startsWith('sales:')) return 'charged';
  if (credit === book.rounding) return 'rounded';
  if (debit.startsWith('hold:')) return 'released';
  if (change.kind === 'refill' && credit === own) return 'refilled';
  if (change.walletId === wallet.id) return credit === own ? 'raised' : 'lowered';
  if (causeId === wallet.id) return credit === own ? 'opened' : 'returned';
  return credit === own ? 'recovered' : 'delegated';
}

/** Returns the child on the other side of an entry, or null. */
function childIn({ debit, credit }: TimelineEntry, own: string): string | null {
  const other = debit === own ? credit : debit;
  return other.startsWith('wallet:') ? other.slice('wallet:'.length) : null;
}
