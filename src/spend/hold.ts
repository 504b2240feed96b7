import { refusalOfLimit } from '../base/limits.ts';
import { Refusal, type RefusalCode, type RefusalData, refusalOf, refusedFrom } from '../base/refusal.ts';
import type { Data } from '../db/write.ts';
import {
  FUNDS_HELD_RETRY_SECONDS,
  fundsOf,
  type OperationOrder,
  operationFrom,
  type Standing,
} from '../ledger/hold.ts';
import type { Operation } from '../ledger/operation.ts';
import { isOwed, refillOwed } from '../ledger/refill.ts';
import { available, findWallet, type Wallet } from '../ledger/wallet.ts';
import type { WaitEnd } from './funds-queue.ts';
import { stopping } from './in-flight.ts';
import type { PaidApp, PaidQuote, Waiters } from './spend.ts';
import type { PaidWrites } from './writes.ts';

/** Places the holds of paid requests: at once, or in their turn when others in flight have released the money. */

type Writes<T> = Pick<PaidWrites<T>, 'hold' | 'standing'>;
/** The part of an order that its quote does not decide. */
type Unpriced = Omit<OperationOrder, keyof PaidQuote<never, never>['order']>;
/** An operation whose hold is on disk, and the quote that it was held for. */
type Holding<A, T> = { operation: Operation; quote: PaidQuote<A, T> };

async function writeHold<A, T extends Data>(
  app: PaidApp,
  { hold }: Writes<T>,
  unpriced: Unpriced,
  quote: PaidQuote<A, T>,
): Promise<Holding<A, T>> {
  const now = app.clock.now();
  const order = { ...unpriced, ...quote.order };
  const data = { order, terms: quote.terms, now, blocked: app.clock.holdsBlocked() };
  const placed = await app.ledger.write(hold, { ...data, limited: refusedNow(app, quote, order.walletId) });
  return { operation: operationFrom(order, placed, now), quote };
}

const walletNow = ({ ledger }: PaidApp, id: string) => findWallet(ledger.read, id) as Wallet;

/** Returns a quote cut to the money that the wallet has now, if it lacks the money for all of it. */
function fitting<A, T>({ ledger }: PaidApp, quote: PaidQuote<A, T>, wallet: Wallet): PaidQuote<A, T> {
  return available(wallet) < quote.order.hold ? (quote.cut?.(fundsOf(ledger.read, wallet)) ?? quote) : quote;
}

/** Returns the verdict of the wallet on a quote, by the rows as they are. */
function standingFor<A, T extends Data>(
  app: PaidApp,
  writes: Writes<T>,
  unpriced: Unpriced,
  { order, terms, advice, forbidden }: PaidQuote<A, T>,
): Standing {
  const { walletId } = unpriced;
  const limited = forbidden?.() ?? refusalOfLimit(app.limits.released, walletId);
  const data = { order: { ...unpriced, ...order }, terms, now: app.clock.now(), blocked: app.clock.holdsBlocked() };
  const standing = writes.standing(app.ledger.read, { ...data, limited });
  if (!advice || standing.kind === 'ready' || standing.kind === 'refused') return standing;
  const { message, ...refused } = refusedFrom(standing.refusal);
  return { kind: standing.kind, refusal: refusalOf({ ...refused, message: `${message} ${advice}` }) };
}

/**
 * Returns a quote cut to the money of its wallet, where the last one lacked some. For all others the write decides: it looks at the
 * wallet anyway, and a look on this thread takes a fifth of a chat's time here.
 */
function cutIfShort<A, T>(app: PaidApp, quote: PaidQuote<A, T>, walletId: string): PaidQuote<A, T> {
  if (!app.fundsQueue.isShort(walletId)) return quote;
  const wallet = walletNow(app, walletId);
  // The write of the hold pays a refill that is owed, so nothing is cut before.
  const fit = isOwed(wallet, app.clock.now()) ? quote : fitting(app, quote, wallet);
  app.fundsQueue.setShort(walletId, fit !== quote);
  return fit;
}

/**
 * Places a hold for a quote, cut to the money of the wallet if it lacks the money for all of it. Gives back the resources of the call
 * if that is refused; one that is cut keeps those that it has.
 */
export async function holdNow<A, T extends Data>(
  app: PaidApp,
  writes: Writes<T>,
  unpriced: Unpriced,
  quote: PaidQuote<A, T>,
): Promise<Holding<A, T>> {
  try {
    return await holdOrCut(app, writes, unpriced, quote);
  } catch (error) {
    quote.leave?.();
    throw error;
  }
}

