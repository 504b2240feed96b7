import assert from 'node:assert/strict';
import test, { type TestContext } from 'node:test';
import { drizzle } from 'drizzle-orm/better-sqlite3';
import { idsFrom } from '../../src/base/id.ts';
import { Nanos } from '../../src/base/money.ts';
import type { Reader } from '../../src/db/handle.ts';
import { operations } from '../../src/db/schema.ts';
import { goBackTo } from '../../src/ledger/accepted-clock.ts';
import { placeHold } from '../../src/ledger/hold.ts';
import { type Operation, settle } from '../../src/ledger/operation.ts';
import { countOperations, type OperationFilter, searchOperations } from '../../src/ledger/operation-search.ts';
import { createRandom, length, SEED } from '../helper/random.ts';
import { type Books, done, holdOrder, openBooks, refused, unknown } from './books.ts';

const BEGIN = 1_790_000_000;
/** The clock of the ids is ahead of that of the books. */
const AHEAD = 7200;
const LATE_SECONDS = 600;
/** Pages of a search that are turned: a limit of 1 makes many. */
const PAGE_COUNT_MAX = 12;
/** The wallets of the first two trees, by their places. */
const TREES: Readonly<Record<number, readonly number[]>> = { 0: [0, 4, 5, 6], 4: [4, 6] };
/** The account of a wallet, by its place. */
const accountAt = (place: number) => (place < 4 ? place % 2 : 0);

type Filled = { books: Books; all: Operation[]; wallets: string[]; accounts: string[] };

/** Books with operations of every state, most of them some seconds apart, whose ids are up to ten minutes older than they. */
async function fill(t: TestContext, count: number): Promise<Filled> {
  const random = createRandom(SEED);
  const books = await openBooks(t);
  const accounts = [await books.account(10_000_000), await books.account(10_000_000)];
  const wallets: string[] = [];
  for (let i = 0; i < 4; i++) wallets.push((await books.wallet(accounts[i % 2] as string)).id);
  for (const above of [0, 0, 4]) {
    const order = { parentId: wallets[above] as string, budget: Nanos(above === 0 ? 100_000_000n : 50_000_000n) };
    wallets.push((await books.wallet(accounts[0] as string, order)).id);
  }
  let at = BEGIN;
  for (let i = 0; i < count; ) {
    const end = Math.min(count, i + 500);
    await books.ledger.write((tx) => {
      for (; i < end; i++) {
        at += random.whole(0, 20);
        const made = at - random.whole(0, LATE_SECONDS);
        const suffix = random.whole(10 ** 15, 10 ** 16 - 1);
        const order = holdOrder(random.pick(wallets), BigInt(random.whole(1, 1000)), {
          id: `${idsFrom('op', (made + AHEAD) * 1000 + (i % 1000))}${suffix}`,
          subject: random.pick(['small', 'large']),
          tags: random.pick([null, '{"team":"red"}', '{"a":"b","team":"blue"}']),
        });
        placeHold(tx, order, at);
        const outcome = { charged: done(BigInt(random.whole(0, Number(order.hold)))), refused, unknown };
        const what = random.weighted({ charged: 20, refused: 3, unknown: 1, held: 1 });
        if (what !== 'held') settle(tx, order.id, outcome[what], 'answer', at + 3);
      }
    });
  }
  const all = books.ledger.read.select().from(operations).all();
  return { books, all: all.sort((a, b) => b.number - a.number), wallets, accounts };
}

