import type { Tx } from '../db/handle.ts';
import { defineWrite } from '../db/write.ts';
import { Refusal, type RefusalData } from '../refusal.ts';
import * as account from './account.ts';
import * as checkout from './checkout.ts';
import * as installation from './installation.ts';
import * as keep from './keep.ts';
import * as bound from './learned-bound.ts';
import * as keys from './master-keys.ts';
import * as notices from './notices.ts';
import * as open from './open-wallet.ts';
import * as operation from './operation.ts';
import * as outbox from './outbox.ts';
import * as payments from './payment-events.ts';
import { type Refill, refillIfDue, refillIfOwed, setRefill as setRefillOf } from './refill.ts';
import * as resource from './resource.ts';
import { type ReversalReport, reportReversal } from './reversal.ts';
import { findWallet, type Wallet } from './wallet.ts';
import * as change from './wallet-change.ts';

/**
 * The writes of the ledger: each runs a function of this folder by its name (docs/decisions/0002). Those that need more
 * than the ledger are beside what they need. `now` is in Unix seconds; refusals are those of the function.
 */

// Accounts.

type OpenAccount = { name: string; creditCents: number; now: number };
/** Opens an account, with an opening credit unless that is 0. */
export const openAccount = defineWrite('account.open', (tx, { name, creditCents, now }: OpenAccount) => {
  const { id } = account.openAccount(tx, name, now);
  if (creditCents === 0) return account.accountOf(tx, id);
  const order = {
    accountId: id,
    kind: 'credit' as const,
    amountCents: creditCents,
    reason: 'opening credit',
    key: null,
  };
  return account.fundAccount(tx, order, now);
});

/** Lowers the number of accepted faults to those that a complete examination has found. */
export const lowerAcceptedFaults = defineWrite('faults.lower', (tx, { left }: { left: number }) =>
  installation.lowerAcceptedFaults(tx, left),
);

/** Opens the account that a new account key belongs to unless another is named. */
export const openDefaultAccount = defineWrite('account.open_default', (tx, { now }: { now: number }) =>
  installation.setDefaultAccount(tx, account.openAccount(tx, 'default', now).id),
);

export const fundAccount = defineWrite(
  'account.fund',
  (tx, { order, now }: { order: account.FundingOrder; now: number }) => account.fundAccount(tx, order, now),
);

/** Suspends an account since `at`; null resumes it. */
export const suspendAccount = defineWrite('account.suspend', (tx, { id, at }: { id: string; at: number | null }) =>
  account.setSuspended(tx, id, at),
);

// Wallets.

type OpenWallet = {
  order: open.WalletOrder;
  now: number;
  blocked: string | undefined;
  limits: open.ChildLimits;
  /** The refusal for a tree with too many children that spent nothing; thrown unless the order is a repetition. */
  limited?: RefusalData | undefined;
};
export const openWallet = defineWrite('wallet.open', (tx, { order, now, blocked, limits, limited }: OpenWallet) => {
  refillParent(tx, order, now, blocked);
  return open.openWallet(tx, order, now, blocked, { ...limits, limited });
});

type ChangeBudget = { order: change.ChangeOrder & { cents: number }; now: number; blocked: string | undefined };
export const changeBudget = defineWrite('wallet.budget', (tx, { order, now, blocked }: ChangeBudget) => {
  const wallet = findWallet(tx, order.walletId);
  if (wallet) refillIfOwed(tx, wallet, now, blocked); // Later it would take back what is added now, or give back what is taken.
  refillParent(tx, wallet, now, blocked);
  return change.changeBudget(tx, order, now, blocked);
});

/**
 * Refills a wallet that is owed a refill before it gives to a child: the request that needs a refill brings it (design,
 * section 13).
 */
function refillParent(tx: Tx, child: Pick<Wallet, 'parentId'> | undefined, now: number, blocked?: string): void {
  const parent = child?.parentId ? findWallet(tx, child.parentId) : undefined;
  if (parent) refillIfOwed(tx, parent, now, blocked);
}

type ExtendWallet = { order: change.ChangeOrder & { seconds: number }; now: number };
export const extendWallet = defineWrite('wallet.extend', (tx, { order, now }: ExtendWallet) =>
  change.extendWallet(tx, order, now),
);

