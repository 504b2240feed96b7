import { dropRetiredKeys } from '../access/rotation.ts';
import type { Backend } from '../compute/backend.ts';
import type { ConfiguredBackend } from '../compute/slots.ts';
import type { Reader } from '../db/handle.ts';
import { checkKeeps, nextKeep } from '../lease/keep.ts';
import { advanceSnapshot } from '../lease/snapshot-step.ts';
import { advance } from '../lease/step.ts';
import { newPass, type SweepPass, sweep } from '../lease/sweep.ts';
import { installationOf } from '../ledger/installation.ts';
import {
  nextStaleAnswer,
  pruneAnswers,
  resolveByPolicy,
  type UncertainCursor,
  uncertainOperations,
} from '../ledger/operation.ts';
import { nextStaleEvent, pruneEvents } from '../ledger/outbox.ts';
import { dueRefills, nextRefill, refillWallet } from '../ledger/refill.ts';
import { type DueResource, dueResources, nextDueResource, PAGE_COUNT } from '../ledger/resource.ts';
import { endedSandboxes, nextSandboxEnd } from '../ledger/sandbox.ts';
import { type DueSnapshot, dueSnapshots, nextDueSnapshot } from '../ledger/snapshot.ts';
import {
  type DueCursor,
  dueWallets,
  endedBy,
  endedWithUnmarked,
  endingWallets,
  findWallet,
  hasOpenChildren,
  LIST_COUNT_MAX,
  nextExpiry,
  type Wallet,
} from '../ledger/wallet.ts';
import { shortestUncertain, uncertainPolicyOf } from '../router/uncertain.ts';
import { recover } from '../spend/recover.ts';
import { CLOSE_COUNT_MAX, endAllBelow, endSpending, windUp } from '../wallet/close.ts';
import type { Reaped, ReaperApp } from './reaper.ts';

/** Interval between sweeps for orphans. */
const SWEEP_SECONDS = 60;
/** Seconds that a chore waits for a backend. Work on one that hangs continues on its own and does not delay the others. */
const WAIT_SECONDS = 15;
/** Steps for which an earlier pass has waited to the time limit. */
const hung = new WeakSet<object>();
/** Backends whose last sweep has not ended yet. */
const sweeping = new WeakSet<Backend>();
/** Seconds that a pass waits for the payment provider. */
const PAYMENTS_WAIT_SECONDS = 5;

/**
 * The chores of a pass; `createReaper` has their order. Those that page by cursor do so in order that a row which keeps
 * failing does not block the others.
 */

/**
 * Turns `active` wallets past their expiry into `expired`, as many as a pass has time for. Expiry is computed anyway; this is only
 * tidying.
 */
export async function expireWallets(app: ReaperApp, reaped: Reaped): Promise<void> {
  if (app.clock.expiryBlocked()) return;
  const now = app.clock.now();
  for (let cursor: DueCursor | undefined; ; ) {
    if (reaped.expired >= CLOSE_COUNT_MAX) return noteRest(reaped);
    const page = dueWallets(app.ledger.read, now, cursor);
    const ended = await Promise.allSettled(
      page.map(({ id }) => app.ledger.write(endSpending, { id, reason: 'expired', now })),
    );
    for (const it of ended) {
      const isExtended = it.status === 'fulfilled' && it.value.status === 'active'; // Since the page was read.
      if (!isExtended) tally(app, reaped, it, 'expired');
    }
    cursor = page.at(-1);
    if (page.length < LIST_COUNT_MAX) return;
  }
}

/** Refills wallets whose boundary has passed. One whose account is short is tried again a minute later. */
export async function refillWallets(app: ReaperApp, reaped: Reaped): Promise<void> {
  const blocked = app.clock.holdsBlocked();
  if (blocked) return;
  const now = app.clock.now();
  for (;;) {
    const page = dueRefills(app.ledger.read, now);
    const refilled = await Promise.allSettled(page.map(({ id }) => app.ledger.write(refillWallet, { id, now })));
    for (const it of refilled) {
      tally(app, reaped, it, 'refilled');
      if (it.status === 'fulfilled' && it.value) app.events.refilled(it.value);
    }
    if (page.length < LIST_COUNT_MAX || refilled.some((it) => it.status === 'rejected')) return;
  }
}

