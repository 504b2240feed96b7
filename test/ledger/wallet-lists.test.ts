import assert from 'node:assert/strict';
import test, { type TestContext } from 'node:test';
import { drizzle } from 'drizzle-orm/better-sqlite3';
import { Nanos } from '../../src/base/money.ts';
import { beginClosing, closeWallet } from '../../src/ledger/closing.ts';
import { countFrozen, frozenSince } from '../../src/ledger/frozen.ts';
import {
  available,
  countWallets,
  findWallet,
  frozenAncestor,
  listWallets,
  openChildren,
  sortWallets,
  statusAt,
  type Wallet,
  type WalletFilter,
} from '../../src/ledger/wallet.ts';
import { freezeWallet } from '../../src/ledger/wallet-change.ts';
import { createRandom, length, SEED } from '../helper/random.ts';
import { openBooks } from './books.ts';

const STATUSES = ['active', 'closing', 'expired', 'closed'] as const;
const DEPTH_MAX = 4;
/** The wallets whose children are listed. */
const PARENT_COUNT = 15;

/** The budget of a child, which its parent has for some. */
const budgetAt = (depth: number) => Nanos(10n ** BigInt(11 - 2 * depth));

/** Books with trees of wallets that were frozen, ended and closed, and that expire, in any order. */
async function fill(t: TestContext) {
  const random = createRandom(SEED);
  const books = await openBooks(t);
  const { read } = books.ledger;
  const accounts = [await books.account(100_000_000), await books.account(100_000_000)];
  const made: { id: string; depth: number }[] = [];
  let at = 1000;
  const rowOf = ({ id }: { id: string }) => findWallet(read, id) as Wallet;
  for (let i = 0; i < length(200, 500); i++) {
    at += random.whole(0, 5);
    const may = made.filter((it) => statusAt(read, rowOf(it), at) === 'active' && !frozenAncestor(read, rowOf(it)));
    const ended = made.filter((it) => ['closing', 'expired'].includes(rowOf(it).status));
    const what = random.weighted({ open: 6, freeze: 2, end: 1, close: 2 });
    if (what === 'open') {
      const free = may.filter((it) => it.depth < DEPTH_MAX && available(rowOf(it)) >= budgetAt(it.depth + 1));
      const above = random.whole(0, 3) > 0 && free.length ? random.pick(free) : undefined;
      const depth = above ? above.depth + 1 : 0;
      const { id } = await books.wallet(
        above ? rowOf(above).accountId : random.pick(accounts),
        {
          ...(above && { parentId: above.id, budget: budgetAt(depth) }),
          expiresInSeconds: random.pick([0, 0, 200, 2000]),
        },
        at,
      );
      made.push({ id, depth });
    } else if (what === 'close') {
      const it = ended.find(({ id }) => openChildren(read, id, 1).length === 0);
      if (it) await books.ledger.write((tx) => closeWallet(tx, it.id, at));
    } else if (what === 'end' && made.length) {
      const { id } = random.pick(made);
      await books.ledger.write((tx) => beginClosing(tx, id, 'account_request', at));
    } else if (what === 'freeze' && may.length)
      await books.ledger.write(freezeWallet, { id: random.pick(may).id, frozenAt: at, reason: null, now: at });
  }
  return { ...books, accounts, at, all: made.map(rowOf).sort((a, b) => (a.id < b.id ? 1 : -1)) };
}

