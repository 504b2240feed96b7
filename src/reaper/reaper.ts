import type { Keyring } from '../access/keyring.ts';
import { touchKeys } from '../access/writes.ts';
import type { ServerHealth } from '../base/health.ts';
import type { PaymentPoller } from '../billing/payment-poller.ts';
import type { DiskReserve } from '../db/disk-reserve.ts';
import type { KeepApp } from '../lease/keep.ts';
import type { CloseApp } from '../wallet/close.ts';
import {
  dropKeys,
  endSandboxes,
  expireWallets,
  keepLeases,
  nextDue,
  pollPayments,
  pruneOutbox,
  pruneReplays,
  recoverInterrupted,
  refillWallets,
  resolveUncertain,
  stepLeases,
  stepSnapshots,
  sweepMoved,
  sweepOrphans,
  tendWarm,
  windUpWallets,
} from './chores.ts';

export type ReaperApp = CloseApp &
  KeepApp & {
    health: ServerHealth;
    diskReserve: Pick<DiskReserve, 'shortage'>;
    keysUsed: Map<string, number>;
    state: {
      /** The time of the next sweep for orphans, Unix seconds. */
      sweepAt: number;
    };
    /** Polls the payment provider, where one is configured. */
    paymentPoller: PaymentPoller | undefined;
    keyring: Keyring;
    /** The wallet up to which no wallet needs it, by retired master key. */
    keysWalked: Map<string, string>;
  };

/** Longest sleep, even with nothing due: the wall clock may have moved. */
const SLEEP_SECONDS_MAX = 60;
/** Delay before closing a wallet is tried again. */
const AGAIN_SECONDS = 2;

export type Reaped = {
  expired: number;
  refilled: number;
  leases: number;
  /** Checks of leases that are kept while they are busy. */
  kept: number;
  snapshots: number;
  orphans: number;
  closed: number;
  pending: number;
  resolved: number;
  /** Number of sessions and lists requested from the payment provider. */
  reads: number;
  pruned: number;
  keysDropped: number;
  failed: number;
  /** Chores that have left something to the next pass, which follows at once. */
  rest: number;
};

export type Reaper = {
  start(): void;
  /** Resolves when no pass is running. Safe to call before `start`, and twice. */
  stop(): Promise<void>;
  /** Runs one pass over everything that is due. */
  runOnce(): Promise<Reaped>;
  /** Makes sure that the reaper is awake at `at` (Unix seconds). */
  wakeAt(at: number): void;
};

const nothing = (): Reaped => ({
  expired: 0,
  refilled: 0,
  leases: 0,
  kept: 0,
  snapshots: 0,
  closed: 0,
  pending: 0,
  resolved: 0,
  reads: 0,
  orphans: 0,
  pruned: 0,
  keysDropped: 0,
  failed: 0,
  rest: 0,
});

/** The chores of a pass, in their order. */
const CHORES = [
  sweepMoved,
  expireWallets,
  refillWallets,
  endSandboxes,
  stepLeases,
  keepLeases,
  recoverInterrupted,
  stepSnapshots,
  windUpWallets,
  resolveUncertain,
  sweepOrphans,
  tendWarm,
  pollPayments,
  pruneReplays,
  pruneOutbox,
  dropKeys,
];

/** Runs all chores once. The failure of one does not keep the others from running. */
async function runChores(app: ReaperApp): Promise<Reaped> {
  const reaped = nothing();
  if (app.health.fault) return reaped;
  for (const chore of CHORES) {
    try {
      await chore(app, reaped);
    } catch (error) {
      reaped.failed++;
      app.events.failed('reaper', error, { chore: chore.name });
    }
  }
  // Worth a commit, but not the disk reserve.
  if (app.keysUsed.size && !app.diskReserve.shortage()) {
    const used = [...app.keysUsed];
    app.keysUsed.clear();
    await app.ledger.write(touchKeys, { used });
  }
  return reaped;
}

/** Creates the reaper: runs a pass, then sleeps until the earliest deadline or until woken (design, section 9). */
export function createReaper(app: ReaperApp): Reaper {
  let timer: NodeJS.Timeout | undefined;
  let timerAt = Number.POSITIVE_INFINITY;
  let started = false;
  let running: Promise<unknown> | undefined;
  let wanted: number | undefined;

  const runOnce = () => runChores(app);

  function sleepUntil(at: number) {
    if (!started || at >= timerAt) return;
    clearTimeout(timer);
    timerAt = at;
    const seconds = Math.min(Math.max(at - app.clock.now(), 0), SLEEP_SECONDS_MAX);
    timer = setTimeout(pass, seconds * 1000);
    timer.unref();
  }

  function pass() {
    timer = undefined;
    timerAt = Number.POSITIVE_INFINITY;
    wanted = undefined;
    running = runOnce()
      .then(({ pending, failed, rest }) => ({ due: nextDue(app), again: pending + failed > 0, atOnce: rest > 0 }))
      .catch((error) => {
        app.events.failed('reaper', error);
        return { due: Number.POSITIVE_INFINITY, again: true, atOnce: false };
      })
      .then(({ due, again, atOnce }) => {
        running = undefined;
        const now = app.clock.now();
        if (atOnce) return sleepUntil(now);
        const retry = again ? now + AGAIN_SECONDS : Number.POSITIVE_INFINITY;
        // Due work that cannot be done now (after a clock jump) is not retried in a tight loop.
        sleepUntil(
          Math.min(retry, Math.max(due, now + 1), wanted ?? Number.POSITIVE_INFINITY, now + SLEEP_SECONDS_MAX),
        );
      });
  }

  /** Wakes the reaper at `at`. During a pass the wake-up is kept for its end: two passes never run at once. */
  function wakeAt(at: number) {
    if (running) wanted = Math.min(wanted ?? at, at);
    else sleepUntil(at);
  }

  return {
    runOnce,
    start() {
      if (started) return;
      started = true;
      wakeAt(app.clock.now());
    },
    async stop() {
      started = false;
      clearTimeout(timer);
      timer = undefined;
      timerAt = Number.POSITIVE_INFINITY;
      await running;
    },
    wakeAt,
  };
}
