import assert from 'node:assert/strict';
import test, { type TestContext } from 'node:test';
import { centsToNanos } from '../../src/base/money.ts';
import { placeHold } from '../../src/ledger/hold.ts';
import {
  AFTER,
  ANSWER_KEPT_SECONDS,
  findAnswer,
  findOperation,
  type Operation,
  type Outcome,
  resolveOperation,
} from '../../src/ledger/operation.ts';
import { verifyLedger } from '../../src/ledger/verify.ts';
import { findWallet } from '../../src/ledger/wallet.ts';
import { done, holdOrder, openBooks, refused, unknown } from './books.ts';

const HOLD = 100n;
const CHARGE = 30n;
const OUTCOMES = { done: done(CHARGE), refused, unknown } satisfies Record<Outcome<never>['kind'], unknown>;

/** An operation in each state, in a wallet of its own. */
async function openIn(t: TestContext, state: Operation['state']) {
  const books = await openBooks(t);
  const wallet = await books.wallet(await books.account());
  const operation = await books.hold(wallet.id, HOLD, {}, 2);
  if (state === 'uncertain') await books.settle(operation.id, unknown, 3);
  if (state === 'settled') await books.settle(operation.id, done(50n), 3);
  const now = () => {
    const { held, spent } = findWallet(books.ledger.read, wallet.id) ?? assert.fail();
    const row = findOperation(books.ledger.read, operation.id) ?? assert.fail();
    const entries = books.ledger.client.prepare('select debit, credit, amount_nanos from entry').raw().all().slice(3);
    return { held, spent, row, entries };
  };
  return { books, id: operation.id, hold: `hold:${wallet.id}`, wallet: `wallet:${wallet.id}`, now };
}

const cells = Object.entries(AFTER).flatMap(([state, row]) =>
  Object.entries(row).map(
    ([kind, next]) => [state as Operation['state'], kind as keyof typeof OUTCOMES, next] as const,
  ),
);

test('the table of what may follow what has no empty cell', () => {
  assert.equal(cells.length, 9);
});

for (const [state, kind, next] of cells)
  test(`${state}, then ${kind}: ${next}`, async (t) => {
    const { books, id, hold, wallet, now } = await openIn(t, state);
    const before = now();
    const moved = await books.settle(id, OUTCOMES[kind], 9);
    const after = now();
    assert.equal(moved, next !== 'too_late');
    assert.deepEqual(verifyLedger(books.ledger.client).problems, []);

    if (next === 'too_late') return assert.deepEqual(after, before);
    assert.equal(after.row.state, next);
    if (next === 'uncertain') {
      assert.deepEqual([after.held, after.spent, after.entries], [HOLD, 0n, []], 'unknown never gives money back');
      assert.equal(after.row.uncertainAt, state === 'uncertain' ? 3 : 9, 'uncertain since the first doubt');
      return assert.equal(findAnswer(books.ledger.read, id, 10), undefined);
    }
    assert.equal(after.held, 0n);
    assert.equal(after.row.settledAt, 9);
    assert.equal(after.row.settledBy, 'answer');
    if (kind === 'done') {
      assert.deepEqual([after.row.outcome, after.row.charge, after.spent], ['charged', CHARGE, CHARGE]);
      assert.deepEqual(after.entries, [
        [hold, 'sales:chat', CHARGE],
        [hold, wallet, HOLD - CHARGE],
      ]);
      assert.equal(String(findAnswer(books.ledger.read, id, 10)), '{}');
    } else {
      assert.deepEqual([after.row.outcome, after.row.charge, after.spent], ['released', 0n, 0n]);
      assert.deepEqual(after.entries, [[hold, wallet, HOLD]]);
      assert.equal(after.row.reason, refused.kind === 'refused' && refused.reason);
      assert.equal(findAnswer(books.ledger.read, id, 10), undefined);
    }
  });

for (const state of ['reserved', 'uncertain', 'settled'] as const)
  for (const decision of ['charge', 'release'] as const)
    test(`${state}, then decided by hand to ${decision}`, async (t) => {
      const { books, id, now } = await openIn(t, state);
      const before = now();
      const { moved } = await books.ledger.write((tx) =>
        resolveOperation(tx, id, decision, 'operator', 'looked it up', 9),
      );
      const after = now();
      assert.equal(moved, state !== 'settled');
      if (!moved) return assert.deepEqual(after, before);
      const { charge, outcome, settledBy, reason } = after.row;
      const expected = decision === 'charge' ? [HOLD, 'charged'] : [0n, 'released'];
      assert.deepEqual([charge, outcome, settledBy, reason], [...expected, 'operator', 'looked it up']);
      assert.deepEqual([after.held, after.spent], [0n, charge]);
      assert.equal(findAnswer(books.ledger.read, id, 10), undefined, 'there is no answer to keep');
      assert.deepEqual(verifyLedger(books.ledger.client).problems, []);
    });

for (const charge of [-1n, HOLD + 1n])
  test(`a charge of ${charge} for a hold of ${HOLD} is our own mistake, and nothing is settled`, async (t) => {
    const { books, id, now } = await openIn(t, 'reserved');
    const before = now();
    await assert.rejects(books.settle(id, done(charge), 9), { name: 'AssertionError' });
    assert.deepEqual(now(), before);
  });

for (const charge of [0n, HOLD])
  test(`a charge of ${charge} for a hold of ${HOLD} has one entry, for a movement of nothing is left out`, async (t) => {
    const { books, id, hold, wallet, now } = await openIn(t, 'reserved');
    await books.settle(id, done(charge), 9);
    assert.deepEqual(now().entries, [[hold, charge === HOLD ? 'sales:chat' : wallet, HOLD]]);
    assert.equal(now().row.outcome, 'charged');
  });

test('a storm of refused holds runs each of them once: none has written anything that would have to be undone', async (t) => {
  const { ledger, account, wallet } = await openBooks(t);
  const { id } = await wallet(await account(), { budget: centsToNanos(1) });
  let runs = 0;
  const hold = (nanos: bigint) =>
    ledger.write((tx) => {
      runs++;
      return placeHold(tx, holdOrder(id, nanos), 2);
    });
  const amounts = Array.from({ length: 200 }, (_, i) => (i % 10 ? 10n ** 12n : 1n));
  const results = await Promise.allSettled(amounts.map(hold));
  assert.equal(results.filter((it) => it.status === 'fulfilled').length, 20);
  assert.equal(runs, 200);
  assert.deepEqual(verifyLedger(ledger.client).problems, []);
});

test('an operation that costs nothing is an operation all the same: it holds its key and keeps its answer', async (t) => {
  const books = await openBooks(t);
  const wallet = await books.wallet(await books.account());
  const order = { idempotencyKey: 'k' };
  const { id } = await books.hold(wallet.id, 0n, order);
  await books.settle(id, done(0n), 5);
  assert.equal(String(findAnswer(books.ledger.read, id, 10)), '{}');
  await assert.rejects(books.hold(wallet.id, 0n, order), { code: 'SQLITE_CONSTRAINT_UNIQUE' });
  assert.deepEqual(verifyLedger(books.ledger.client).problems, []);
});

test('an answer is kept for 72 hours after it settled', async (t) => {
  const { books, id } = await openIn(t, 'uncertain');
  await books.settle(id, done(1n), 1000);
  const until = books.ledger.client.prepare('select kept_until from answer').pluck().get();
  assert.equal(until, BigInt(1000 + ANSWER_KEPT_SECONDS));
  assert.equal(ANSWER_KEPT_SECONDS, 72 * 3600);
});
