import assert from 'node:assert/strict';
import test, { type TestContext } from 'node:test';
import type { Statement } from 'better-sqlite3';
import type { Reader } from '../../src/db/handle.ts';
import { searchOperations } from '../../src/ledger/operation-search.ts';
import { listResourcesBelow } from '../../src/ledger/resource.ts';
import { listSnapshotsBelow } from '../../src/ledger/snapshot.ts';
import { sumSpending } from '../../src/ledger/spending.ts';
import { windUpWallets } from '../../src/reaper/chores.ts';
import { endSpending } from '../../src/wallet/close.ts';
import { length } from '../helper/random.ts';
import { childOf } from '../helper/tenants.ts';
import { LONG, openMemoryServer } from '../lease/leases.ts';
import { openSnapshot } from '../lease/snapshot-shared.ts';

const CHILD_COUNT = length(5000, 50_000);
/** Every twentieth child is below the one before it. */
const DEEP_EVERY = 20;
const LEASED_COUNT = 300;

/** A wallet that has had many closed children, some hundred of which leased something and took a snapshot. */
async function openWide(t: TestContext) {
  const leased = await openSnapshot(t);
  const { purser, wallet, token } = leased;
  await purser.app.reaper.stop();
  const child = await childOf(purser, token, '0.1');
  assert.equal((await purser.chat(child.token)).status, 200);
  assert.equal((await purser.ask('POST', `/v1/run/wallets/${child.id}/close`, { token })).status, 200);
  const { client, read } = purser.app.ledger;
  /** Adds copies of a row, each with its number `i` in the columns of `change`. */
  const copy = (table: string, where: string, times: number, change: Record<string, string>) => {
    const columns = (client.pragma(`table_info(${table})`) as { name: string }[]).map(({ name }) => name);
    purser.tamper(`pragma foreign_keys = off;
      with recursive n(i) as (select 0 union all select i + 1 from n where i < ${times - 1})
      insert into ${table} select ${columns.map((it) => change[it] ?? it).join(', ')}
        from (select * from ${table} where ${where} limit 1), n`);
  };
  const newest = Number(client.prepare('select max(number) from wallet').pluck().get());
  copy('wallet', `id = '${child.id}'`, CHILD_COUNT, {
    id: 'id || i',
    number: `${newest + 1} + i`,
    parent_id: `iif(i % ${DEEP_EVERY} = 1, id || (i - 1), parent_id)`,
    token_hash: 'cast(token_hash || i as blob)',
    idempotency_key: 'idempotency_key || i',
    first_operation: 'null',
  });
  for (const table of ['resource', 'snapshot'])
    copy(table, 'true', LEASED_COUNT, {
      id: `id || printf('%05d', i * 7919 % 100003)`, // Those of one child are among those of the others.
      wallet_id: `'${child.id}' || (i * 4001 % 1999)`,
      ...Object.fromEntries(['tag', 'operation_id'].map((it) => [it, `${it} || i`])),
    });
  return { purser, wallet, copy, read, client };
}

/** Runs something, and returns its result and how often other work could run meanwhile. */
async function turnsOf<T>(run: () => T): Promise<{ turns: number; result: Awaited<T> }> {
  let turns = 0;
  let next = setImmediate(function turn() {
    turns++;
    next = setImmediate(turn);
  });
  const result = await run();
  clearImmediate(next);
  return { turns, result };
}