type FreezeWallet = { id: string; frozenAt: number | null; reason: string | null; now: number };
export const freezeWallet = defineWrite('wallet.freeze', (tx, { id, frozenAt, reason, now }: FreezeWallet) =>
  change.setWalletFrozen(tx, id, frozenAt, reason, now),
);

type SetRefill = { id: string; refill: Refill | null; now: number; blocked: string | undefined };
/** Sets or ends the refill of a wallet, after one that is owed under the terms before. */
export const setRefill = defineWrite('wallet.set_refill', (tx, { id, refill, now, blocked }: SetRefill) => {
  const wallet = findWallet(tx, id) as Wallet;
  return setRefillOf(tx, refillIfOwed(tx, wallet, now, blocked)?.wallet ?? wallet, refill, now);
});

export const refillWallet = defineWrite('wallet.refill', (tx, { id, now }: { id: string; now: number }) =>
  refillIfDue(tx, findWallet(tx, id) as Wallet, now),
);

// Operations. Holds and settlements are in spend/writes.ts.

type Resolve = { id: string; decision: 'charge' | 'release'; reason: string; now: number };
export const resolveByPolicy = defineWrite('operation.resolve', (tx, { id, decision, reason, now }: Resolve) =>
  operation.resolveOperation(tx, id, decision, 'policy', reason, now),
);

export const keepKey = defineWrite('operation.keep_key', (tx, { id, now }: { id: string; now: number }) =>
  operation.keepKey(tx, id, now),
);

type KeepAnswer = { id: string; body: Buffer; keptUntil: number };
export const keepAnswer = defineWrite('answer.keep', (tx, { id, body, keptUntil }: KeepAnswer) =>
  operation.keepAnswer(tx, id, body, keptUntil),
);

export const dropAnswer = defineWrite('answer.drop', (tx, { id }: { id: string }) => operation.dropAnswer(tx, id));

export const pruneAnswers = defineWrite('answer.prune', (tx, { now }: { now: number }) =>
  operation.pruneAnswers(tx, now),
);

export const keepLearnedBound = defineWrite('learned_bound.keep', (tx, row: bound.LearnedBound) =>
  bound.keepLearnedBound(tx, row),
);

// Resources.

/** Updates a lease with a finding that may be out of date. */
export const changeResource = defineWrite(
  'resource.change',
  (tx, { id, values }: { id: string; values: resource.ResourceChange }) => resource.updateIfLive(tx, id, values),
);

/** Makes leases due at `dueAt`. */
export const wakeResources = defineWrite(
  'resource.wake',
  (tx, { ids, dueAt }: { ids: readonly string[]; dueAt: number }) => {
    for (const id of ids) resource.updateIfLive(tx, id, { dueAt });
  },
);

// Leases that are kept while they are busy. The steps are in lease/extend.ts.

export const changeKeep = defineWrite('keep.change', (tx, { order, now }: { order: keep.KeepOrder; now: number }) =>
  keep.changeKeep(tx, order, now),
);

type EndKeep = { id: string; reason: keep.KeepEnd; message: string | null; now: number };
export const endKeep = defineWrite('keep.end', (tx, { id, reason, message, now }: EndKeep) =>
  keep.endKeep(tx, id, reason, message, now),
);

type NoteKeep = { id: string; change: Parameters<typeof keep.noteKeep>[2] };
export const noteKeep = defineWrite('keep.note', (tx, { id, change }: NoteKeep) => keep.noteKeep(tx, id, change));

// Payments.

type OpenCheckout = { order: checkout.CheckoutOrder; now: number };
export const openCheckout = defineWrite('checkout.open', (tx, { order, now }: OpenCheckout) =>
  checkout.openCheckout(tx, order, now),
);

type SettleCreation = { id: string; creation: checkout.Creation; now: number };
export const settleCreation = defineWrite('checkout.settle_creation', (tx, { id, creation, now }: SettleCreation) =>
  checkout.settleCreation(tx, id, creation, now),
);

export const recordPoll = defineWrite(
  'checkout.record_poll',
  (tx, { id, error, now }: { id: string; error: string | null; now: number }) =>
    checkout.recordPoll(tx, id, error, now),
);

