import { parseDecimal } from '../../src/base/money.ts';

export type Entry = { seq: number; cause_id: string; debit: string; credit: string; amount_usd: string };
/** What the journal says of one operation. Amounts are nano-dollars. */
export type Booked = { walletId: string; holds: bigint[]; charges: bigint[]; releases: bigint[] };

const NANOS_DECIMALS = 9;
export const nanos = (usd: string): bigint => parseDecimal(usd, NANOS_DECIMALS);
export const sum = (amounts: Iterable<bigint>): bigint => [...amounts].reduce((total, it) => total + it, 0n);

/** Reads `ledger export`: the operations, and how often each wallet was opened. */
export function readBooks(jsonl: string): {
  entries: Entry[];
  operations: Map<string, Booked>;
  opened: Map<string, number>;
} {
  const entries = jsonl
    .trimEnd()
    .split('\n')
    .map((line) => JSON.parse(line) as Entry);
  const operations = new Map<string, Booked>();
  const opened = new Map<string, number>();
  for (const { cause_id: id, debit, credit, amount_usd: usd } of entries) {
    if (id.startsWith('wal_') && credit === `wallet:${id}`) opened.set(id, (opened.get(id) ?? 0) + 1);
    if (!id.startsWith('op_')) continue;
    const walletId = (credit.startsWith('hold:') ? credit : debit).replace('hold:', '');
    const booked = operations.get(id) ?? { walletId, holds: [], charges: [], releases: [] };
    operations.set(id, booked);
    const kind = credit.startsWith('hold:') ? 'holds' : credit.startsWith('sales:') ? 'charges' : 'releases';
    booked[kind].push(nanos(usd));
  }
  return { entries, operations, opened };
}
