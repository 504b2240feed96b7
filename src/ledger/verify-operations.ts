import type { Database as Client } from 'better-sqlite3';
import { keyDigest } from '../db/key-digest.ts';

/** Rows fetched at a time. */
const PAGE_COUNT = 1000;

type CheckedRow = [
  number: bigint,
  id: string,
  walletId: string,
  route: string,
  key: string,
  digest: Buffer,
  strays: bigint,
];

/**
 * Reports a gap in the numbers of operations, a digest that is not of its key, an operation without money that names entries, a
 * wallet whose balance counts or names operations not its own, and answers with another operation's number.
 */
export function verifyOperations(client: Client, fault: (text: string) => void): void {
  const page = client
    .prepare(
      `select number, id, wallet_id, route, idempotency_key, key_digest,
          hold_nanos = 0 and coalesce(hold_entry, settle_entry) is not null
        from operation where number > ? order by number limit ${PAGE_COUNT}`,
    )
    .raw();
  const seen = new Map<string, [count: bigint, first: bigint, last: bigint]>();
  let expected = 1n;
  for (let after = -(2n ** 63n); ; ) {
    const rows = page.all(after) as CheckedRow[];
    for (const [number, id, walletId, route, key, digest, strays] of rows) {
      if (number !== expected) fault(`operation ${id} has the number ${number}, ${expected} would be next`);
      expected = number + 1n;
      const [count, first] = seen.get(walletId) ?? [0n, number];
      seen.set(walletId, [count + 1n, first, number]);
      if (!keyDigest(walletId, route, key).equals(digest)) fault(`operation ${id} has a digest that is not of its key`);
      if (strays) fault(`operation ${id} moves no money, but names entries`);
    }
    const last = rows.at(-1);
    if (!last) break;
    after = last[0];
  }
  verifyOfWallets(client, seen, fault);
  const strayed = client
    .prepare(
      'select operation_id from answer left join operation on operation.number = answer.number where operation.id is not operation_id',
    )
    .pluck();
  for (const id of strayed.iterate() as IterableIterator<string>)
    fault(`the answer of operation ${id} has the number of another one`);
}

type WalletCounts = [id: string, count: bigint, first: bigint | null, last: bigint | null];

/** Compares the operations that were seen of each wallet with its balance. */
function verifyOfWallets(
  client: Client,
  seen: ReadonlyMap<string, readonly [count: bigint, first: bigint, last: bigint]>,
  fault: (text: string) => void,
): void {
  const rows = client
    .prepare('select id, operation_count, first_operation, last_operation from wallet join balance using (number)')
    .raw()
    .iterate() as IterableIterator<WalletCounts>;
  for (const [id, counted, first, last] of rows) {
    const [count, oldest, newest] = seen.get(id) ?? [0n, null, null];
    if (count !== counted) fault(`wallet ${id} has had ${counted} operations, ${count} are there`);
    else if (first !== oldest || last !== newest)
      fault(`wallet ${id} does not name its first and its newest operation`);
  }
}
