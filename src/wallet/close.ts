import assert from 'node:assert/strict';
import { setTimeout as sleep } from 'node:timers/promises';
import { forEachAtOnce } from '../base/at-once.ts';
import { ZERO } from '../base/money.ts';
import type { Config } from '../config/config.ts';
import type { Reader, Tx } from '../db/handle.ts';
import { defineWrite } from '../db/write.ts';
import type { LeaseApp } from '../lease/create.ts';
import { REPORT_ONLY } from '../lease/report-only.ts';
import { advanceSnapshot } from '../lease/snapshot-step.ts';
import { advance } from '../lease/step.ts';
import { beginClosing, type CloseReason, closeWallet, noteCleanup } from '../ledger/closing.ts';
import { reportOnlyOf } from '../ledger/installation.ts';
import { hasOpenOperations, openOperations, resolveByPolicy } from '../ledger/operation.ts';
import {
  endResourcesBelow,
  liveResources,
  liveResourcesBelow,
  type Resource,
  unmarkedResourcesBelow,
} from '../ledger/resource.ts';
import {
  endSnapshotsBelow,
  liveSnapshots,
  liveSnapshotsBelow,
  type Snapshot,
  unmarkedSnapshotsBelow,
} from '../ledger/snapshot.ts';
import { endedBy, findWallet, openChildren, statusAt, type Wallet } from '../ledger/wallet.ts';
import { uncertainPolicyOf } from '../router/uncertain.ts';
import type { OpenApp } from './open.ts';

export type CloseApp = LeaseApp & {
  config: Pick<Config, 'close_wait_seconds' | 'router'>;
  limits: Pick<OpenApp['limits'], 'unspent'>;
};

/** Interval between attempts: a backend needs a moment to confirm that a machine is destroyed. */
const AGAIN_MILLISECONDS = 250;
/** The number of wallets whose closing is tried at a time, and of leases and snapshots that take a step. */
const AT_ONCE_COUNT = 100;
/** The most wallets that end or are closed before other work has its turn: a second or two. */
export const CLOSE_COUNT_MAX = 500;

/**
 * Ends the spending of a wallet and of all below it, and works on closing them for about `close_wait_seconds`, the deepest first:
 * ends their leases, waits for requests in flight, resolves uncertain chats by their policy, settles the rest and returns what is
 * left. Returns the wallet as it is then: `closed`, or still `closing` or `expired` while the reaper continues (design 2.10).
 * Idempotent.
 */
export async function close(app: CloseApp, walletId: string, reason: CloseReason): Promise<Wallet> {
  const now = app.clock.now();
  const ending = await app.ledger.write(endSpending, { id: walletId, reason, now });
  if (ending.status === 'closed') return ending;
  await endAllBelow(app, walletId);
  const deadline = performance.now() + app.config.close_wait_seconds * 1000;
  const secondsRemaining = () => Math.max(0, (deadline - performance.now()) / 1000);
  const attempt = () => attemptOf(app, walletId, secondsRemaining());
  const first = await attempt();
  if (first.wallet.status === 'closed') return first.wallet;
  await app.inFlight.whenWalletIdle(walletId, secondsRemaining());
  for (;;) {
    const { wallet, isCut } = await attempt();
    if (wallet.status === 'closed') return wallet;
    const isHeldBack = liveResourcesBelow(app.ledger.read, walletId).some(
      (it) => it.quarantinedAt !== null || it.unreachableSince !== null,
    );
    if (isHeldBack || reportOnlyOf(app.ledger.read) || secondsRemaining() === 0 || app.inFlight.isCutOff()) {
      app.wakeAt(app.clock.now() + 1); // The reaper continues.
      return wallet;
    }
    if (!isCut) await sleep(AGAIN_MILLISECONDS);
  }
}

type ClosingAttempt = { wallet: Wallet; isCut: boolean };
/** The attempts that run, by wallet. */
const running = new WeakMap<CloseApp, Map<string, Promise<ClosingAttempt>>>();

