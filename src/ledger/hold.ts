import assert from 'node:assert/strict';
import { formatUsd, Nanos, ZERO } from '../base/money.ts';
import { Refusal, type RefusalCode, type RefusalData, refusalOf } from '../base/refusal.ts';
import { withChecksum } from '../db/checksum.ts';
import { refuseOnLowDisk } from '../db/disk-reserve.ts';
import type { Reader, Tx } from '../db/handle.ts';
import { keyDigest } from '../db/key-digest.ts';
import { plain } from '../db/plain.ts';
import { operations } from '../db/schema.ts';
import { accountOf } from './account.ts';
import { installationOf, refuseFrozenInstallation } from './installation.ts';
import { book, headIn, post } from './journal.ts';
import { memoryOf, type RowMemory } from './memory.ts';
import { isUnanswered, type Operation, operationOf, uncertainHeld } from './operation.ts';
import { refillIfDue, refillIfOwed } from './refill.ts';
import { available, findWallet, raiseHeld, refuseFrozen, refuseInactive, type Wallet } from './wallet.ts';

/** Suggested wait when a hold fails only because other requests in flight hold the money. */
export const FUNDS_HELD_RETRY_SECONDS = 2;
/** Suggested wait where only requests of unknown outcome hold the money: a policy decides those, by default after 15 minutes. */
const UNDECIDED_RETRY_SECONDS = 60;

