import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import test, { type TestContext } from 'node:test';
import { centsToNanos } from '../../src/base/money.ts';
import { accountOf, suspendAccount } from '../../src/ledger/account.ts';
import {
  AFTER,
  type Checkout,
  type CheckoutStatus,
  dueCheckouts,
  findCheckout,
  nextDueCheckout,
  openCheckout,
  type PaymentReport,
  recordPoll,
  reportPayment,
  settleCreation,
  WAITING_COUNT_MAX,
} from '../../src/ledger/checkout.ts';
import { beginClosing, closeWallet } from '../../src/ledger/closing.ts';
import { openWallet } from '../../src/ledger/open-wallet.ts';
import { type ReversalReport, reversePayment } from '../../src/ledger/reversal.ts';
import { verifyLedger } from '../../src/ledger/verify.ts';
import { type Books, openBooks, opening, walletOrder } from './books.ts';

const CENTS = 2000;
const DAY = 86_400;

/** Books with an account and a checkout of it, to whom the provider's words are told. */
async function open(t: TestContext) {
  const books = await openBooks(t);
  const accountId = await books.account(0);
  const checkout = await begin(books, accountId);
  const sessionId = `cs_${checkout.id}`;
  const words = { currency: 'usd', amountCents: CENTS, paymentIntent: null };
  const told = (outcome: PaymentReport['outcome'], more: Partial<PaymentReport> = {}, now = 20) =>
    books.ledger.write(reportPayment, {
      report: { sessionId, checkoutId: checkout.id, outcome, ...words, ...more },
      event: undefined,
      now,
    });
  const reversed = (said: Partial<ReversalReport>, now = 30) =>
    books.ledger.write(reversePayment, {
      reversal: {
        id: 're_1',
        kind: 'refund',
        state: 'taken',
        amountCents: CENTS,
        asOf: now,
        paymentIntent: 'pi_1',
        ...said,
      },
      event: { id: randomUUID(), type: 'charge.refunded', subject: 're_1' },
      now,
    });
  const row = (id = checkout.id) => findCheckout(books.ledger.read, id) as Checkout;
  const account = () => accountOf(books.ledger.read, accountId);
  const figures = () => [account().availableCents, account().owedCents];
  const problems = () => verifyLedger(books.ledger.client).problems;
  return { books, accountId, id: checkout.id, sessionId, told, reversed, row, account, figures, problems };
}

function begin(books: Books, accountId: string, now = 10): Promise<Checkout> {
  const order = { accountId, amountCents: CENTS, idempotencyKey: randomUUID(), requestId: 'req_test' };
  const more = { fingerprint: Buffer.alloc(32), expiresAt: now + 3600 };
  return books.ledger.write(openCheckout, { order: { ...order, ...more }, now });
}

/** How a checkout comes to be in each status. */
const COME: Record<CheckoutStatus, (it: Awaited<ReturnType<typeof open>>) => Promise<unknown>> = {
  creating: async () => {},
  open: ({ books, id, sessionId }) =>
    books.ledger.write(settleCreation, { id, creation: { kind: 'created', sessionId, url: 'https://pay' }, now: 11 }),
  pending: ({ told }) => told('pending'),
  paid: ({ told }) => told('paid'),
  expired: ({ told }) => told('expired'),
  failed: ({ told }) => told('failed'),
  refused: ({ books, id }) =>
    books.ledger.write(settleCreation, { id, creation: { kind: 'refused', reason: 'no' }, now: 11 }),
  mismatch: ({ told }) => told('paid', { amountCents: CENTS - 1 }),
  abandoned: async (it) => {
    await COME.open(it);
    await it.books.ledger.write(recordPoll, { id: it.id, error: 'no answer', now: 200 * DAY });
  },
};

const cells = Object.entries(AFTER).flatMap(([status, row]) =>
  Object.entries(row).map(([said, next]) => [status as CheckoutStatus, said as keyof typeof row, next] as const),
);