test('what an agent lists is read some hundred wallets at a time, however many children its wallet has had', async (t) => {
  const { purser, wallet, read, client } = await openWide(t);
  const stranger = await purser.openWallet({ budget_cents: 500 });
  const other = await purser.lease(stranger.token);
  assert.equal(other.status, 200, other.text);
  const idsOf = (rows: readonly { id: string }[]) => rows.map(({ id }) => id);
  const all = (sql: string) => client.prepare(sql).pluck().all(stranger.id) as string[];
  const lists: Record<string, (read: Reader, page: { before?: string; limit?: number }) => Promise<{ id: string }[]>> =
    {
      resource: (reader, page) => listResourcesBelow(reader, wallet, page),
      snapshot: (reader, page) => listSnapshotsBelow(reader, wallet, page),
    };
  for (const [table, list] of Object.entries(lists)) {
    const wanted = all(`select id from ${table} where wallet_id <> ? order by id desc`);
    assert.equal(wanted.length, LEASED_COUNT + 1);
    const { turns, result } = await turnsOf(() => list(read, {}));
    assert.deepEqual(idsOf(result), wanted.slice(0, 100));
    assert(turns >= CHILD_COUNT / 500, `${turns} turns`);
    const found: string[] = [];
    for (let before: string | undefined; found.length < wanted.length; before = found.at(-1)) {
      const page = await list(read, { before: before as string, limit: 70 });
      assert(page.length === 70 || found.length + page.length === wanted.length);
      found.push(...idsOf(page));
    }
    assert.deepEqual(found, wanted);
  }
  const operations = all('select id from operation where wallet_id <> ? order by number desc');
  const searched = await turnsOf(() => searchOperations(read, { rootId: wallet }));
  assert.deepEqual(idsOf(searched.result.operations), operations);
  assert(searched.turns >= CHILD_COUNT / 500, `${searched.turns} turns`);
  for (const scope of [{ wallet }, { account: purser.accountId }]) {
    const { turns, result } = await turnsOf(() => sumSpending(read, { by: 'model', scope }));
    assert.equal(result.rows.find(({ key }) => key === 'chat')?.operations, 1);
    assert(turns >= CHILD_COUNT / 500, `${turns} turns`);
  }
});

test('while a list is read, what is made newer hides nothing that is older than what is shown', async (t) => {
  const { wallet, copy, read, client } = await openWide(t);
  const add = (name: string, owner: string) => {
    const change = { id: `'res_zzzz' || '${name}'`, wallet_id: `'${owner}'`, tag: `tag || 'z${name}'` };
    copy('resource', 'true', 1, { ...change, operation_id: `operation_id || 'z${name}'` });
  };
  const wallets = client
    .prepare('select id from wallet where parent_id = ? order by id')
    .pluck()
    .all(wallet) as string[];
  const earlier = await listResourcesBelow(read, wallet, { limit: 2 });
  let turns = 0;
  const turn = () => {
    if (++turns < 4) return void setImmediate(turn);
    add('1', wallets[0] as string); // It has been looked at,
    add('2', wallets.at(-1) as string); // and this one has not.
  };
  setImmediate(turn);
  const page = await listResourcesBelow(read, wallet, { limit: 2 });
  assert.equal(turns, 4);
  assert.deepEqual(page, earlier);
  const ids = (await listResourcesBelow(read, wallet, { limit: 3 })).map(({ id }) => id);
  assert.deepEqual(ids, ['res_zzzz2', 'res_zzzz1', page[0]?.id]);
});

test('trees that have ended and wait look at all live leases once in a pass, not once for each tree', async (t) => {
  const purser = await openMemoryServer(t);
  await purser.app.reaper.stop();
  const { ledger, clock } = purser.app;
  const tops: string[] = [];
  for (let i = 0; i < 12; i++) {
    const { id, token } = await purser.openWallet({ ...LONG, budget_cents: 500 });
    const child = await childOf(purser, token, '4');
    assert.equal((await purser.lease(child.token)).status, 200);
    tops.push(id);
  }
  purser.memory.before.destroy = () => Promise.reject(new Error('the engine is away'));
  const reads: string[] = [];
  const statements: { all: (this: Statement, ...values: unknown[]) => unknown } = Object.getPrototypeOf(
    ledger.client.prepare('select 1'),
  );
  const { all } = statements;
  t.after(() => Object.assign(statements, { all }));
  statements.all = function (...values) {
    if (/recursive above/.test(this.source)) reads.push(this.source);
    return all.apply(this, values);
  };
  const reaped = { closed: 0, pending: 0 } as Parameters<typeof windUpWallets>[1];
  await windUpWallets(purser.app, reaped);
  assert.deepEqual(reads, [], 'nothing is ending');
  for (const id of tops) await ledger.write(endSpending, { id, reason: 'account_request', now: clock.now() });
  reads.length = 0; // A write that ends a wallet has looked.
  await windUpWallets(purser.app, reaped);
  assert.equal(reaped.closed, 0);
  assert.equal(reads.length, 1, reads.join('\n'));
});