/** Whether an operation matches, said once more in other words. */
function matches(it: Operation, filter: OperationFilter, { wallets, accounts }: Filled): boolean {
  const treeOf = (id: string) => (TREES[wallets.indexOf(id)] ?? [wallets.indexOf(id)]).map((at) => wallets[at]);
  const accountOf = (id: string) => accounts[accountAt(wallets.indexOf(id))];
  const cost = it.charge ?? it.hold;
  const tags = Object.entries(JSON.parse(it.tags ?? '{}')).map(([name, value]) => `${name}=${value}`);
  return (
    (filter.walletId === undefined || it.walletId === filter.walletId) &&
    (filter.rootId === undefined || treeOf(filter.rootId).includes(it.walletId)) &&
    (filter.accountId === undefined || accountOf(it.walletId) === filter.accountId) &&
    (filter.state === undefined || [it.state, it.outcome].includes(filter.state as never)) &&
    (filter.subject === undefined || it.subject === filter.subject) &&
    (filter.tag === undefined || tags.includes(filter.tag)) &&
    (filter.since === undefined || it.createdAt >= filter.since) &&
    (filter.until === undefined || it.createdAt < filter.until) &&
    (filter.costMin === undefined || cost >= filter.costMin) &&
    (filter.costMax === undefined || cost <= filter.costMax)
  );
}

test(`pages of a search have each operation that matches once, whatever is sought (seed ${SEED})`, async (t) => {
  const filled = await fill(t, length(1700, 8000));
  const { books, all, wallets, accounts } = filled;
  const { read } = books.ledger;
  const random = createRandom(SEED + 1);
  const length_ = (all[0] as Operation).createdAt - BEGIN;
  const seen = { pages: 0, cut: 0, found: 0 };
  for (let i = 0; i < length(150, 1000); i++) {
    const given = <T>(share: number, make: () => T) => (random.whole(1, 100) <= share ? make() : undefined);
    const since = given(40, () => BEGIN + random.whole(-100, length_));
    const filter: OperationFilter = {
      walletId: given(30, () => random.pick(wallets)),
      rootId: given(30, () => random.pick(wallets)),
      accountId: given(20, () => random.pick(accounts)),
      state: given(40, () => random.pick(['reserved', 'uncertain', 'settled', 'charged', 'released'] as const)),
      subject: given(20, () => random.pick(['small', 'large', 'none'])),
      tag: given(20, () => random.pick(['team=red', 'team=blue', 'a=b', 'team'])),
      since,
      until: given(40, () => (since ?? BEGIN) + random.whole(0, length_)),
      costMin: given(20, () => Nanos(BigInt(random.whole(0, 900)))),
      costMax: given(20, () => Nanos(BigInt(random.whole(0, 900)))),
    };
    const isOpen = filter.state === 'reserved' || filter.state === 'uncertain';
    const first = isOpen && random.whole(0, 1) ? 'oldest' : 'newest';
    const wanted = all.filter((it) => matches(it, filter, filled)).map(({ id }) => id);
    if (first === 'oldest') wanted.reverse();
    const [limit, examinedMax] = [random.pick([1, 7, 100, 3000]), random.pick([500, 1000, Number.POSITIVE_INFINITY])];
    const found: string[] = [];
    let after: string | undefined;
    for (let pages = 0; pages < PAGE_COUNT_MAX; pages++) {
      const page = await searchOperations(read, filter, { after, limit, first, examinedMax });
      found.push(...page.operations.map(({ id }) => id));
      seen.pages++;
      if (page.isCut) seen.cut++;
      else if (page.goesOnAfter !== undefined) assert.equal(page.operations.length, limit, 'a page is full');
      after = page.goesOnAfter;
      if (after === undefined) break;
    }
    const reached = after === undefined ? wanted : wanted.slice(0, found.length);
    assert.deepEqual(found, reached, JSON.stringify(filter, text));
    const count = countOperations(read, filter);
    if (count !== undefined) assert.equal(count, wanted.length, JSON.stringify(filter, text));
    seen.found += found.length;
  }
  assert.ok(seen.cut > 10 && seen.pages > 200 && seen.found > 5000, JSON.stringify(seen));
  const counted = [{}, { walletId: wallets[0] }, { accountId: accounts[1], state: 'settled' as const }];
  for (const filter of counted) assert.equal(typeof countOperations(read, filter), 'number');
});