type Report = { report: checkout.PaymentReport; event: payments.PaymentEvent | undefined; now: number };
/** Applies a report on a session; undefined where its event had been applied before. */
export const reportPayment = defineWrite('payment.report', (tx, { report, event, now }: Report) => {
  if (event && payments.isKnownEvent(tx, event.id)) return undefined;
  const done = checkout.reportPayment(tx, report, now);
  if (event && done.kind === 'known') payments.noteEvent(tx, event, now);
  return done;
});

type Reverse = { reversal: ReversalReport; event: payments.PaymentEvent; now: number };
/** Applies a refund or a dispute; undefined where its event had been applied before. */
export const reversePayment = defineWrite('payment.reverse', (tx, { reversal, event, now }: Reverse) => {
  if (payments.isKnownEvent(tx, event.id)) return undefined;
  payments.noteEvent(tx, event, now);
  return reportReversal(tx, reversal, now);
});

export const setFeed = defineWrite('payment.set_feed', (tx, feed: payments.Feed) => payments.setFeed(tx, feed));

// Events for receivers.

type RecordAttempt = {
  delivery: outbox.Delivery;
  attempt: outbox.Attempt;
  /** The receiver had been down: everything that waits for it is due. */
  isBack: boolean;
  now: number;
};
export const recordAttempt = defineWrite('event.attempt', (tx, { delivery, attempt, isBack, now }: RecordAttempt) => {
  outbox.recordAttempt(tx, delivery, attempt, now);
  if (isBack) outbox.hurry(tx, delivery.receiver, now);
});

export const recordTest = defineWrite('event.test', (tx, { now }: { now: number }) =>
  outbox.record(tx, 'test', 'test', {}, now),
);

/** Queues an event again; returns how many receivers get it. */
export const resendEvent = defineWrite('event.resend', (tx, { id, now }: { id: string; now: number }) =>
  outbox.resend(tx, id, now),
);

export const pruneEvents = defineWrite('event.prune', (tx, { now }: { now: number }) => outbox.pruneEvents(tx, now));

export const tellDiskLow = defineWrite('event.disk_low', (tx, { reason, now }: { reason: string; now: number }) =>
  notices.tellDiskLow(tx, reason, now),
);

type TellUpstream = { name: string; down: { reason: string } | undefined; now: number };
export const tellUpstream = defineWrite('event.upstream', (tx, { name, down, now }: TellUpstream) =>
  notices.tellUpstream(tx, name, down, now),
);

// The installation.

export const install = defineWrite('installation.install', (tx, it: { masterKeyId: string; now: number }) =>
  installation.install(tx, it.masterKeyId, it.now),
);

/** Stops new holds from `at` on; null allows them again. */
export const freeze = defineWrite(
  'installation.freeze',
  (tx, { at, reason }: { at: number | null; reason: string | null }) => installation.setFrozen(tx, at, reason),
);

/** Makes another key the master key. Throws `conflict` for one that was used before. */
export const rotateMasterKey = defineWrite(
  'master_key.rotate',
  (tx, { rotation, now }: { rotation: keys.Rotation; now: number }) => {
    const { id } = rotation.next;
    if (keys.masterKeyRows(tx).some((it) => it.id === id))
      throw new Refusal('conflict', `The master key ${id} has been used here before. Rotate to a fresh one.`);
    keys.rotateMasterKey(tx, rotation, now);
  },
);

export const dropWrappedKey = defineWrite('master_key.drop_wrapped', (tx, { id }: { id: string }) =>
  keys.dropWrappedKey(tx, id),
);

/**
 * Drops a retired key unless a wallet from `walletId` on needs it: one of the previous key may have been waiting for its
 * commit. Returns whether it was dropped.
 */
export const dropRetiredKey = defineWrite(
  'master_key.drop_retired',
  (tx, { id, walletId }: { id: string; walletId: string }) => {
    const { needed, next } = keys.walletNeeding(tx, id, walletId);
    if (needed !== undefined || next !== undefined) return false;
    keys.dropWrappedKey(tx, id);
    return true;
  },
);
