import { nextTurn } from '../base/turn.ts';
import type { Reader } from '../db/handle.ts';
import { plain } from '../db/plain.ts';
import { LIST_COUNT_MAX } from './wallet.ts';

/** The number of wallets that are read at a time: a millisecond or two, in which nothing else is served. */
const STEP_COUNT = 500;

const reads = plain({
  parents: `select value from json_each(?)
    where exists (select 1 from wallet where parent_id is not null and parent_id = value)`,
  ofAccount: `select id from wallet where account_id = ? and id > ? order by id limit ${STEP_COUNT}`,
  children: `select id from wallet where parent_id is not null and parent_id = ? and id > ? order by id limit ${STEP_COUNT}`,
});

/**
 * Yields the ids of a wallet and of all below it, closed ones included, some hundred at a time. Other work runs in between: a wallet
 * may have had very many children.
 */
export async function* walletsBelow(read: Reader, rootId: string): AsyncGenerator<string[]> {
  const { parents, children } = reads(read);
  const waiting = [rootId];
  while (waiting.length) {
    const step = waiting.splice(-STEP_COUNT);
    yield step;
    let count = 0;
    for (const [parent] of parents.all<[string]>(JSON.stringify(step)))
      for (let after: string | undefined = ''; after !== undefined; ) {
        const ids: string[] = children.all<[string]>(parent, after).map(([id]) => id);
        waiting.push(...ids);
        count += ids.length;
        after = ids.length === STEP_COUNT ? ids.at(-1) : undefined;
        if (count < STEP_COUNT) continue;
        count = 0;
        await nextTurn();
      }
    if (waiting.length) await nextTurn();
  }
}

/** Yields the ids of the wallets of an account in the same way. */
export async function* walletsOfAccount(read: Reader, accountId: string): AsyncGenerator<string[]> {
  for (let after: string | undefined = ''; after !== undefined; await nextTurn()) {
    const ids: string[] = reads(read)
      .ofAccount.all<[string]>(accountId, after)
      .map(([id]) => id);
    yield ids;
    after = ids.length === STEP_COUNT ? ids.at(-1) : undefined;
  }
}

/** A page of a list of what a tree has: at most 100 ids. */
type NewestPage = { before: string; limit: number };

/** Returns a function that gives the newest leases, or snapshots, of a wallet and of all below it: their ids, newest first. */
export function newestBelow(table: 'resource' | 'snapshot') {
  const lists = plain({
    owners: `select value from json_each(?) where exists (select 1 from ${table} where wallet_id = value)`,
    newestId: `select max(id) from ${table}`,
    ofWallet: `select id from ${table} where wallet_id = ? and id < ? and id <= ? and id > ? order by id desc limit ${LIST_COUNT_MAX}`,
  });
  return async (read: Reader, rootId: string, { before, limit }: NewestPage): Promise<string[]> => {
    const { owners, newestId, ofWallet } = lists(read);
    let newest: string[] = [];
    // None that is made while the list is read: it would be on the page, and one made before it in a wallet that was read already not.
    const end = newestId.get<[string | null]>()?.[0] ?? '';
    for await (const walletIds of walletsBelow(read, rootId))
      for (const [walletId] of owners.all<[string]>(JSON.stringify(walletIds))) {
        const after = newest.length === limit ? (newest.at(-1) as string) : '';
        const ids = ofWallet.all<[string]>(walletId, before, end, after).map(([id]) => id);
        if (ids.length) newest = [...newest, ...ids].sort().reverse().slice(0, limit);
      }
    return newest;
  };
}