const writes = plain({
  insert: `insert into operation (id, wallet_id, kind, route, idempotency_key, fingerprint, request_id, state, hold_nanos, price,
    subject, resource_id, target_at, created_at, tags, key_digest, hold_entry, seal)
    values (?, ?, ?, ?, ?, ?, ?, 'reserved', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
});

/** The order of a hold: all members of a new operation except those that the hold decides. */
export type OperationOrder = {
  /** Chosen before the write, so that the operation is registered as in flight before it becomes visible. */
  id: string;
  walletId: string;
  kind: Operation['kind'];
  route: string;
  idempotencyKey: string;
  fingerprint: Buffer;
  requestId: string;
  /** The maximum price. */
  hold: Nanos;
  /** The price snapshot, as JSON. */
  price: string;
  subject: string;
  /** The lease that the operation creates or extends. */
  resourceId?: string;
  /** For an extension: the new end of the lease, Unix seconds. */
  targetAt?: number;
  /** A JSON object of strings; none unless given. */
  tags?: string | null;
};
/** The members of an operation that its hold decides. */
export type Placed = Pick<Operation, 'number' | 'holdEntry' | 'seal'>;

export type HoldOrder = OperationOrder & {
  /** The smallest hold to which the request could be cut. Decides whether a refusal is final; the hold unless given. */
  holdMin?: Nanos;
  /** The reason why nothing may be held at the moment; thrown unless the wallet's state already forbids the hold. */
  limited?: RefusalData | undefined;
  /** Throws a refusal for violations of the rules of its kind, before the wallet's funds are looked at. */
  limits?: (read: Reader, wallet: Wallet) => void;
};

/** The refusals of `placeHold`, besides `read_only`. */
export const HOLD_REFUSALS = [
  'wallet_closed',
  'wallet_expired',
  'wallet_frozen',
  'account_suspended',
  'insufficient_funds',
  'funds_held',
] as const satisfies readonly RefusalCode[];

/**
 * Reserves the maximum price. The paid path has looked the key up and runs one attempt per key at a time; a unique index refuses
 * the insert otherwise. Checks run in the documented order of refusals: state first, then money. Throws `HOLD_REFUSALS`, and
 * `read_only` when all new holds are stopped: by the operator's freeze, a full disk, or `blocked` (a sentence about the clock).
 */
export function placeHold(tx: Tx, order: HoldOrder, now: number, blocked?: string): Operation {
  assert(order.hold >= 0n, 'a bound is never negative; a free model holds 0');
  const memory = memoryOf(tx);
  const wallet = memory.recall(order.walletId, () => findWallet(tx, order.walletId));
  assert(wallet, 'a wallet token is only ever issued for a wallet that exists');
  refuseHolds(tx, memory, wallet, now, blocked);
  const refill = available(wallet) < order.hold ? refillIfOwed : refillIfDue;
  const funded = refill(tx, wallet, now, blocked)?.wallet ?? wallet;
  refuseLimited(tx, funded, order);
  const short = shortfall(tx, funded, order);
  if (short) throw short.refusal;

  // From here on the hold must stand.
  const { id, hold } = order;
  const holdEntry = hold > 0n ? headIn(tx).seq + 1 : null;
  const operation = withChecksum(operations, operationFrom(order, { number: 0, holdEntry, seal: 0 }, now));
  operation.number = insert(tx, operation);
  memory.changed(id, operation);
  memory.changed(wallet.id, raiseHeld(tx, funded, operation));
  if (funded.firstOperation === null) memory.added(1); // The wallet's record has changed as well.
  const [own, held] = [book.wallet(wallet.id), book.hold(wallet.id)];
  memory.added(post(tx, [{ at: now, causeId: id, debit: own, credit: held, amount: hold }]));
  return operation;
}

function refuseLimited(read: Reader, wallet: Wallet, { limited, limits }: HoldOrder): void {
  if (limited) throw refusalOf(limited);
  limits?.(read, wallet);
}

/** Adds a row and returns its number. */
function insert(tx: Tx, it: Operation): number {
  return writes(tx).insert.insert(
    it.id,
    it.walletId,
    it.kind,
    it.route,
    it.idempotencyKey,
    it.fingerprint,
    it.requestId,
    it.hold,
    it.price,
    it.subject,
    it.resourceId,
    it.targetAt,
    it.createdAt,
    it.tags,
    it.keyDigest,
    it.holdEntry,
    it.seal,
  );
}

/** The money that a wallet has for one more request. */
export type Funds = {
  /** The amount that it may hold now. */
  available: Nanos;
  /** The amount that it may hold once the requests in flight have ended, but for those of unknown outcome, if they cost nothing. */
  soon: Nanos;
};

/** Returns the money that a wallet has for one more request. Ignores a refill that is due. */
export function fundsOf(read: Reader, wallet: Wallet): Funds {
  const unknown = wallet.held ? uncertainHeld(read, wallet.id) : ZERO;
  return { available: available(wallet), soon: Nanos(available(wallet) + wallet.held - unknown) };
}

/**
 * Returns why a wallet cannot hold an order, or undefined if it can. `isSoon`: only because of requests in flight whose outcome
 * will be known.
 */
function shortfall(
  read: Reader,
  wallet: Wallet,
  { hold, holdMin = hold }: Pick<HoldOrder, 'hold' | 'holdMin'>,
): { refusal: Refusal; isSoon: boolean } | undefined {
  if (available(wallet) >= hold) return undefined;
  const { available: now, soon } = fundsOf(read, wallet);
  const later = Nanos(now + wallet.held); // The funds if all holds in flight are released.
  const undecided =
    later > soon
      ? ` ${formatUsd(Nanos(later - soon))} USD of that is held by requests whose outcome nobody knows; it stays until they are decided.`
      : '';
  const message = `This request needs ${formatUsd(hold)} USD at most; the wallet has ${formatUsd(now)} USD available and ${formatUsd(wallet.held)} USD held by requests in flight.${undecided}`;
  const isSoon = soon >= holdMin;
  const refusal =
    later >= holdMin
      ? new Refusal('funds_held', message, {
          retryAfterSeconds: isSoon ? FUNDS_HELD_RETRY_SECONDS : UNDECIDED_RETRY_SECONDS,
        })
      : new Refusal('insufficient_funds', message);
  return { refusal, isSoon };
}

/**
 * The verdict of a wallet on an order. `waits`: only requests in flight keep it from its money. `short`: it lacks the money for
 * another reason. `refused`: the state of the wallet, a rule or a limit forbids it.
 */
export type Standing = { kind: 'ready' } | { kind: 'waits' | 'short' | 'refused'; refusal: Refusal };

/** Returns the result that `placeHold` would have, by the rows as they are. Ignores a refill that is due. */
export function standingOf(read: Reader, order: HoldOrder, now: number, blocked?: string): Standing {
  const wallet = findWallet(read, order.walletId) as Wallet;
  try {
    refuseHolds(read, memoryOf(read), wallet, now, blocked);
    refuseLimited(read, wallet, order);
  } catch (error) {
    if (error instanceof Refusal) return { kind: 'refused', refusal: error };
    throw error;
  }
  const short = shortfall(read, wallet, order);
  if (!short) return { kind: 'ready' };
  return { kind: short.isSoon ? 'waits' : 'short', refusal: short.refusal };
}

/** Returns the operation that an order became when it was placed at `now`, in Unix seconds. */
export function operationFrom(order: OperationOrder, { number, holdEntry, seal }: Placed, now: number): Operation {
  return {
    number,
    id: order.id,
    walletId: order.walletId,
    kind: order.kind,
    route: order.route,
    idempotencyKey: order.idempotencyKey,
    fingerprint: order.fingerprint,
    requestId: order.requestId,
    state: 'reserved',
    outcome: null,
    settledBy: null,
    hold: order.hold,
    charge: null,
    price: order.price,
    usage: null,
    subject: order.subject,
    resourceId: order.resourceId ?? null,
    targetAt: order.targetAt ?? null,
    reason: null,
    createdAt: now,
    uncertainAt: null,
    settledAt: null,
    answeredAt: null,
    tags: order.tags ?? null,
    freed: null,
    keyDigest: keyDigest(order.walletId, order.route, order.idempotencyKey),
    holdEntry,
    settleEntry: null,
    seal,
  };
}

/** Throws a refusal when a wallet may not spend at the moment, whatever its funds. */
function refuseHolds(read: Reader, memory: RowMemory, wallet: Wallet, now: number, blocked: string | undefined): void {
  const find = (_: Reader, id: string) => memory.recall(id, () => findWallet(read, id));
  refuseInactive(read, wallet, now, find);
  refuseFrozen(read, wallet, find);
  const account = memory.recall(wallet.accountId, () => accountOf(read, wallet.accountId));
  if (account.suspendedAt !== null) throw new Refusal('account_suspended');
  refuseFrozenInstallation(memory.recall('installation', () => installationOf(read)));
  refuseOnLowDisk(read);
  if (blocked) throw new Refusal('read_only', `No new holds: ${blocked}. Retry later.`, { retryAfterSeconds: 60 });
}

/**
 * Takes over the hold of an unanswered operation for another attempt at the same request. There is no second hold: the new attempt
 * is charged to this one, or already has been. Returns undefined when the operation has been answered or released in the meantime.
 * Throws the refusals of `placeHold` for the state of the wallet.
 */
export function takeOverHold(tx: Tx, id: string, now: number, blocked?: string): Operation | undefined {
  const operation = operationOf(tx, id);
  if (!isUnanswered(operation)) return undefined;
  refuseHolds(tx, memoryOf(tx), findWallet(tx, operation.walletId) as Wallet, now, blocked);
  return operation;
}
