import { ZERO } from '../base/money.ts';
import type { Config } from '../config/config.ts';
import type { Reader } from '../db/handle.ts';
import { defineWrite } from '../db/write.ts';
import type { LeaseApp } from '../lease/create.ts';
import { REPORT_ONLY } from '../lease/report-only.ts';
import { advanceSnapshot } from '../lease/snapshot-step.ts';
import { advance } from '../lease/step.ts';
import { beginClosing, type CloseReason, closeWallet, noteCleanup } from '../ledger/closing.ts';
import { reportOnlyOf } from '../ledger/installation.ts';
import { hasOpenOperations, openOperations, resolveByPolicy } from '../ledger/operation.ts';
import { endResourcesOfWallet, liveResources, type Resource } from '../ledger/resource.ts';
import { endSnapshotsOfWallet, liveSnapshots, type Snapshot } from '../ledger/snapshot.ts';
import { findWallet, openChildren, openDescendants, statusAt, type Wallet } from '../ledger/wallet.ts';
import { uncertainPolicyOf } from '../router/uncertain.ts';

export type CloseApp = LeaseApp & {
  config: Pick<Config, 'close_wait_seconds' | 'router'>;
};

/** Interval between attempts: a backend needs a moment to confirm that a machine is destroyed. */
const AGAIN_MILLISECONDS = 250;

/**
 * Ends the spending of a wallet and of all below it, and works on closing them for at most `close_wait_seconds`, the
 * deepest first: ends their leases, waits for requests in flight, resolves uncertain chats by their policy, settles the
 * rest and returns what is left. Returns the wallet as it is then: `closed`, or still `closing` or `expired` while the
 * reaper continues (design 2.10). Idempotent.
 */
export async function close(app: CloseApp, walletId: string, reason: CloseReason): Promise<Wallet> {
  const now = app.clock.now();
  const ending = await app.ledger.write(endSpending, { id: walletId, reason, now });
  if (ending.status === 'closed') return ending;
  const deadline = performance.now() + app.config.close_wait_seconds * 1000;
  const secondsRemaining = () => Math.max(0, (deadline - performance.now()) / 1000);
  await endLeases(app, walletId, secondsRemaining());
  const wallet = await tryClose(app, walletId);
  if (wallet.status === 'closed') return wallet;
  await app.inFlight.whenWalletIdle(walletId, secondsRemaining());
  for (;;) {
    await endLeases(app, walletId, secondsRemaining());
    const attempted = await tryClose(app, walletId);
    if (attempted.status === 'closed') return attempted;
    const isHeldBack = leasesBelow(app, walletId).some(
      (it) => it.quarantinedAt !== null || it.unreachableSince !== null,
    );
    if (isHeldBack || reportOnlyOf(app.ledger.read) || secondsRemaining() === 0 || app.inFlight.isCutOff()) {
      app.wakeAt(app.clock.now() + 1); // The reaper continues.
      return attempted;
    }
    await new Promise((resolve) => setTimeout(resolve, AGAIN_MILLISECONDS));
  }
}

type EndSpending = { id: string; reason: CloseReason; now: number };
/**
 * Begins to close a wallet and all below it, in one write: from then on nothing in the tree can spend. Does nothing where the
 * reason was its expiry, and it has been extended since that was read.
 */
export const endSpending = defineWrite('wallet.end_spending', (tx, { id: walletId, reason, now }: EndSpending) => {
  const wallet = findWallet(tx, walletId);
  if (wallet && reason === 'expired' && statusAt(wallet, now) === 'active') return wallet;
  for (const { id } of openDescendants(tx, walletId)) endOne(id);
  return endOne(walletId);

  function endOne(id: string): Wallet {
    const wallet = beginClosing(tx, id, reason, now);
    if (wallet.status === 'closed') return wallet;
    endResourcesOfWallet(tx, id, 'wallet_closed', now);
    endSnapshotsOfWallet(tx, id, now);
    return wallet;
  }
});

type CloseWallet = {
  id: string;
  /** The leases with a running step. */
  busyLeases: readonly string[];
  now: number;
};
/** Closes a wallet if nothing is left of it, or records what is left. Returns the wallet if this write has closed it. */
const closeIfSettled = defineWrite('wallet.close', (tx, { id, busyLeases, now }: CloseWallet) => {
  if (findWallet(tx, id)?.status === 'closed') return undefined; // Something else closed it first, and announced it.
  const [live] = liveResources(tx, id);
  const [snapshot] = liveSnapshots(tx, id);
  const [child] = openChildren(tx, id, 1);
  if (live || snapshot || child || hasOpenOperations(tx, id)) {
    const inFlight = child ? `its child ${child.id} is not closed yet` : 'requests are still in flight';
    const trouble = live ? troubleOf(live, busyLeases.includes(live.id)) : snapshot && troubleOfSnapshot(tx, snapshot);
    noteCleanup(tx, id, trouble ?? inFlight);
    return undefined;
  }
  return closeWallet(tx, id, now);
});

/** Returns the ids of a wallet and of the open ones below it. */
const tree = (app: CloseApp, walletId: string): string[] => [
  walletId,
  ...openDescendants(app.ledger.read, walletId).map(({ id }) => id),
];

/** Returns the leases of a wallet and of all below it that have not ended. */
const leasesBelow = (app: CloseApp, walletId: string): Resource[] =>
  tree(app, walletId).flatMap((id) => liveResources(app.ledger.read, id));

/**
 * Runs one step of each lease of a wallet and of all below it, then one of each snapshot, and waits at most `seconds`; the steps of
 * a backend that hangs continue on their own.
 */
async function endLeases(app: CloseApp, walletId: string, seconds: number): Promise<void> {
  const steps = async () => {
    await Promise.all(leasesBelow(app, walletId).map(({ id }) => advance(app, id)));
    const kept = tree(app, walletId).flatMap((id) => liveSnapshots(app.ledger.read, id));
    await Promise.all(kept.map(({ id }) => advanceSnapshot(app, id)));
  };
  await app.inFlight.waitFor(steps(), seconds);
}

/**
 * Makes one attempt to close a wallet that has begun to close: closes its children first, resolves the chats for which there
 * will never be evidence, and closes it if nothing is left. Attempts driven by this process are left to end on their own.
 */
export async function tryClose(app: CloseApp, walletId: string): Promise<Wallet> {
  for (const child of openChildren(app.ledger.read, walletId))
    if (child.status === 'closing' || child.status === 'expired') await tryClose(app, child.id);
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
    if (closed.parentId !== null && closed.spent === ZERO) app.limits.released.count(app.tenantOf(walletId).treeId);
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