test('the table of what may follow what has no empty cell', () => {
  assert.equal(cells.length, 9 * 6);
});

for (const [status, said, next] of cells)
  test(`${status}, then ${said}: ${next}`, async (t) => {
    const it = await open(t);
    await COME[status](it);
    assert.equal(it.row().status, status);
    const before = it.figures();
    // Told twice, and with it once more: the second and third time change nothing.
    for (let i = 0; i < 3; i++) {
      if (said === 'wrong') await it.told('paid', { currency: 'eur' });
      else await it.told(said);
      assert.equal(it.row().status, next);
    }
    const brings = next === 'paid' && status !== 'paid' ? CENTS : 0;
    assert.deepEqual(it.figures(), [(before[0] ?? 0) + brings, 0]);
    assert.equal(it.row().dueAt === null, !['creating', 'open', 'pending'].includes(next));
    assert.equal(it.row().url === null, next !== 'open' || status !== 'open');
    assert.deepEqual(it.problems(), []);
  });

for (const [what, more] of [
  ['a cent less', { amountCents: CENTS - 1 }],
  ['a cent more', { amountCents: CENTS + 1 }],
  ['no amount', { amountCents: null }],
  ['another currency', { currency: 'jpy' }],
  ['no currency', { currency: null }],
] as const)
  test(`paid with ${what} is not credited, and says so`, async (t) => {
    const it = await open(t);
    await it.told('paid', more);
    assert.equal(it.row().status, 'mismatch');
    assert.match(it.row().lastError ?? '', /^paid \w+ \w+, not 2000 usd$/);
    assert.deepEqual(it.figures(), [0, 0]);
  });

test('what is said of a session that is none of ours, or of a second one of a checkout, changes nothing', async (t) => {
  const it = await open(t);
  assert.equal((await it.told('paid', { checkoutId: 'chk_of_others' }))?.kind, 'not_ours');
  assert.equal((await it.told('paid', { checkoutId: null }))?.kind, 'not_ours');
  await COME.open(it);
  assert.equal((await it.told('paid', { sessionId: 'cs_second' }))?.kind, 'stray');
  assert.deepEqual(it.figures(), [0, 0]);
  assert.equal(it.row().status, 'open');
});

test('a refund takes what is available, the rest is owed; it is paid first by what comes in, and no wallet is opened before', async (t) => {
  const it = await open(t);
  await it.told('paid', { paymentIntent: 'pi_1' });
  const wallet = await it.books.wallet(it.accountId, { budget: centsToNanos(1500) }, 21);
  await it.reversed({});
  assert.deepEqual(it.figures(), [0, 1500]);
  assert.equal(it.row().takenCents, CENTS);
  const another = () =>
    it.books.ledger.write(openWallet, opening(walletOrder(it.accountId, { budget: centsToNanos(100) }), 31));
  await assert.rejects(another(), { code: 'insufficient_funds', message: /owes 15\.00 USD/ });
  await it.books.fund({ accountId: it.accountId, kind: 'credit', amountCents: 600 }, 32);
  assert.deepEqual(it.figures(), [0, 900]);
  await assert.rejects(another(), { code: 'insufficient_funds' });

  await it.books.ledger.write((tx) => {
    beginClosing(tx, wallet.id, 'operator', 40);
    closeWallet(tx, wallet.id, 40);
  });
  assert.deepEqual(it.figures(), [600, 0], 'the closing paid the rest');
  await another();
  assert.deepEqual(it.problems(), []);
});

test('a refund that is told of before its payment is taken when that comes', async (t) => {
  const it = await open(t);
  assert.equal(await it.reversed({ amountCents: 500 }), undefined);
  const reported = await it.told('paid', { paymentIntent: 'pi_1' });
  assert.equal(reported?.kind === 'known' && reported.movedCents, 500);
  assert.deepEqual(it.figures(), [1500, 0]);
  assert.deepEqual(it.problems(), []);
});

