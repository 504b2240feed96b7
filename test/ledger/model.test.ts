import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { copyFileSync, existsSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { newId } from '../../src/base/id.ts';
import { centsToNanos, Nanos } from '../../src/base/money.ts';
import { Refusal } from '../../src/base/refusal.ts';
import { fundAccount, openAccount, suspendAccount } from '../../src/ledger/account.ts';
import { openCheckout, reportPayment } from '../../src/ledger/checkout.ts';
import { beginClosing, closeWallet } from '../../src/ledger/closing.ts';
import { findGap, headOf } from '../../src/ledger/head.ts';
import { placeHold, takeOverHold } from '../../src/ledger/hold.ts';
import { freeze, install } from '../../src/ledger/installation.ts';
import { openWallet } from '../../src/ledger/open-wallet.ts';
import { type Outcome, resolveOperation, settle } from '../../src/ledger/operation.ts';
import { refillWallet, setRefill } from '../../src/ledger/refill.ts';
import { reversePayment } from '../../src/ledger/reversal.ts';
import { verifyLedger } from '../../src/ledger/verify.ts';
import { dueWallets } from '../../src/ledger/wallet.ts';
import { changeBudget, extendWallet, freezeWallet } from '../../src/ledger/wallet-change.ts';
import { createInFlight } from '../../src/spend/in-flight.ts';
import { recover } from '../../src/spend/recover.ts';
import type { OpenLedger } from '../helper/closures.ts';
import { createRandom, length, SEED } from '../helper/random.ts';
import {
  done,
  holdOrder,
  MASTER_KEY_ID,
  openBooksAt,
  opening,
  refused,
  temporaryDirectory,
  unknown,
  walletOrder,
} from './books.ts';
import { Model, NEW_ACCOUNT } from './model.ts';

/** One write, and what the model says of it. Both run later, in the order in which the steps were made. */
type Step = { write: (ledger: OpenLedger) => Promise<unknown>; model: () => string };

/** How a write ended, in the words of the model. */
async function ending(result: Promise<unknown>): Promise<string> {
  try {
    return (await result) === false ? 'too_late' : 'ok';
  } catch (error) {
    if (error instanceof Refusal) return error.code;
    throw error;
  }
}

/** Every balance on file, in the shape of the model. */
function balances({ client }: OpenLedger) {
  const rows = (sql: string) => client.prepare(sql).all() as Record<string, never>[];
  const whole = (value: unknown) => (value === null ? null : Number(value));
  const columns = 'id, available_cents a, reserved_cents r, spent_cents s, owed_cents o, suspended_at, disputed_at';
  return {
    accounts: new Map(
      rows(`select ${columns} from account`).map((it) => {
        const figures = { available: whole(it.a), reserved: whole(it.r), spent: whole(it.s), owed: whole(it.o) };
        return [it.id, { ...figures, suspended: it.suspended_at !== null, disputed: it.disputed_at !== null }];
      }),
    ),
    wallets: new Map(
      rows('select * from wallet join balance using (number)').map((it) => {
        const { status, budget_nanos: budget, held_nanos: held, spent_nanos: spent, close_reason: reason } = it;
        const [returned, expiresAt, refillAt] = [it.returned_cents, it.expires_at, it.refill_at].map(whole);
        const { delegated_nanos: delegated, parent_id: parent } = it;
        const figures = { budget, held, spent, delegated, returned, expiresAt, refillAt };
        return [it.id, { account: it.account_id, status, reason, ...figures, parent, paused: it.frozen_at !== null }];
      }),
    ),
    operations: new Map(
      rows('select wallet_id, id, state, hold_nanos, charge_nanos, outcome, settled_by from operation').map((it) => {
        const { state, hold_nanos: hold, charge_nanos: charge, outcome } = it;
        const isDecided = state === 'settled' && it.settled_by !== 'answer';
        return [it.id, { wallet: it.wallet_id, state, hold, charge, outcome, isDecided }];
      }),
    ),
  };
}

/** The promise in one line each (design): never a cent too much, at any instant. */
function assertBounds(model: Model): void {
  for (const { held, spent, delegated, budget } of model.wallets.values())
    assert(held >= 0n && spent >= 0n && delegated >= 0n && held + spent + delegated <= budget);
  for (const { available, reserved, spent, owed } of model.accounts.values())
    assert(available >= 0 && reserved >= 0 && spent >= 0 && (owed === 0 || available === 0));
}

const ENDINGS = [
  'ok',
  'too_late',
  'insufficient_funds',
  'funds_held',
  'account_suspended',
  'read_only',
  'wallet_expired',
  'wallet_closed',
  'wallet_frozen',
  'wallet_limit_exceeded',
  'invalid_request',
];

const count = length(300, 4000);
/** Every end that any of the walks came to: one of them alone may miss a rare one. */
const seen = new Set<string>();

for (const seed of [SEED, SEED + 1, 1])
  test(`${count} random steps leave the books equal to the model (PURSER_TEST_SEED=${seed})`, async (t) => {
    const random = createRandom(seed);
    const directory = temporaryDirectory(t);
    const model = new Model();
    let ledger = openBooksAt(join(directory, '0.db'));
    t.after(() => ledger.close());
    await ledger.write(install, { masterKeyId: MASTER_KEY_ID, now: model.now });
    for (let i = 0; i < 3; i++) {
      const { id } = await ledger.write(openAccount, { name: `account ${i}`, creditCents: 0, now: model.now });
      model.accounts.set(id, { ...NEW_ACCOUNT });
    }
    const accountIds = [...model.accounts.keys()];
    let toldAt = 0; // Each word of the payment provider is newer than the one before.

    const MAKE: Record<string, () => Step | undefined> = {
      fund() {
        const [accountId, cents] = [random.pick(accountIds), random.whole(1, 5000)];
        const kind = random.pick(['credit', 'credit', 'debit'] as const);
        const order = { accountId, kind, amountCents: cents, reason: null, key: null };
        return {
          write: (it) => it.write(fundAccount, { order, now: model.now }),
          model: () => model.fund(accountId, kind === 'credit' ? cents : -cents),
        };
      },
      pay() {
        const [id, accountId, cents] = [randomUUID(), random.pick(accountIds), random.whole(1, 3000)];
        const order = { accountId, amountCents: cents, fingerprint: Buffer.alloc(32), requestId: 'req_test' };
        const paid = { outcome: 'paid', currency: 'usd', amountCents: cents, paymentIntent: `pi_${id}` } as const;
        const payment = `pi_${id}`;
        return {
          write: (it) =>
            it.write((tx) => {
              const { now } = model;
              const opened = { ...order, idempotencyKey: id, expiresAt: now + 3600 };
              const { id: checkoutId } = openCheckout.run(tx, { order: opened, now });
              const report = { sessionId: `cs_${id}`, checkoutId, ...paid };
              return reportPayment.run(tx, { report, event: undefined, now });
            }),
          model: () => model.pay(payment, accountId, cents),
        };
      },
      reverse() {
        if (!model.payments.size) return;
        const [paymentIntent, { cents, reversals }] = random.pick([...model.payments].slice(-20));
        const known = random.whole(0, 1) && reversals.size ? random.pick([...reversals.keys()]) : undefined;
        const id = known ?? randomUUID();
        const kind = known ? (reversals.get(known)?.kind ?? 'refund') : random.pick(['refund', 'dispute'] as const);
        const state =
          kind === 'refund'
            ? random.pick(['taken', 'returned'] as const)
            : random.pick(['inquiry', 'taken', 'lost', 'returned'] as const);
        const told = { kind, cents: random.pick([cents, random.whole(0, cents)]), state };
        const report = { id, kind, paymentIntent, amountCents: told.cents, state, asOf: ++toldAt };
        const event = { id: randomUUID(), type: 'told', subject: id };
        return {
          write: (it) => it.write(reversePayment, { reversal: report, event, now: model.now }),
          model: () => model.reverse(paymentIntent, id, told),
        };
      },
      open() {
        const [id, accountId, cents] = [newId('wal'), random.pick(accountIds), random.whole(1, 900)];
        const seconds = random.pick([0, random.whole(1, 600)]);
        const order = walletOrder(accountId, { id, budget: centsToNanos(cents), expiresInSeconds: seconds });
        return {
          write: (it) => it.write(openWallet, opening(order, model.now)),
          model: () => model.open(id, accountId, cents, seconds),
        };
      },
      hold() {
        const walletId = anyWallet();
        if (!walletId) return;
        const left = model.left(walletId);
        // Often exactly what is left, or one nano beside it: there the mistakes live.
        const amount = random.pick([left, left + 1n, left - 1n, left / 3n, BigInt(random.whole(0, 1e9)), 0n]);
        const hold = amount < 0n ? 0n : amount;
        let operationId = '';
        return {
          async write(it) {
            const { id } = await it.write((tx) => placeHold(tx, holdOrder(walletId, hold), model.now));
            operationId = id;
          },
          model: () => model.hold(operationId, walletId, hold),
        };
      },
      settle() {
        const id = anyOperation();
        if (!id) return;
        const { hold } = model.operation(id);
        const charge = random.pick([0n, hold, hold / 2n, (hold * BigInt(random.whole(0, 1000))) / 1000n]);
        const outcomes: [Outcome<Buffer>, Parameters<Model['settle']>[1], bigint][] = [
          [done(charge), 'charged', charge],
          [refused, 'released', 0n],
          [unknown, 'unknown', 0n],
        ];
        const [outcome, ...said] = random.pick(outcomes);
        return {
          write: (it) => it.write((tx) => settle(tx, id, outcome, 'answer', model.now).moved),
          model: () => model.settle(id, ...said),
        };
      },
      takeOver() {
        const unanswered = [...model.operations].filter(([, it]) => it.state === 'uncertain' || it.isDecided);
        const id = unanswered.length ? random.pick(unanswered)[0] : anyOperation();
        if (!id) return;
        const { hold } = model.operation(id);
        const charge = random.pick([0n, hold, hold / 2n]);
        const kind = random.pick(['charged', 'refused', 'unknown'] as const);
        const outcome = kind === 'charged' ? done(charge) : unknown;
        return {
          write: (it) =>
            it.write((tx) => {
              const operation = takeOverHold(tx, id, model.now);
              if (!operation) return false;
              // As the paid path has it: a refusal is no outcome of the first attempt, and what is charged is paid.
              if (kind === 'refused' || operation.state === 'settled') return true;
              return settle(tx, id, outcome, 'answer', model.now).moved;
            }),
          model: () => model.takeOver(id, kind, charge),
        };
      },
      decide() {
        const id = anyOperation();
        if (!id) return;
        const decision = random.pick(['charge', 'release'] as const);
        const charge = decision === 'charge' ? model.operation(id).hold : 0n;
        return {
          write: (it) => it.write((tx) => resolveOperation(tx, id, decision, 'operator', 'by hand', model.now).moved),
          model: () => model.settle(id, decision === 'charge' ? 'charged' : 'released', charge, true),
        };
      },
      delegate() {
        const parentId = anyWallet();
        if (!parentId) return;
        const { account, held } = model.wallet(parentId);
        const left = model.left(parentId);
        const amount = random.pick([left, left + 1n, left + held, left / 3n, left / 2n, BigInt(random.whole(1, 1e9))]);
        const [id, budget] = [newId('wal'), Nanos(amount < 1n ? 1n : amount)];
        const seconds = random.pick([0, random.whole(1, 600)]);
        const order = walletOrder(account, { id, parentId, budget, expiresInSeconds: seconds });
        return {
          write: (it) => it.write(openWallet, opening(order, model.now)),
          model: () => model.delegate(id, parentId, budget, seconds),
        };
      },
      budget() {
        const walletId = anyWallet();
        if (!walletId) return;
        const cents = random.pick([1, -1]) * random.whole(1, 900);
        const order = { walletId, cents, idempotencyKey: null, fingerprint: Buffer.alloc(32), requestId: 'req_test' };
        return {
          write: (it) => it.write(changeBudget, { order, now: model.now, blocked: undefined }),
          model: () => model.changeBudget(walletId, cents),
        };
      },
      extend() {
        const walletId = anyWallet();
        if (!walletId) return;
        const seconds = random.whole(1, 300);
        const order = { walletId, seconds, idempotencyKey: null, fingerprint: Buffer.alloc(32), requestId: 'req_test' };
        return {
          write: (it) => it.write(extendWallet, { order, now: model.now }),
          model: () => model.extend(walletId, seconds),
        };
      },
      pause() {
        const [id, paused] = [anyWallet(), random.whole(0, 3) === 0];
        if (!id) return;
        return {
          write: (it) =>
            it.write(freezeWallet, { id, frozenAt: paused ? model.now : null, reason: null, now: model.now }),
          model: () => model.pause(id, paused),
        };
      },
      setRefill() {
        const id = anyWallet();
        if (!id) return;
        const carry = random.pick(['none', 'all', random.whole(1, 300)] as const);
        const order = { cents: random.whole(1, 400), carry };
        return {
          write: (it) =>
            it.write(setRefill, {
              id,
              refill: { ...order, every: 'day', zone: 'UTC' },
              now: model.now,
              blocked: undefined,
            }),
          model: () => model.setRefill(id, order),
        };
      },
      refill() {
        const due = [...model.wallets].filter(([, it]) => (it.refillAt ?? Infinity) <= model.now).map(([id]) => id);
        const id = due.length ? random.pick(due) : anyWallet();
        if (!id) return;
        return {
          write: (it) => it.write(refillWallet, { id, now: model.now }),
          model: () => model.refill(id),
        };
      },
      suspend() {
        const [id, suspended] = [random.pick(accountIds), random.whole(0, 4) === 0];
        return {
          write: (it) => it.write(suspendAccount, { id, at: suspended ? model.now : null }),
          model: () => model.suspend(id, suspended),
        };
      },
      freeze() {
        const frozen = random.whole(0, 9) === 0;
        return {
          write: (it) => it.write(freeze, { at: frozen ? model.now : null, reason: null }),
          model: () => model.freezeAll(frozen),
        };
      },
    };
    const MOVES = { delegate: 8, budget: 8, extend: 3, pause: 4, setRefill: 8, refill: 12 };
    const WEIGHTS = {
      fund: 10,
      pay: 3,
      reverse: 4,
      open: 8,
      hold: 40,
      settle: 36,
      takeOver: 12,
      decide: 5,
      suspend: 2,
      freeze: 2,
      ...MOVES,
    };
    const anyWallet = () => {
      const active = [...model.wallets].filter(([, it]) => it.status === 'active').map(([id]) => id);
      const from = random.whole(0, 9) && active.length ? active : [...model.wallets.keys()];
      return from.length ? random.pick(from) : undefined;
    };
    const anyOperation = () => {
      const open = [...model.operations].filter(([, it]) => it.state !== 'settled').map(([id]) => id);
      const from = random.whole(0, 9) && open.length ? open : [...model.operations.keys()].slice(-50);
      return from.length ? random.pick(from) : undefined;
    };
    const makeSteps = (max: number) =>
      Array.from({ length: random.whole(1, max) }, () => MAKE[random.weighted(WEIGHTS)]?.()).filter(
        (it) => it !== undefined,
      );

    /** Brings a wallet to its end as closing does: freeze, decide what is open, settle, return. */
    async function end(id: string, reason: 'operator' | 'expired'): Promise<void> {
      if (model.wallet(id).status === 'closed') return; // With its parent.
      await ledger.write((tx) => beginClosing(tx, id, reason, model.now));
      model.freeze(id, reason);
      for (const [child] of model.children(id)) await end(child, reason);
      for (const operation of model.openOperations(id)) {
        await ledger.write((tx) => resolveOperation(tx, operation, 'charge', 'policy', 'closed', model.now));
        model.settle(operation, 'charged', model.operation(operation).hold, true);
      }
      await ledger.write((tx) => closeWallet(tx, id, model.now));
      model.close(id);
    }

    const endings: Record<string, number> = {};
    let crashes = 0;
    /** The process dies with writes in its queue: what the next one finds is what was committed. */
    async function crash(): Promise<void> {
      const old = ledger;
      const lost = makeSteps(10).map((it) => it.write(old));
      const [from, to] = [join(directory, `${crashes}.db`), join(directory, `${++crashes}.db`)];
      for (const suffix of ['', '-wal']) if (existsSync(from + suffix)) copyFileSync(from + suffix, to + suffix);
      await Promise.allSettled(lost);
      const head = random.whole(0, 1) ? undefined : headOf(ledger.read);
      ledger = openBooksAt(to);
      await old.close();
      assert.equal(findGap(ledger.read, headOf(ledger.read)), undefined);
      if (head && head.seq > headOf(ledger.read).seq) assert.match(findGap(ledger.read, head) ?? '', /are lost/);
      const clock = { now: () => model.now, holdsBlocked: () => undefined, expiryBlocked: () => false };
      const app = { ledger, clock, events: { uncertain() {} } as never, inFlight: createInFlight() };
      await recover(app);
      model.crash();
    }

    for (let step = 0; step < count; ) {
      const batch = makeSteps(24);
      // Asked for in one turn: they share a commit, and each sees what those before it did.
      const ended = batch.map((it) => ending(it.write(ledger)));
      for (const [i, it] of batch.entries()) {
        const said = await (ended[i] as Promise<string>);
        assert.equal(said, it.model(), `step ${step + i}`);
        endings[said] = (endings[said] ?? 0) + 1;
      }
      step += batch.length;
      // Seldom a day: what is refilled has its boundary then.
      model.now += random.whole(0, 14) ? random.pick([0, 0, 1, random.whole(1, 60)]) : 86_400;
      if (random.whole(0, 5) === 0)
        for (const { id } of dueWallets(ledger.read, model.now)) {
          if (model.wallet(id).status !== 'active') continue; // It ended with its parent.
          assert(model.isDue(id));
          await end(id, 'expired');
        }
      const live = [...model.wallets].filter(([, it]) => it.status !== 'closed').map(([id]) => id);
      if (live.length > 12 || (live.length && random.whole(0, 9) === 0)) await end(random.pick(live), 'operator');
      if (random.whole(0, 29) === 0) await crash();
      assertBounds(model);
      const { operations: _, ...figures } = balances(ledger);
      assert.deepEqual(figures, { accounts: model.accounts, wallets: model.wallets }, `after step ${step}`);
    }
    assert.deepEqual(balances(ledger).operations, model.operations);
    assert.deepEqual(verifyLedger(ledger.client).problems, []);
    for (const it of Object.keys(endings)) seen.add(it);
    t.diagnostic(
      JSON.stringify({ wallets: model.wallets.size, operations: model.operations.size, crashes, ...endings }),
    );
  });

test('the walks have been to every end', () => {
  if (count < 4000) return; // Only long walks come to every end.
  for (const it of ENDINGS) assert(seen.has(it), `so many walks end in ${it} somewhere`);
});

test('the walk is the same for the same seed', () => {
  const walk = () => {
    const random = createRandom(SEED);
    return Array.from({ length: 100 }, () => random.whole(0, 1e9));
  };
  assert.deepEqual(walk(), walk());
});