test(`lists, counts and the order by state agree with the status of each wallet (seed ${SEED})`, async (t) => {
  const { ledger, accounts, at, all } = await fill(t);
  const { read } = ledger;
  const idsOf = (some: readonly { id: string }[]) => some.map(({ id }) => id);
  const parents = [...new Set(all.map(({ parentId }) => parentId ?? undefined))].slice(0, PARENT_COUNT);
  const seen = new Set<string>();
  for (const now of [at, at + 150, at + 5000]) {
    const statuses = new Map(all.map((it) => [it.id, statusAt(read, it, now)]));
    const statusOf = ({ id }: { id: string }) => statuses.get(id);
    const scopes: Partial<WalletFilter>[] = [
      {},
      ...accounts.map((accountId) => ({ accountId })),
      ...parents.map((parentId) => ({ parentId })),
    ];
    for (const scope of scopes) {
      const among = all.filter(
        (it) =>
          (scope.accountId === undefined || it.accountId === scope.accountId) &&
          (scope.parentId === undefined || it.parentId === scope.parentId),
      );
      for (const status of STATUSES) {
        const wanted = idsOf(among.filter((it) => statusOf(it) === status));
        assert.deepEqual(idsOf(listWallets(read, { ...scope, status, now }, { limit: 3000 })), wanted, status);
        assert.equal(countWallets(read, { ...scope, status, now }), wanted.length, status);
      }
      const frozen = among.filter((it) => it.frozenAt !== null && statusOf(it) === 'active');
      assert.deepEqual(idsOf(listWallets(read, { ...scope, isFrozen: true, now }, { limit: 3000 })), idsOf(frozen));
      for (const it of among)
        if (it.status === 'active') seen.add(`${it.parentId === null ? 'top' : 'child'} ${statusOf(it)}`);
    }
    const frozen = all.filter((it) => it.frozenAt !== null && statusOf(it) === 'active');
    assert.equal(countFrozen(read, now).wallet, frozen.length);
    const since = frozen.length ? Math.min(...frozen.map((it) => it.frozenAt as number)) : null;
    assert.equal(frozenSince(read, now).wallets, since);
    const stateOf = (it: Wallet) => (statusOf(it) === 'active' && frozenAncestor(read, it) ? 'frozen' : statusOf(it));
    const sorted = sortWallets(read, { now }, { by: 'state', isDescending: false, from: 0, limit: 3000 });
    const states = sorted.map((row) => stateOf(all.find(({ id }) => id === row.id) as Wallet));
    assert.deepEqual(states, states.toSorted());
  }
  const kinds = ['child active', 'child closing', 'child expired', 'top active', 'top expired'];
  assert.deepEqual([...seen].sort(), kinds, 'active rows, by their place and their status');
});

test('a list by status reads the rows of its list in their order, and of others only those above each', async (t) => {
  const { ledger } = await openBooks(t);
  const { client } = ledger;
  const asked: string[] = [];
  const prepare = client.prepare.bind(client);
  client.prepare = ((sql: string) => {
    asked.push(sql);
    return prepare(sql);
  }) as typeof client.prepare;
  const read = drizzle(client);
  const planOf = (run: () => unknown): string => {
    asked.length = 0;
    run();
    const [statement, ...others] = asked;
    assert(statement !== undefined && others.length === 0);
    const values = Array((statement.match(/\?/g) ?? []).length).fill('x');
    const rows = prepare(`explain query plan ${statement}`).all(...values) as { id: number; detail: string }[];
    return rows.map(({ detail }) => detail).join(' | ');
  };
  const ABOVE =
    /SCAN ending USING INDEX wallet_ending.* SEARCH it USING INDEX wallet_id \(id=\?\).* SCAN above \| SEARCH it USING INDEX wallet_id \(id=\?\)/;
  const parts: [Partial<WalletFilter>, all: RegExp, open: RegExp][] = [
    [{}, /^SCAN wallet USING INDEX wallet_id/, /^SCAN wallet USING INDEX wallet_id/],
    [{ accountId: 'acct_x' }, /^SEARCH wallet USING INDEX wallet_account \(account_id=\?/, /INDEX wallet_open \(acc/],
    [{ parentId: 'wal_x' }, /^SEARCH wallet USING INDEX wallet_parent \(parent_id=\?/, /INDEX wallet_open_child \(par/],
  ];
  for (const [scope, all, open] of parts)
    for (const status of STATUSES) {
      const plan = planOf(() => listWallets(read, { ...scope, status, now: 1 }));
      assert.match(plan, status === 'closed' ? all : open);
      assert.match(plan, ABOVE);
      assert.doesNotMatch(plan, /TEMP B-TREE/);
    }
  const frozen = planOf(() => countWallets(read, { isFrozen: true, now: 1 }));
  assert.match(frozen, /^SCAN wallet USING INDEX wallet_frozen/);
  assert.match(frozen, ABOVE);
  client.prepare = prepare as typeof client.prepare;
});