test('a payment whose intent is heard of later is taken back then', async (t) => {
  const it = await open(t);
  await it.told('paid');
  await it.reversed({ amountCents: 500 });
  assert.deepEqual(it.figures(), [CENTS, 0]);
  await it.told('paid', { paymentIntent: 'pi_1' });
  assert.deepEqual(it.figures(), [1500, 0]);
  assert.deepEqual(it.problems(), []);
});

test('several refunds and a dispute never take more than was paid; a refund that fails lets the dispute take its part', async (t) => {
  const it = await open(t);
  await it.told('paid', { paymentIntent: 'pi_1' });
  await it.reversed({ id: 're_1', amountCents: 500 });
  await it.reversed({ id: 're_2', amountCents: 1500 });
  await it.reversed({ id: 'du_1', kind: 'dispute' });
  assert.deepEqual(it.figures(), [0, 0]);
  await it.reversed({ id: 're_2', amountCents: 1500, state: 'returned' }, 31);
  assert.deepEqual(it.figures(), [0, 0], 'the dispute asks for all of it');
  await it.reversed({ id: 'du_1', kind: 'dispute', state: 'returned' }, 32);
  assert.deepEqual(it.figures(), [1500, 0]);
  assert.deepEqual(it.problems(), []);
});

test('words of a refund come twice, late and in any order', async (t) => {
  const it = await open(t);
  await it.told('paid', { paymentIntent: 'pi_1' });
  for (let i = 0; i < 3; i++) await it.reversed({});
  assert.deepEqual(it.figures(), [0, 0]);
  await it.reversed({ state: 'returned', asOf: 40 });
  await it.reversed({ state: 'taken', asOf: 50 });
  assert.deepEqual(it.figures(), [CENTS, 0], 'what failed is not taken again');
  await it.reversed({ id: 're_2', state: 'returned', asOf: 60 });
  await it.reversed({ id: 're_2', state: 'taken', asOf: 59 });
  assert.deepEqual(it.figures(), [CENTS, 0], 'an older word changes nothing');
});

const dispute = (state: ReversalReport['state'], asOf: number) =>
  ({ id: 'du_1', kind: 'dispute', state, asOf }) as const;
test('a dispute blocks new wallets until it is decided: won is given back, lost is kept', async (t) => {
  for (const [end, left] of [
    ['returned', CENTS],
    ['lost', 0],
  ] as const) {
    const it = await open(t);
    await it.told('paid', { paymentIntent: 'pi_1' });
    await it.books.fund({ accountId: it.accountId, kind: 'credit', amountCents: 1000 }, 22);
    const another = () =>
      it.books.ledger.write(openWallet, opening(walletOrder(it.accountId, { budget: centsToNanos(100) }), 31));
    await it.reversed(dispute('inquiry', 30));
    assert.deepEqual(it.figures(), [3000, 0], 'nothing was taken yet');
    await assert.rejects(another(), { code: 'account_suspended', message: /disputed/ });
    await it.reversed(dispute('taken', 31));
    assert.deepEqual(it.figures(), [1000, 0]);
    await assert.rejects(another(), { code: 'account_suspended' });
    await it.reversed(dispute(end, 32));
    assert.deepEqual(it.figures(), [1000 + left, 0]);
    await another();
    await it.reversed(dispute('taken', 31));
    assert.equal(it.account().disputedAt, null, 'an older word changes nothing');
    assert.deepEqual(it.problems(), []);
  }
});

test('the operator may lift what a dispute blocks; what it took stays taken, and the next dispute blocks again', async (t) => {
  const it = await open(t);
  await it.told('paid', { paymentIntent: 'pi_1' });
  await it.reversed(dispute('inquiry', 30));
  await it.books.ledger.write((tx) => suspendAccount.run(tx, { id: it.accountId, at: null }));
  await it.reversed(dispute('taken', 31));
  assert.equal(it.account().disputedAt, null);
  assert.deepEqual(it.figures(), [0, 0]);
  const second = await begin(it.books, it.accountId);
  await it.told('paid', { sessionId: 'cs_2', checkoutId: second.id, paymentIntent: 'pi_2' });
  await it.reversed({ ...dispute('taken', 40), id: 'du_2', paymentIntent: 'pi_2' }, 40);
  assert.equal(it.account().disputedAt, 40);
  await it.reversed({ ...dispute('returned', 41), id: 'du_2', paymentIntent: 'pi_2' }, 41);
  assert.equal(it.account().disputedAt, 40, 'the first is not decided yet');
  await it.reversed(dispute('lost', 42));
  assert.equal(it.account().disputedAt, null);
});