/** Steps every lease that is due: ends those whose time is over, captures those that are ready. */
export async function stepLeases(app: ReaperApp, reaped: Reaped): Promise<void> {
  const now = app.clock.now();
  for (let cursor: DueResource | undefined; ; ) {
    const page = dueResources(app.ledger.read, now, cursor);
    for (const it of await inTime(
      app,
      page.map(({ id }) => advance(app, id)),
    ))
      tally(app, reaped, it, 'leases');
    cursor = page.at(-1);
    if (page.length < PAGE_COUNT) return;
  }
}

/** Ends the sandboxes that are over before the paid time of their leases is. */
export async function endSandboxes(app: ReaperApp, reaped: Reaped): Promise<void> {
  if (app.clock.expiryBlocked()) return;
  const over = endedSandboxes(app.ledger.read, app.clock.now());
  for (const it of await inTime(
    app,
    over.map((id) => advance(app, id)),
  ))
    tally(app, reaped, it, 'leases');
}

/** Extends leases that are kept while they are busy. Runs after the steps, which know whether an extension took place. */
export async function keepLeases(app: ReaperApp, reaped: Reaped): Promise<void> {
  for (const it of await inTime(app, checkKeeps(app))) tally(app, reaped, it, 'kept');
}

/** Steps every snapshot that is due: pays for its day, or removes it. Runs after the leases, which may still need one. */
export async function stepSnapshots(app: ReaperApp, reaped: Reaped): Promise<void> {
  const now = app.clock.now();
  for (let cursor: DueSnapshot | undefined; ; ) {
    const page = dueSnapshots(app.ledger.read, now, cursor);
    for (const it of await inTime(
      app,
      page.map(({ id }) => advanceSnapshot(app, id)),
    ))
      tally(app, reaped, it, 'snapshots');
    cursor = page.at(-1);
    if (page.length < PAGE_COUNT) return;
  }
}

/** Keeps warm machines made. A pass does not wait for that. */
export async function tendWarm(app: ReaperApp): Promise<void> {
  void app.warm.tend().catch((error) => app.events.failed('warm', error));
}

/** After a move to this machine, sweeps once before any lease is ended: the sweep sees whether the books are written elsewhere, too. */
export async function sweepMoved(app: ReaperApp, reaped: Reaped): Promise<void> {
  if (app.state.sweepAt === 0 && installationOf(app.ledger.read).movedAt !== null) await sweepOrphans(app, reaped);
}

/** Destroys machines with this installation's tag that no live row knows. */
export async function sweepOrphans(app: ReaperApp, reaped: Reaped): Promise<void> {
  const now = app.clock.now();
  if (!app.slots.list.length || now < app.state.sweepAt || app.clock.expiryBlocked()) return;
  app.state.sweepAt = now + SWEEP_SECONDS;
  const pass = newPass();
  const idle = app.slots.list.filter(({ backend }) => !sweeping.has(backend));
  const sweeps = idle.map((it) => sweepOne(app, reaped, it, pass));
  await app.inFlight.waitFor(Promise.all(sweeps), WAIT_SECONDS);
}

async function sweepOne(
  app: ReaperApp,
  reaped: Reaped,
  { slot, backend }: ConfiguredBackend,
  pass: SweepPass,
): Promise<void> {
  sweeping.add(backend);
  try {
    for (const orphan of await sweep(app, backend, app.clock.now(), pass)) {
      if (orphan.destroyed) reaped.orphans++;
      else app.events.orphanSeen(backend.name, orphan.ref, orphan.tag);
    }
  } catch (error) {
    reaped.failed++;
    app.events.failed('sweep', error, { slot, backend: backend.name });
  } finally {
    sweeping.delete(backend);
  }
}

