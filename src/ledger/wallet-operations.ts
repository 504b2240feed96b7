import { sql } from 'drizzle-orm';
import { nextTurn } from '../base/turn.ts';
import type { Reader } from '../db/handle.ts';
import { plain } from '../db/plain.ts';

/**
 * The operations of a wallet, by their numbers. An index has them by wallet within each block of 256 successive numbers: so new
 * ones stand side by side in it, whatever their wallets, and a hold changes a page that other holds change too. The operations of
 * one wallet are read block by block, between its first and its newest.
 */
export const BLOCK_COUNT = 256;
export const blockOf = (number: number): number => Math.floor(number / BLOCK_COUNT);

/** Beyond this number of wallets a block is read whole: it costs less than to look each of them up. */
const LOOKED_UP_COUNT = 32;

const reads = plain({
  spans: `select id, first_operation, last_operation from wallet join balance using (number)
    where id in (select value from json_each(?)) and first_operation is not null`,
  inBlock: 'select number from operation where number >> 8 = ? and wallet_id in (select value from json_each(?))',
  ofBlock: 'select number, wallet_id from operation where number >> 8 = ?',
});

/** The numbers of the first and of the newest operation. */
type NumberRange = { first: number; last: number };

/** Returns those among some hundred wallets that have operations, with the span of these. */
const spansOf = (read: Reader, walletIds: readonly string[]): (NumberRange & { id: string })[] =>
  reads(read)
    .spans.all<[string, bigint, bigint]>(JSON.stringify(walletIds))
    .map(([id, first, last]) => ({ id, first: Number(first), last: Number(last) }));

/** The number of rows read at a time: a millisecond or two, in which nothing else is served. */
export const PAGE_COUNT = 500;

/**
 * Yields what `readBlock` reads of each block that may have operations of these wallets, wallet by wallet, the oldest first. Lets
 * other work run between pages of rows.
 */
export async function* operationPages<Row>(
  read: Reader,
  walletIds: AsyncIterable<string[]> | Iterable<string[]>,
  readBlock: (block: number, walletId: string) => Row[],
): AsyncGenerator<Row[]> {
  let rows = 0;
  for await (const some of walletIds)
    for (const { id, first, last } of spansOf(read, some))
      for (let block = blockOf(first); block <= blockOf(last); block++) {
        const page = readBlock(block, id);
        yield page;
        rows += page.length + 1;
        if (rows < PAGE_COUNT) continue;
        rows = 0;
        await nextTurn();
      }
}

/** Wallets that have operations, and the span of those. */
type Spenders = NumberRange & { ids: ReadonlySet<string> };

/** Returns those among these wallets that have operations. They are given some hundred at a time; `signal` ends the search. */
export async function spendersIn(
  read: Reader,
  walletIds: AsyncIterable<string[]> | Iterable<string[]>,
  signal?: AbortSignal,
): Promise<Spenders> {
  const ids = new Set<string>();
  let [first, last] = [Number.POSITIVE_INFINITY, 0];
  for await (const some of walletIds) {
    for (const span of spansOf(read, some)) {
      ids.add(span.id);
      first = Math.min(first, span.first);
      last = Math.max(last, span.last);
    }
    if (signal?.aborted) break;
  }
  return { ids, first, last };
}

/** Returns the number of rows that it takes to find the operations of these wallets in a block. */
export const rowsInBlock = ({ size }: ReadonlySet<string>): number => (size <= LOOKED_UP_COUNT ? size : BLOCK_COUNT);

/** Returns a function that gives the numbers of the operations of these wallets in a block, newest first. */
export function numbersIn(read: Reader, walletIds: ReadonlySet<string>): (block: number) => number[] {
  const { inBlock, ofBlock } = reads(read);
  const ids = walletIds.size <= LOOKED_UP_COUNT ? JSON.stringify([...walletIds]) : undefined;
  const rows =
    ids !== undefined
      ? (block: number) => inBlock.all<[bigint]>(block, ids)
      : (block: number) => ofBlock.all<[bigint, string]>(block).filter(([, walletId]) => walletIds.has(walletId));
  return (block) =>
    rows(block)
      .map(([number]) => Number(number))
      .sort((a, b) => b - a);
}

/** The operations of a wallet as a subquery with the placeholder `walletId`. */
export const OPERATIONS_OF_WALLET = sql`(
  select operation.* from (
    with recursive block(n, last) as (
      select first_operation >> 8, last_operation >> 8 from wallet join balance using (number)
        where wallet.id = ${sql.placeholder('walletId')} and first_operation is not null
      union all
      select n + 1, last from block where n < last)
    select n from block)
  cross join operation on operation.number >> 8 = n and operation.wallet_id = ${sql.placeholder('walletId')})`;