test('a search by time finds what began after the books went back to an earlier time', async (t) => {
  const books = await openBooks(t);
  const { id } = await books.wallet(await books.account());
  const begun = async (at: number) => (await books.hold(id, 1n, {}, at)).createdAt;
  for (const at of [100, 200, 300, 90_000, 90_100]) await begun(at);
  await books.ledger.write((tx) => goBackTo(tx, 'the clock was wrong', 400));
  for (const at of [400, 500, 600, 700]) await begun(at);
  for (const [since, until, wanted] of [
    [200, 90_000, [700, 600, 500, 400, 300, 200]],
    [500, undefined, [700, 600, 500, 90_100, 90_000]],
    [undefined, 90_000, [700, 600, 500, 400, 300, 200, 100]],
  ] as const) {
    const { operations: found } = await searchOperations(books.ledger.read, { since, until });
    assert.deepEqual(
      found.map(({ createdAt }) => createdAt),
      wanted,
    );
  }
});

test('a page behind an operation that is not in the books, as after a restore, lacks none of those before it', async (t) => {
  const books = await openBooks(t);
  const { id: walletId } = await books.wallet(await books.account());
  const idOf = (at: number) => idsFrom('op', at * 1000).padEnd(29, '0');
  for (const at of [10, 20, 30, 40]) await books.hold(walletId, 1n, { id: idOf(at) });
  const first = 'oldest' as const;
  for (const filter of [{}, { walletId }, { rootId: walletId }, { state: 'reserved' as const }])
    for (const at of [5, 10, 25, 30, 50]) {
      const before = [40, 30, 20, 10].filter((it) => it < at).map(idOf);
      const page = await searchOperations(books.ledger.read, filter, { after: idOf(at) });
      assert.deepEqual([page.operations.map(({ id }) => id), page.goesOnAfter], [before, undefined], `${at}`);
      if (!('state' in filter)) continue;
      const later = await searchOperations(books.ledger.read, filter, { after: idOf(at), first });
      assert.deepEqual(
        later.operations.map(({ id }) => id),
        [10, 20, 30, 40].filter((it) => it > at).map(idOf),
      );
    }
});

const text = (_: string, value: unknown) => (typeof value === 'bigint' ? String(value) : value);

/** Runs a search on a fresh handle. Returns its statements, how often each was run, and their plans. */
async function plansOf({ ledger: { client } }: Books, run: (read: Reader) => unknown) {
  const asked = new Map<string, number>();
  const prepare = client.prepare.bind(client);
  client.prepare = ((sql: string) => {
    const statement = prepare(sql);
    for (const name of ['get', 'all'] as const) {
      const original = statement[name].bind(statement);
      statement[name] = ((...values: unknown[]) => {
        asked.set(sql, (asked.get(sql) ?? 0) + 1);
        return original(...values);
      }) as never;
    }
    return statement;
  }) as typeof client.prepare;
  await run(drizzle(client));
  client.prepare = prepare;
  return [...asked].map(([sql, times]) => {
    const values = Array((sql.match(/\?/g) ?? []).length).fill('x');
    const rows = client.prepare(`explain query plan ${sql}`).all(...values) as { detail: string }[];
    return { sql, times, plan: rows.map((it) => it.detail).join(' | ') };
  });
}

