import type { Config } from '../config/config.ts';
import type { LeaseApp } from '../lease/create.ts';
import { REPORT_ONLY } from '../lease/report-only.ts';
import { advance } from '../lease/step.ts';
import { type CloseReason, closeWallet, freezeWallet, noteCleanup } from '../ledger/closing.ts';
import { decide, hasOpenOperations, openOperations } from '../ledger/operation.ts';
import { endResourcesOfWallet, liveResources, type Resource } from '../ledger/resource.ts';
import { findWallet, type Wallet } from '../ledger/wallet.ts';
import { uncertainPolicyOf } from '../router/uncertain.ts';

export type CloseApp = LeaseApp & {
  config: Pick<Config, 'closeWaitSeconds' | 'router'>;
};

/** Interval between attempts: a backend needs a moment to confirm that a machine is destroyed. */
const AGAIN_MILLISECONDS = 250;

/**
 * Freezes a wallet and works on closing it for at most `close_wait_seconds`: ends its leases, waits for requests in
 * flight, resolves uncertain chats by their policy, settles the rest and returns what is left. Returns the wallet as it
 * is then: `closed`, or still `closing` or `expired` while the reaper continues (design 2.10). Idempotent.
 */
export async function close(app: CloseApp, walletId: string, reason: CloseReason): Promise<Wallet> {
  const now = app.clock.now();
  const frozen = await app.ledger.write((tx) => {
    const wallet = freezeWallet(tx, walletId, reason, now);
    if (wallet.status !== 'closed') endResourcesOfWallet(tx, walletId, 'wallet_closed', now);
    return wallet;
  });
  if (frozen.status === 'closed') return frozen;
  const deadline = performance.now() + app.config.closeWaitSeconds * 1000;
  const secondsLeft = () => Math.max(0, (deadline - performance.now()) / 1000);
  await endLeases(app, walletId, secondsLeft());
  const wallet = await tryClose(app, walletId);
  if (wallet.status === 'closed') return wallet;
  await app.inFlight.whenWalletIdle(walletId, secondsLeft());
  for (;;) {
    await endLeases(app, walletId, secondsLeft());
    const attempted = await tryClose(app, walletId);
    if (attempted.status === 'closed') return attempted;
    const isHeldBack = liveResources(app.ledger.read, walletId).some((it) => it.quarantinedAt !== null);
    if (isHeldBack || secondsLeft() === 0 || app.inFlight.isCutOff()) {
      app.wakeAt(app.clock.now() + 1); // The reaper continues.
      return attempted;
    }
    await new Promise((resolve) => setTimeout(resolve, AGAIN_MILLISECONDS));
  }
}

/**
 * Runs one step of each lease of a wallet and waits at most `seconds`; the steps of a backend that hangs continue on
 * their own.
 */
async function endLeases(app: CloseApp, walletId: string, seconds: number): Promise<void> {
  const steps = liveResources(app.ledger.read, walletId).map(({ id }) => advance(app, id));
  await app.inFlight.waitFor(Promise.all(steps), seconds);
}

/**
 * Makes one attempt to close a frozen wallet: resolves the chats that no evidence will ever resolve, and closes it if
 * nothing is left. Attempts driven by this process are left to end on their own.
 */
export async function tryClose(app: CloseApp, walletId: string): Promise<Wallet> {
  const undecided = openOperations(app.ledger.read, walletId).filter((it) => !app.inFlight.drives(it.id));
  // A lease waits for evidence; a reserved operation is about to be driven, or to be found uncertain.
  const doubtful = undecided.filter(({ kind, state }) => kind === 'chat' && state === 'uncertain');
  const decidedAt = app.clock.now();
  const decided = await Promise.all(
    doubtful.map((it) => {
      const { policy } = uncertainPolicyOf(app.config.router, it);
      const reason = `the wallet was closed; policy ${policy}`;
      return app.ledger.write((tx) => decide(tx, it.id, policy, 'policy', reason, decidedAt));
    }),
  );
  for (const it of decided) if (it.moved) app.events.decided(it.operation);
  const now = app.clock.now();
  const closed = await app.ledger.write((tx) => {
    if (findWallet(tx, walletId)?.status === 'closed') return undefined; // Something else closed it first, and announced it.
    const [live] = liveResources(tx, walletId);
    if (live || hasOpenOperations(tx, walletId)) {
      noteCleanup(tx, walletId, live ? troubleOf(app, live) : 'requests are still in flight');
      return undefined;
    }
    return closeWallet(tx, walletId, now);
  });
  if (closed) app.events.walletClosed(closed);
  return closed ?? (findWallet(app.ledger.read, walletId) as Wallet);
}

/**
 * Why a wallet waits for this lease, in our own words: accounts read it. What the backend said may name sockets and
 * addresses; the resource keeps that for the operator.
 */
function troubleOf({ leaseMutex }: CloseApp, { id, backend, quarantinedAt, attempts, status }: Resource): string {
  if (quarantinedAt !== null) return `${id} on ${backend}: ${REPORT_ONLY}`;
  if (attempts > 0) return `${id} on ${backend}: the backend failed or has not answered; it is asked again`;
  return `${id} on ${backend}: ${leaseMutex.isBusy(id) ? 'the backend has not answered yet' : status}`;
}
