import { gt } from 'drizzle-orm';
import { formatUsd } from '../base/money.ts';
import type { Reader } from '../db/handle.ts';
import { entries } from '../db/schema.ts';

const PAGE_COUNT = 1000;
const COLUMNS = ['seq', 'at', 'cause_id', 'debit', 'credit', 'amount_usd', 'prev_hash', 'hash'] as const;

/**
 * Yields the journal in order as lines of JSON or CSV; CSV starts with a heading. Reads page by page, because one long
 * read would keep the write-ahead log from being reset.
 */
export function* exportEntries(read: Reader, format: 'jsonl' | 'csv'): Generator<string> {
  if (format === 'csv') yield COLUMNS.join(',');
  for (let after = 0; ; ) {
    const page = read.select().from(entries).where(gt(entries.seq, after)).orderBy(entries.seq).limit(PAGE_COUNT).all();
    for (const entry of page) {
      const row = {
        seq: entry.seq,
        at: entry.at,
        cause_id: entry.causeId,
        debit: entry.debit,
        credit: entry.credit,
        amount_usd: formatUsd(entry.amount),
        prev_hash: entry.prevHash.toString('hex'),
        hash: entry.hash.toString('hex'),
      };
      // Values are ids, book names and figures: none contains a comma or a quote.
      yield format === 'csv' ? COLUMNS.map((name) => row[name]).join(',') : JSON.stringify(row);
    }
    const last = page.at(-1);
    if (!last) return;
    after = last.seq;
  }
}