test('no search reads all operations: one of an hour among many days looks at some hundred', async (t) => {
  const { books, all, wallets } = await fill(t, length(6000, 30_000));
  const middle = all[Math.floor(all.length / 2)] as Operation;
  const [since, until] = [middle.createdAt - 1800, middle.createdAt + 1800];
  const filters: OperationFilter[] = [
    { since, until },
    { since, until, walletId: wallets[0] as string, tag: 'team=red' },
    { since, until, state: 'charged', subject: 'large', costMin: Nanos(500n) },
    { state: 'uncertain' },
    { state: 'reserved', walletId: wallets[1] as string },
    { walletId: wallets[1] as string, state: 'settled' },
    {},
  ];
  for (const filter of filters) {
    const plans = await plansOf(books, async (read) => {
      const { operations: found } = await searchOperations(read, filter, {
        limit: filter.since === undefined ? 5 : 3000,
      });
      assert.ok(found.length > 0, JSON.stringify(filter, text));
      countOperations(read, filter);
    });
    for (const { sql, times, plan } of plans) {
      const where = `${JSON.stringify(filter, text)}: ${sql}: ${plan}`;
      // What holds money is sorted: it is few.
      if (!/operation_open/.test(plan)) assert.doesNotMatch(plan, /SCAN operation|TEMP B-TREE/, where);
      if (!/select created_at| >> /.test(sql)) assert.ok(times <= 4, `${times} times ${where}`);
      assert.ok(times <= 2 * 48, `${times} times ${where}`);
    }
  }
});

test('a search in a tree of wallets reads a part of it at a time, and other work runs in between', async (t) => {
  const count = length(6000, 30_000);
  const { books, all, wallets } = await fill(t, count);
  const rootId = wallets[0] as string;
  const inTree = all.filter(({ walletId }) => [0, 4, 5, 6].some((at) => wallets[at] === walletId)).length;
  let turns = 0;
  let isOver = false;
  const turn = () => {
    turns++;
    if (!isOver) setImmediate(turn);
  };
  turn();
  const plans = await plansOf(books, async (read) => {
    assert.deepEqual((await searchOperations(read, { rootId, tag: 'team=none' })).operations, []);
    isOver = true;
    const { operations: found } = await searchOperations(read, { rootId });
    assert.equal(found.length, 100);
  });
  assert.ok(turns > inTree / 1000, `${turns} turns for ${inTree} operations`);
  const read = plans.filter(({ sql }) => /"tags"/.test(sql));
  assert.equal(read.length, 2);
  for (const { sql, plan } of plans) {
    assert.doesNotMatch(plan, /SCAN operation/, `${sql}: ${plan}`);
    if (/ >> /.test(sql)) assert.match(plan, /operation_wallet \(<expr>=\? AND wallet_id=\?\)/, `${sql}: ${plan}`);
  }
  const [open, ...others] = await plansOf(books, async (read) => {
    assert.ok((await searchOperations(read, { rootId, state: 'uncertain' })).operations.length > 0);
  });
  assert.match(open?.plan ?? '', /^SCAN operation USING INDEX operation_open .*SEARCH wallet USING INDEX wallet_id/);
  assert.doesNotMatch(open?.plan ?? '', /wallet_parent|SCAN wallet/, 'upwards from what holds money');
  assert.equal(others.length, 0);
  const ended = await searchOperations(
    books.ledger.read,
    { rootId, tag: 'team=none' },
    { signal: AbortSignal.abort() },
  );
  assert.equal(ended.isCut, false);
});

test('a search in a tree of many spenders reads few rows of others at a time', async (t) => {
  const books = await openBooks(t);
  const account = await books.account(10_000_000);
  const [root, other] = [await books.wallet(account), await books.wallet(account)];
  const count = length(4000, 40_000);
  await books.hold(root.id, 1n);
  for (let i = 0; i < 40; i++) {
    const { id } = await books.wallet(account, { parentId: root.id, budget: Nanos(1n) });
    await books.hold(id, 1n);
  }
  for (let i = 0; i < count; i += 500)
    await books.ledger.write((tx) => {
      for (let n = 0; n < 500; n++) placeHold(tx, holdOrder(other.id, 1n), 1);
    });
  await books.hold(root.id, 1n);
  let turns = 0;
  let next = setImmediate(function turn() {
    turns++;
    next = setImmediate(turn);
  });
  const { operations: found } = await searchOperations(books.ledger.read, { rootId: root.id });
  clearImmediate(next);
  assert.equal(found.length, 42);
  assert.ok(turns >= count / 600, `${turns} turns for ${count} operations of another`);
});