/** Makes one attempt to close a wallet and all below it, or joins the one that runs: closes of one wallet cost what one costs. */
function attemptOf(app: CloseApp, walletId: string, seconds: number): Promise<ClosingAttempt> {
  let attempts = running.get(app);
  if (!attempts) {
    attempts = new Map();
    running.set(app, attempts);
  }
  const before = attempts.get(walletId);
  if (before) return before;
  const attempt = makeAttempt(app, walletId, seconds).finally(() => attempts.delete(walletId));
  attempts.set(walletId, attempt);
  return attempt;
}

async function makeAttempt(app: CloseApp, walletId: string, seconds: number): Promise<ClosingAttempt> {
  await endLeases(app, walletId, seconds);
  const attempts = await windUp(app, [walletId]);
  for (const it of attempts) if (it.status === 'rejected') throw it.reason;
  return { wallet: findWallet(app.ledger.read, walletId) as Wallet, isCut: closedIn(attempts) >= CLOSE_COUNT_MAX };
}

type EndSpending = { id: string; reason: CloseReason; now: number };
/**
 * Begins to close a wallet: from then on nothing in its tree can spend, and every lease and snapshot of the tree has to end. There may
 * be any number below: their wallets' rows stay as they are until they are closed, and a page of leases and snapshots is marked here,
 * the rest by `endAllBelow`. Does nothing where the reason was its expiry, and it has been extended since that was read.
 */
export const endSpending = defineWrite('wallet.end_spending', (tx, { id, reason, now }: EndSpending) => {
  const before = findWallet(tx, id);
  if (before && reason === 'expired' && statusAt(tx, before, now) === 'active') return before;
  const wallet = beginClosing(tx, id, reason, now);
  if (wallet.status !== 'closed') markBelow(tx, id, now);
  return wallet;
});

const markBelow = (tx: Tx, id: string, now: number): void => {
  endResourcesBelow(tx, id, 'wallet_closed', now);
  endSnapshotsBelow(tx, id, now);
};

const endBelow = defineWrite('wallet.end_below', (tx, { id, now }: { id: string; now: number }) =>
  markBelow(tx, id, now),
);

/** Marks all leases and snapshots in the tree of a wallet that has ended, a page in each write, so that others have their turn. */
export async function endAllBelow({ ledger, clock }: CloseApp, id: string): Promise<void> {
  while (unmarkedResourcesBelow(ledger.read, id).length || unmarkedSnapshotsBelow(ledger.read, id).length)
    await ledger.write(endBelow, { id, now: clock.now() });
}

type CloseWallet = {
  id: string;
  /** The leases with a running step. */
  busyLeases: readonly string[];
  now: number;
};
/**
 * Closes a wallet that has ended, by itself or with one above it, if nothing is left of it; otherwise records what is left. Returns
 * the wallet if this write has closed it.
 */
const closeIfSettled = defineWrite('wallet.close', (tx, { id, busyLeases, now }: CloseWallet) => {
  const wallet = findWallet(tx, id) as Wallet;
  if (wallet.status === 'closed') return undefined; // Something else closed it first, and announced it.
  const ended = endedBy(tx, wallet);
  assert(ended, 'a wallet is closed after it, or one above it, has ended');
  beginClosing(tx, id, ended.closeReason as CloseReason, now);
  const [live] = liveResources(tx, id);
  const [snapshot] = liveSnapshots(tx, id);
  const [child] = openChildren(tx, id, 1);
  if (live || snapshot || child || hasOpenOperations(tx, id)) {
    const inFlight = child ? `its child ${child} is not closed yet` : 'requests are still in flight';
    const trouble = live ? troubleOf(live, busyLeases.includes(live.id)) : snapshot && troubleOfSnapshot(tx, snapshot);
    noteCleanup(tx, id, trouble ?? inFlight);
    return undefined;
  }
  return closeWallet(tx, id, now);
});

/**
 * Runs one step of each lease of a wallet and of all below it, then one of each snapshot, a page of them at a time, and waits at most
 * `seconds`; the steps of a backend that hangs continue on their own.
 */
async function endLeases(app: CloseApp, walletId: string, seconds: number): Promise<void> {
  const steps = async () => {
    const { read } = app.ledger;
    await forEachAtOnce(liveResourcesBelow(read, walletId), AT_ONCE_COUNT, ({ id }) => advance(app, id));
    await forEachAtOnce(liveSnapshotsBelow(read, walletId), AT_ONCE_COUNT, ({ id }) => advanceSnapshot(app, id));
  };
  await app.inFlight.waitFor(steps(), seconds);
}