/**
 * Marks operations as uncertain that are `reserved` and not driven: their driver has ended, and they wait for their
 * policy.
 */
export async function recoverInterrupted(app: ReaperApp): Promise<void> {
  await recover(app);
}

/**
 * Drives `closing` and `expired` wallets, and those below them, to `closed`, as many as a pass has time for. Runs after their due
 * leases were stepped.
 */
export async function windUpWallets(app: ReaperApp, reaped: Reaped): Promise<void> {
  const { read } = app.ledger;
  const room = () => CLOSE_COUNT_MAX - reaped.closed;
  /** Returns whether it has left some. */
  const closeSome = async (ids: readonly string[], max: number): Promise<boolean> => {
    const before = reaped.closed;
    for (const it of await windUp(app, ids, max))
      tally(app, reaped, it, it.status === 'fulfilled' && it.value.status !== 'closed' ? 'pending' : 'closed');
    return reaped.closed - before >= max;
  };
  const trees: string[] = [];
  let unmarked: Set<string> | undefined; // Asked for once, as it looks at everything live; and not where nothing is ending.
  for (const page of pagesOfEnding(read)) {
    const tops = page.filter(
      ({ parentId }) => parentId === null || !endedBy(read, findWallet(read, parentId) as Wallet),
    );
    if (page.length) unmarked ??= endedWithUnmarked(read);
    for (const { id } of tops) if (unmarked?.has(id)) await endAllBelow(app, id);
    const alone: string[] = [];
    for (const { id } of tops) (hasOpenChildren(read, id) ? trees : alone).push(id);
    if (alone.length && (await closeSome(alone, room()))) return noteRest(reaped);
  }
  // Each tree has its share of a pass, however large the others are.
  let isCut = false;
  for (const [i, id] of trees.entries()) {
    if (room() <= 0) return noteRest(reaped);
    const share = Math.max(1, Math.floor(room() / (trees.length - i)));
    isCut = (await closeSome([id], share)) || isCut;
  }
  if (isCut) noteRest(reaped);
}

/** Yields the wallets that have ended by themselves and are not closed yet, in pages. */
function* pagesOfEnding(read: Reader): Generator<ReturnType<typeof endingWallets>> {
  for (let after = ''; ; ) {
    const page = endingWallets(read, after);
    yield page;
    after = page.at(-1)?.id ?? '';
    if (page.length < LIST_COUNT_MAX) return;
  }
}

/** Resolves uncertain chats by policy when they are due; those driven by this process are left alone. */
export async function resolveUncertain(app: ReaperApp, reaped: Reaped): Promise<void> {
  if (app.clock.expiryBlocked()) return;
  const { router } = app.config;
  const now = app.clock.now();
  for (let cursor: UncertainCursor | undefined; ; ) {
    const page = uncertainOperations(app.ledger.read, now - shortestUncertain(router), cursor);
    const due = page
      .filter((it) => it.kind === 'chat' && !app.inFlight.drives(it.id))
      .map((it) => ({ ...it, ...uncertainPolicyOf(router, it) }))
      .filter((it) => (it.uncertainAt as number) + it.after_seconds <= now);
    const decided = await Promise.allSettled(
      due.map(({ id, after_seconds: seconds, policy }) => {
        const reason = `no answer after ${seconds} s; policy ${policy}`;
        return app.ledger.write(resolveByPolicy, { id, decision: policy, reason, now });
      }),
    );
    for (const it of decided) {
      tally(app, reaped, it, 'resolved');
      if (it.status === 'fulfilled' && it.value.moved) app.events.decided(it.value.operation);
    }
    cursor = page.at(-1);
    if (page.length < LIST_COUNT_MAX) return;
  }
}

