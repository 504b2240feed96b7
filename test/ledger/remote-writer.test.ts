import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import type { Worker } from 'node:worker_threads';
import { Refusal } from '../../src/base/refusal.ts';
import { chatWrites } from '../../src/chat/terms.ts';
import { defineWrite } from '../../src/db/write.ts';
import { findAccount, listAccounts, openAccount, suspendAccount } from '../../src/ledger/account.ts';
import { headOf } from '../../src/ledger/head.ts';
import { operationFrom } from '../../src/ledger/hold.ts';
import { install, installationOf } from '../../src/ledger/installation.ts';
import { openLedger } from '../../src/ledger/ledger.ts';
import { openWallet } from '../../src/ledger/open-wallet.ts';
import { findOperation } from '../../src/ledger/operation.ts';
import { available, findWallet, type Wallet } from '../../src/ledger/wallet.ts';
import { done, holdOrder, MASTER_KEY_ID, opening, temporaryDirectory, walletOrder } from './books.ts';

/** A ledger that is written by its thread. */
async function openRemote(t: TestContext) {
  const file = join(temporaryDirectory(t), 'purser.db');
  const fatal = Promise.withResolvers<unknown>();
  const thread = Promise.withResolvers<Worker>();
  process.once('worker', thread.resolve);
  const marks: unknown[] = [];
  const ledger = openLedger(file, {
    migrate: true,
    fatal: fatal.resolve,
    committed: (newest) => marks.push(newest()),
  });
  let isClosed = false;
  const close = async () => {
    if (!isClosed) await ledger.close();
    isClosed = true;
  };
  t.after(close);
  await ledger.write(install, { masterKeyId: MASTER_KEY_ID, now: 1 });
  return { file, ledger, fatal: fatal.promise, thread: await thread.promise, marks, close };
}

const account = (name: string) => ({ name, creditCents: 5000, now: 1 });

/** Keeps this thread busy, so that no message reaches it meanwhile. */
const block = (milliseconds: number) => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, milliseconds);

test('what changes credentials is counted before whoever waits for it goes on; a paid request is not', async (t) => {
  const { ledger } = await openRemote(t);
  const { id: accountId } = await ledger.write(openAccount, account('a'));
  const { wallet } = await ledger.write(openWallet, opening(walletOrder(accountId), 1));
  const [changes, commits] = [ledger.changeCount(), ledger.commitCount()];
  const order = holdOrder(wallet.id, 7n);
  const placed = await ledger.write(chatWrites.hold, {
    order,
    terms: undefined,
    now: 1,
    blocked: undefined,
    limited: undefined,
  });
  assert.deepEqual(
    operationFrom(order, placed, 1),
    findOperation(ledger.read, order.id),
    'what it became needs no reading',
  );
  const settled = await ledger.write(chatWrites.settle, { id: order.id, outcome: done(3n), now: 1 });
  assert.equal(settled.available, available(findWallet(ledger.read, wallet.id) as Wallet));
  assert.equal(ledger.changeCount(), changes);
  assert(ledger.commitCount() > commits);
  await ledger.write(openAccount, account('b'));
  assert(ledger.changeCount() > changes);
});

test('a write is on disk, can be read and is in the mark when it resolves, with bytes and amounts as they were', async (t) => {
  const { ledger, marks } = await openRemote(t);
  const { id } = await ledger.write(openAccount, account('a'));
  assert.equal(findAccount(ledger.read, id)?.availableCents, 5000);
  assert.deepEqual(marks.at(-1), headOf(ledger.read));
  const order = walletOrder(id);
  const { wallet, isNew } = await ledger.write(openWallet, opening(order, 1));
  assert.equal(isNew, true);
  assert(Buffer.isBuffer(wallet.tokenHash) && wallet.tokenHash.equals(order.tokenHash));
  assert.deepEqual(wallet, findWallet(ledger.read, wallet.id));
});

test('what is asked for in one turn of the event loop shares commits, and resolves in that order', async (t) => {
  const { ledger } = await openRemote(t);
  const before = ledger.commitCount();
  const order: number[] = [];
  await Promise.all(
    Array.from({ length: 100 }, async (_, i) => {
      await ledger.write(openAccount, account(`account ${i}`));
      order.push(i);
    }),
  );
  assert(ledger.commitCount() - before < 100, 'a commit holds what five milliseconds allow');
  assert.deepEqual(order, [...order.keys()]);
  assert.equal(listAccounts(ledger.read).length, 100);
});

