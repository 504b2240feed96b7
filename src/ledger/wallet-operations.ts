import { sql } from 'drizzle-orm';
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
  span: `select min(first_operation), max(last_operation) from wallet join balance using (number)
    where id in (select value from json_each(?))`,
  inBlock: 'select number from operation where number >> 8 = ? and wallet_id in (select value from json_each(?))',
  ofBlock: 'select number, wallet_id from operation where number >> 8 = ?',
});

/** The numbers of the first and of the newest operation. */
type NumberRange = { first: number; last: number };

/** Returns the span of the operations of these wallets; undefined where they have none. */
export function spanOf(read: Reader, walletIds: readonly string[]): NumberRange | undefined {
  const [first, last] = reads(read).span.get(JSON.stringify(walletIds)) as [bigint | null, bigint | null];
  return first === null ? undefined : { first: Number(first), last: Number(last) };
}

/** Returns a function that gives the numbers of the operations of these wallets in a block, newest first. */
export function numbersIn(read: Reader, walletIds: readonly string[]): (block: number) => number[] {
  const { inBlock, ofBlock } = reads(read);
  const [ids, among] = [JSON.stringify(walletIds), new Set(walletIds)];
  const rows =
    walletIds.length <= LOOKED_UP_COUNT
      ? (block: number) => inBlock.all<[bigint]>(block, ids)
      : (block: number) => ofBlock.all<[bigint, string]>(block).filter(([, walletId]) => among.has(walletId));
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