test('a clear refusal frees the key; what is unknown keeps it until the end, and then is expired', async (t) => {
  const it = await open(t);
  const { ledger } = it.books;
  await ledger.write(settleCreation, { id: it.id, creation: { kind: 'unknown', reason: 'no answer' }, now: 11 });
  assert.deepEqual([it.row().status, it.row().lastError], ['creating', 'no answer']);
  assert.deepEqual(dueCheckouts(ledger.read, 3609), []);
  await ledger.write(recordPoll, { id: it.id, error: null, now: 3610 });
  assert.deepEqual([it.row().status, it.row().dueAt], ['expired', null]);
});

test('it is asked soon at first, then ever more rarely, right after its end once more, and not for ever', async (t) => {
  const it = await open(t);
  await COME.open(it);
  const { ledger } = it.books;
  const times: number[] = [];
  for (let now = nextDueCheckout(ledger.read); now !== undefined; now = nextDueCheckout(ledger.read)) {
    times.push(now);
    assert.deepEqual(
      dueCheckouts(ledger.read, now).map(({ id }) => id),
      [it.id],
    );
    const at = now;
    await ledger.write(recordPoll, { id: it.id, error: 'no answer', now: at });
  }
  const gaps = times.slice(1).map((at, i) => at - (times[i] as number));
  assert.equal(times[0], 26);
  assert.ok(
    gaps.every((gap) => gap >= 15 && gap <= 3600),
    gaps.join(),
  );
  assert.ok(times.includes(3610 + 15));
  assert.ok(times.length < 2500, `${times.length} times`);
  assert.equal(it.row().status, 'abandoned');
});

test('an account has so many checkouts waiting and no more; one that ended makes room', async (t) => {
  const it = await open(t);
  for (let i = 1; i < WAITING_COUNT_MAX; i++) await begin(it.books, it.accountId);
  await assert.rejects(begin(it.books, it.accountId), { code: 'rate_limited' });
  const other = await it.books.account(0);
  await begin(it.books, other);
  await it.told('paid');
  await begin(it.books, it.accountId);
});

test('verify sees a checkout and its fundings disagree', async (t) => {
  const it = await open(t);
  await it.told('paid', { paymentIntent: 'pi_1' });
  await it.reversed({ amountCents: 500 });
  assert.deepEqual(it.problems(), []);
  const { client } = it.books.ledger;
  const damage = (sql: string) => {
    client.exec('savepoint damage; drop trigger checkout_is_paid_once; drop trigger checkout_amount_is_fixed');
    client.exec('drop trigger funding_is_never_changed; drop trigger funding_is_never_deleted');
    client.exec(sql);
    const { problems } = verifyLedger(client);
    client.exec('rollback to damage; release damage');
    return problems.join('\n');
  };
  assert.match(
    damage(`update checkout set amount_cents = 2001`),
    /checkout chk_\w+ brought 2001 cents, its 1 fundings 2000/,
  );
  assert.match(damage(`update checkout set status = 'expired', paid_at = null, taken_cents = 0`), /brought 0 cents/);
  assert.match(damage(`update checkout set taken_cents = 400`), /400 cents were taken back, its fundings say 500/);
  assert.match(
    damage(`update checkout set session_id = 'cs_x'`),
    /brought 2000 cents, its 0 fundings 0[\s\S]*is of no checkout/,
  );
  assert.match(damage(`update account set owed_cents = 7`), /owes 7 cents, the journal 0 nanos/);
});