/** Counts the messages to the thread. */
function countMessages(thread: Worker): () => number {
  let count = 0;
  const post = thread.postMessage.bind(thread);
  thread.postMessage = (message: unknown) => {
    count++;
    post(message);
  };
  return () => count;
}

test('while each turn brings one more write they share a message, for at most eight turns', async (t) => {
  const { ledger, thread } = await openRemote(t);
  const messages = countMessages(thread);
  const writing: Promise<unknown>[] = [];
  const writeEachTurn = (left: number) => {
    if (left > 1) setImmediate(writeEachTurn, left - 1); // Before the turn in which the message would be sent.
    writing.push(ledger.write(openAccount, account(`account ${left}`)));
  };
  writeEachTurn(27);
  while (writing.length < 27) await new Promise((resolve) => setImmediate(resolve));
  await Promise.all(writing);
  assert.equal(messages(), 3, 'the first of each, and those of eight turns');
});

test('a message waits for no more than twenty writes, and one that is alone does not wait', async (t) => {
  const { ledger, thread } = await openRemote(t);
  const messages = countMessages(thread);
  const writing: Promise<unknown>[] = [];
  const writeEachTurn = (left: number) => {
    if (left > 1) setImmediate(writeEachTurn, left - 1);
    for (let i = 0; i < 10; i++) writing.push(ledger.write(openAccount, account(`account ${left}.${i}`)));
  };
  writeEachTurn(4);
  while (writing.length < 40) await new Promise((resolve) => setImmediate(resolve));
  await Promise.all(writing);
  assert.equal(messages(), 2);
  await ledger.write(openAccount, account('alone'));
  assert.equal(messages(), 3);
});

test('what a write throws comes as it was thrown, and its neighbours are written', async (t) => {
  const { ledger } = await openRemote(t);
  const unknown = defineWrite('test.in_this_thread_only', () => {});
  const [refused, broken, done] = await Promise.allSettled([
    ledger.write(suspendAccount, { id: 'acct_none', at: 1 }),
    ledger.write(unknown, undefined),
    ledger.write(openAccount, account('a')),
  ]);
  assert(refused.status === 'rejected' && refused.reason instanceof Refusal);
  assert.equal(refused.reason.code, 'not_found');
  assert(broken.status === 'rejected' && !(broken.reason instanceof Refusal));
  assert.match(broken.reason.message, /no write of the name test\.in_this_thread_only/);
  assert.equal(done.status, 'fulfilled');
});

test('all reads of one turn see the same rows, whatever is committed meanwhile', async (t) => {
  const { ledger } = await openRemote(t);
  const count = () => listAccounts(ledger.read).length;
  const written = ledger.write(openAccount, account('a'));
  await new Promise((resolve) => setImmediate(resolve)); // It is sent.
  await new Promise((resolve) => setImmediate(resolve));
  const before = count();
  block(300);
  assert.equal(count(), before);
  await written;
  assert.equal(count(), 1);
});

test('the end of the thread is the end of the process, and what waits for it is not answered', async (t) => {
  const { ledger, thread, fatal } = await openRemote(t);
  let isAnswered = false;
  const answered = () => {
    isAnswered = true;
  };
  void ledger.write(openAccount, account('a')).then(answered, answered);
  await thread.terminate();
  assert.match(String(await fatal), /the thread that writes has ended/);
  await new Promise((resolve) => setImmediate(resolve));
  assert.equal(isAnswered, false);
  await assert.rejects(ledger.write(openAccount, account('b')), /the ledger is closed/);
});

test('closing waits for what was asked for, leaves no log behind and takes nothing more', async (t) => {
  const { ledger, file, close } = await openRemote(t);
  const written = ledger.write(openAccount, account('a'));
  const closed = close();
  assert.equal((await written).name, 'a');
  await closed;
  assert.equal(existsSync(`${file}-wal`), false);
  await assert.rejects(ledger.write(openAccount, account('b')), /the ledger is closed/);
});

test('the connection of everybody else writes nothing', async (t) => {
  const { ledger } = await openRemote(t);
  assert.throws(() => ledger.client.prepare("update installation set freeze_reason = 'x'").run(), /readonly/);
  assert.equal(installationOf(ledger.read).freezeReason, null);
});