/** The cut is made outside of the write, from rows that other requests may change first: then the quote is cut again by what they left. */
async function holdOrCut<A, T extends Data>(
  app: PaidApp,
  writes: Writes<T>,
  unpriced: Unpriced,
  quote: PaidQuote<A, T>,
): Promise<Holding<A, T>> {
  const { walletId } = unpriced;
  if (!quote.cut) return writeHold(app, writes, unpriced, quote);
  let fit = cutIfShort(app, quote, walletId);
  for (let count = 1; ; count++) {
    try {
      return await writeHold(app, writes, unpriced, fit);
    } catch (error) {
      if (!(error instanceof Refusal) || !LACKS_MONEY.includes(error.code)) throw error;
      app.fundsQueue.setShort(walletId, true);
    }
    let wallet = walletNow(app, walletId);
    if (isOwed(wallet, app.clock.now())) {
      const data = { id: walletId, now: app.clock.now(), blocked: app.clock.holdsBlocked() };
      await app.ledger.write(refillOwed, data); // The refused hold has undone its own.
      wallet = walletNow(app, walletId);
    }
    fit = fitting(app, quote, wallet);
    const standing = standingFor(app, writes, unpriced, fit);
    if (standing.kind !== 'ready') throw standing.refusal;
    if (count === HOLD_COUNT_MAX) throw overtaken();
  }
}

const LACKS_MONEY: readonly RefusalCode[] = ['insufficient_funds', 'funds_held'];
/** The writes that are tried for one hold. Each that fails has lost the money to another hold, so a second one rarely does. */
const HOLD_COUNT_MAX = 8;

/**
 * Places a hold as soon as requests in flight have released the money for it, after the earlier requests of its wallet. A waiting
 * request has none of the call's resources. Throws the errors of `holdNow`, `funds_held` when its time is over, and `read_only`
 * when the server is stopping.
 */
export async function holdInTurn<A, T extends Data>(
  app: PaidApp,
  writes: Writes<T>,
  unpriced: Unpriced,
  quote: PaidQuote<A, T>,
  { audience }: Pick<Waiters<A>, 'audience'>,
): Promise<Holding<A, T>> {
  const { walletId } = unpriced;
  const standing = () => standingFor(app, writes, unpriced, fitting(app, quote, walletNow(app, walletId)));
  const isHopeless = () => ['refused', 'short'].includes(standing().kind);
  /** Returns undefined if requests in flight hold the money. */
  const tryOrWait = async () => {
    try {
      return await holdNow(app, writes, unpriced, quote);
    } catch (error) {
      const isHeld = error instanceof Refusal && error.code === 'funds_held';
      if (!isHeld || isHopeless()) throw error;
      return undefined;
    }
  };
  // A new request does not overtake waiting ones. A hold that is impossible whatever becomes of them is refused at once.
  if (!app.fundsQueue.hasLine(walletId) || isHopeless()) {
    const held = await tryOrWait();
    if (held) return held;
  }
  const turn = app.fundsQueue.join(walletId);
  if (!turn) throw heldBack(standing());
  let end: WaitEnd = 'refused';
  try {
    for (;;) {
      const come = await turn.come(() => standing().kind !== 'waits', audience);
      if (come !== 'first') {
        end = come;
        throw come === 'stopped' ? stopping() : heldBack(standing());
      }
      const held = await tryOrWait();
      if (!held) continue;
      end = 'held';
      return held;
    }
  } finally {
    turn.leave(end);
  }
}

/** Returns the refusal of a request that stops waiting, or cannot wait. */
const heldBack = (standing: Standing): Refusal => (standing.kind === 'waits' ? standing.refusal : overtaken());

const overtaken = () =>
  new Refusal('funds_held', 'Other requests of this wallet came before this one and wait for its money.', {
    retryAfterSeconds: FUNDS_HELD_RETRY_SECONDS,
  });

/**
 * Returns the reason why nothing may be held for a request, as data: the write of the hold throws it, after its check of
 * the wallet's state.
 */
export const refusedNow = (
  { limits }: Pick<PaidApp, 'limits'>,
  { forbidden, enter }: Pick<PaidQuote<never, never>, 'forbidden' | 'enter'>,
  walletId: string,
): RefusalData | undefined => {
  const why = forbidden?.();
  if (why) return why;
  const refused = enter?.();
  return refused ? refusedFrom(refused) : refusalOfLimit(limits.released, walletId);
};