/** Returns the number of wallets that attempts have closed. */
const closedIn = (attempts: readonly PromiseSettledResult<Wallet>[]): number =>
  attempts.filter((it) => it.status === 'fulfilled' && it.value.status === 'closed').length;

/**
 * Makes one attempt to close each of these wallets, which have begun to close, and all below them, deepest first. Stops once `max`
 * or more are closed. Returns each attempt's outcome; a failed one does not prevent the others.
 */
export async function windUp(
  app: CloseApp,
  ids: readonly string[],
  max = CLOSE_COUNT_MAX,
): Promise<PromiseSettledResult<Wallet>[]> {
  const attempts: PromiseSettledResult<Wallet>[] = [];
  const room = () => max - closedIn(attempts);
  for (const id of ids) {
    const children = openChildren(app.ledger.read, id);
    if (children.length) attempts.push(...(await windUp(app, children, room())));
    if (room() <= 0) return attempts;
  }
  for (let from = 0, to = 0; from < ids.length && room() > 0; from = to) {
    to = from + Math.min(AT_ONCE_COUNT, room());
    attempts.push(...(await Promise.allSettled(ids.slice(from, to).map((id) => tryClose(app, id)))));
  }
  return attempts;
}

/**
 * Makes one attempt to close a wallet whose children are closed: resolves the chats for which there will never be evidence, and
 * closes it if nothing is left. Attempts driven by this process are left to end on their own.
 */
async function tryClose(app: CloseApp, walletId: string): Promise<Wallet> {
  const undecided = openOperations(app.ledger.read, walletId).filter((it) => !app.inFlight.drives(it.id));
  // A lease waits for evidence; a reserved operation is about to be driven, or to be found uncertain.
  const doubtful = undecided.filter(({ kind, state }) => kind === 'chat' && state === 'uncertain');
  const decidedAt = app.clock.now();
  const decided = await Promise.all(
    doubtful.map((it) => {
      const { policy } = uncertainPolicyOf(app.config.router, it);
      const reason = `the wallet was closed; policy ${policy}`;
      return app.ledger.write(resolveByPolicy, { id: it.id, decision: policy, reason, now: decidedAt });
    }),
  );
  for (const it of decided) if (it.moved) app.events.decided(it.operation);
  const now = app.clock.now();
  const leases = liveResources(app.ledger.read, walletId).map(({ id }) => id);
  const busyLeases = leases.filter((id) => app.leaseMutex.isBusy(id));
  const closed = await app.ledger.write(closeIfSettled, { id: walletId, busyLeases, now });
  if (closed) {
    app.events.walletClosed(closed);
    // It has cost nothing and stays in the books, like an operation that was refused.
    if (closed.parentId !== null && closed.spent === ZERO) app.limits.unspent.count(app.tenantOf(walletId).treeId);
  }
  return closed ?? (findWallet(app.ledger.read, walletId) as Wallet);
}

/**
 * Describes in our own words why a wallet waits for this lease, as accounts read it. The backend's message may name sockets
 * and addresses; the resource keeps that for the operator.
 */
function troubleOf(
  { id, backend, quarantinedAt, unreachableSince, attempts, status }: Resource,
  isBusy: boolean,
): string {
  if (quarantinedAt !== null) return `${id} on ${backend}: ${REPORT_ONLY}`;
  if (unreachableSince !== null)
    return `${id} on ${backend}: another engine answers there than the one with its machine`;
  if (attempts > 0) return `${id} on ${backend}: the backend failed or has not answered; it is asked again`;
  return `${id} on ${backend}: ${isBusy ? 'the backend has not answered yet' : status}`;
}

/** Describes in the same way why a wallet waits for a snapshot. */
function troubleOfSnapshot(read: Reader, { id, backend, attempts, status }: Snapshot): string {
  if (reportOnlyOf(read)) return `${id} on ${backend}: ${REPORT_ONLY}`;
  return `${id} on ${backend}: ${attempts > 0 ? 'the backend failed or has not answered; it is asked again' : status}`;
}