/** Polls the payment provider for the sessions and lists that are due. If it hangs, the pass continues without it. */
export async function pollPayments(app: ReaperApp, reaped: Reaped): Promise<void> {
  if (!app.paymentPoller || app.paymentPoller.nextDue() > app.clock.now()) return;
  const pass = await app.inFlight.waitFor(app.paymentPoller.pass(), PAYMENTS_WAIT_SECONDS);
  reaped.reads += pass?.reads ?? 0;
  reaped.failed += pass?.failed ?? 0;
}

/** Deletes stored answers after their 72 hours. */
export async function pruneReplays(app: ReaperApp, reaped: Reaped): Promise<void> {
  if (app.clock.expiryBlocked()) return;
  const now = app.clock.now();
  for (;;) {
    if ((nextStaleAnswer(app.ledger.read) ?? Number.POSITIVE_INFINITY) > now) return;
    reaped.pruned += await app.ledger.write(pruneAnswers, { now });
  }
}

/** Deletes events for receivers after their 32 days. */
export async function pruneOutbox(app: ReaperApp, reaped: Reaped): Promise<void> {
  if (app.clock.expiryBlocked()) return;
  const now = app.clock.now();
  for (;;) {
    if ((nextStaleEvent(app.ledger.read) ?? Number.POSITIVE_INFINITY) > now) return;
    reaped.pruned += await app.ledger.write(pruneEvents, { now });
  }
}

/** Deletes the wrapped copies of rotated master keys that no live wallet needs any more. */
export async function dropKeys(app: ReaperApp, reaped: Reaped): Promise<void> {
  reaped.keysDropped += await dropRetiredKeys(app, app.keysWalked);
}

/** Returns the Unix seconds of the next deadline. */
export function nextDue(app: ReaperApp): number {
  const uncertain = uncertainOperations(app.ledger.read, Number.MAX_SAFE_INTEGER).filter((it) => it.kind === 'chat');
  return Math.min(
    nextDueResource(app.ledger.read) ?? Number.POSITIVE_INFINITY,
    nextSandboxEnd(app.ledger.read) ?? Number.POSITIVE_INFINITY,
    nextKeep(app),
    app.clock.expiryBlocked()
      ? Number.POSITIVE_INFINITY
      : (nextDueSnapshot(app.ledger.read) ?? Number.POSITIVE_INFINITY),
    nextExpiry(app.ledger.read) ?? Number.POSITIVE_INFINITY,
    nextRefill(app.ledger.read) ?? Number.POSITIVE_INFINITY,
    ...uncertain.map((it) => (it.uncertainAt as number) + uncertainPolicyOf(app.config.router, it).after_seconds),
    nextStaleAnswer(app.ledger.read) ?? Number.POSITIVE_INFINITY,
    nextStaleEvent(app.ledger.read) ?? Number.POSITIVE_INFINITY,
    app.paymentPoller?.nextDue() ?? Number.POSITIVE_INFINITY,
  );
}

/**
 * Waits for the runs, at most for the time of one chore. Returns how each ended; undefined for one that is still
 * running. Runs that hung in an earlier pass are not waited for again.
 */
async function inTime<T>(app: ReaperApp, runs: Promise<T>[]): Promise<(PromiseSettledResult<T> | undefined)[]> {
  const results = runs.map((): PromiseSettledResult<T> | undefined => undefined);
  const all = runs.map(async (run, i) => {
    [results[i]] = await Promise.allSettled([run]);
  });
  await app.inFlight.waitFor(Promise.all(all.filter((_, i) => !hung.has(runs[i] as object))), WAIT_SECONDS);
  for (const [i, run] of runs.entries()) if (!results[i]) hung.add(run);
  return results;
}

/** Notes that a chore has left something to the next pass, so that the other chores have their turn. */
function noteRest(reaped: Reaped): void {
  reaped.rest++;
}

function tally(
  app: ReaperApp,
  reaped: Reaped,
  result: PromiseSettledResult<unknown> | undefined,
  what: keyof Reaped,
): void {
  if (!result) reaped.pending++;
  else if (result.status === 'fulfilled') reaped[what]++;
  else {
    reaped.failed++;
    app.events.failed('reaper', result.reason);
  }
}
