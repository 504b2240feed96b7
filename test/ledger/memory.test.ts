import assert from 'node:assert/strict';
import test from 'node:test';
import Client from 'better-sqlite3';
import { centsToNanos } from '../../src/base/money.ts';
import { Refusal } from '../../src/base/refusal.ts';
import type { Tx } from '../../src/db/handle.ts';
import { accountOf, suspendAccount } from '../../src/ledger/account.ts';
import { placeHold } from '../../src/ledger/hold.ts';
import { freeze, installationOf } from '../../src/ledger/installation.ts';
import { memoryOf } from '../../src/ledger/memory.ts';
import { findOperation, settle } from '../../src/ledger/operation.ts';
import { setRefill } from '../../src/ledger/refill.ts';
import { findWallet } from '../../src/ledger/wallet.ts';
import { changeBudget, freezeWallet } from '../../src/ledger/wallet-change.ts';
import { createRandom, length, SEED } from '../helper/random.ts';
import { type Books, done, holdOrder, openBooks, refused, unknown } from './books.ts';

const code = (error: unknown) => error instanceof Refusal && error.code;

test('a row that another connection changes is read again', async (t) => {
  const books = await openBooks(t);
  const account = await books.account();
  const { id } = await books.wallet(account);
  await books.hold(id, 5n);
  const other = new Client(books.file);
  t.after(() => other.close());
  other.prepare('update wallet set frozen_at = 1 where id = ?').run(id);
  await assert.rejects(books.hold(id, 5n), (error) => code(error) === 'wallet_frozen');
});

test('a row that another write changes is read again, in the same commit too', async (t) => {
  const books = await openBooks(t);
  const { ledger } = books;
  const account = await books.account();
  const { id } = await books.wallet(account);
  const kinds: [refusal: string, set: (at: number | null) => Promise<unknown>][] = [
    ['wallet_frozen', (at) => ledger.write(freezeWallet, { id, frozenAt: at, reason: null, now: 1 })],
    ['account_suspended', (at) => ledger.write(suspendAccount, { id: account, at })],
    ['read_only', (at) => ledger.write(freeze, { at, reason: null })],
  ];
  const tryHold = () => books.hold(id, 5n).then(() => undefined, code);
  await tryHold();
  for (const [refusal, set] of kinds)
    for (const at of [1, null]) {
      const expected = at === null ? undefined : refusal;
      assert.deepEqual(await Promise.all([set(at).then(() => expected), tryHold()]), [expected, expected]);
      assert.equal(await tryHold(), expected);
    }
});

test('a write that changes a row before it holds holds by the new row', async (t) => {
  const books = await openBooks(t);
  const { id } = await books.wallet(await books.account());
  await books.hold(id, 5n);
  const both = books.ledger.write((tx) => {
    freezeWallet.run(tx, { id, frozenAt: 1, reason: null, now: 1 });
    placeHold(tx, holdOrder(id, 5n), 1);
  });
  await assert.rejects(both, (error) => code(error) === 'wallet_frozen');
});

/** Compares every row that is remembered with the row in the file. */
function assertRemembered(tx: Tx, ids: { accounts: string[]; wallets: string[]; operations: string[] }): void {
  const compare = <R extends object | undefined>(id: string, read: () => R) =>
    assert.deepEqual(memoryOf(tx).recall(id, read), read());
  compare('installation', () => installationOf(tx));
  for (const id of ids.accounts) compare(id, () => accountOf(tx, id));
  for (const id of ids.wallets) compare(id, () => findWallet(tx, id));
  for (const id of ids.operations) compare(id, () => findOperation(tx, id));
}

test(`after any mixture of writes, each row that is remembered is the row in the file (seed ${SEED})`, async (t) => {
  const books = await openBooks(t);
  const { ledger } = books;
  const random = createRandom(SEED);
  const accounts = [await books.account(), await books.account()];
  const wallets: string[] = [];
  for (const account of accounts)
    for (let i = 0; i < 3; i++) wallets.push((await books.wallet(account, { budget: centsToNanos(100) })).id);
  const parent = wallets[0] as string;
  for (let i = 0; i < 2; i++) wallets.push((await openChild(books, accounts[0] as string, parent)).id);
  const operations: string[] = [];
  const open: string[] = [];

  const writes: Record<string, () => Promise<unknown>> = {
    async hold() {
      const { id } = await books.hold(
        random.pick(wallets),
        centsToNanos(random.whole(0, 20)),
        {},
        random.pick([2, 2, 90_000]),
      );
      open.push(id);
      operations.push(id);
    },
    async settle() {
      const [id] = open.splice(0, 1);
      if (!id) return;
      const operation = findOperation(ledger.read, id);
      const charge = BigInt(random.whole(0, Number(operation?.hold)));
      await books.settle(id, random.pick([done(charge), done(charge), refused]), 3);
    },
    async doubt() {
      const [id] = open.splice(0, 1);
      if (id) await books.settle(id, unknown, 3);
    },
    undone: () =>
      ledger.write((tx) => {
        placeHold(tx, holdOrder(random.pick(wallets), 7n), 2);
        const [id] = open;
        if (id) settle(tx, id, refused, 'answer', 3);
        throw new Error('undone');
      }),
    freeze: () =>
      ledger.write(freezeWallet, { id: random.pick(wallets), frozenAt: random.pick([1, null]), reason: null, now: 2 }),
    suspend: () => ledger.write(suspendAccount, { id: random.pick(accounts), at: random.pick([1, null, null]) }),
    raise: () =>
      ledger.write(changeBudget, {
        order: {
          walletId: random.pick(wallets),
          cents: random.pick([-3, 5]),
          idempotencyKey: null,
          fingerprint: Buffer.alloc(32),
          requestId: 'req_1',
        },
        now: 2,
        blocked: undefined,
      }),
    refill: () =>
      ledger.write(setRefill, {
        id: random.pick(wallets),
        refill: { cents: 50, every: 'day', zone: 'UTC', carry: 'none' },
        now: 2,
        blocked: undefined,
      }),
  };
  const weights = { hold: 12, settle: 10, doubt: 1, undone: 1, freeze: 1, suspend: 1, raise: 1, refill: 1 };
  for (let batch = 0; batch < length(150, 3000); batch++) {
    const all = Array.from({ length: random.whole(1, 8) }, () => writes[random.weighted(weights)]?.());
    all.push(ledger.write((tx) => assertRemembered(tx, { accounts, wallets, operations: operations.slice(-50) })));
    const [checked] = (await Promise.allSettled(all)).slice(-1);
    assert.equal(checked?.status, 'fulfilled', String((checked as PromiseRejectedResult).reason));
  }
});

const openChild = (books: Books, accountId: string, parentId: string) =>
  books.wallet(accountId, { parentId, budget: centsToNanos(20) });
