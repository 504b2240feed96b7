import { type Backend, type Owned, type Ref, resourceIdOf, tagPrefix } from '../compute/backend.ts';
import { installationOf, reportOnlyOf } from '../ledger/installation.ts';
import { findResource, quarantinedResources } from '../ledger/resource.ts';
import { findSnapshot } from '../ledger/snapshot.ts';
import type { LeaseApp } from './create.ts';
import { doubtBooks } from './report-only.ts';

/** Machines younger than this are spared: their rows may not have the reference yet. */
const GRACE_SECONDS = 300;
/** Limit per sweep: a bug in Purser must not empty a cluster. */
const KILL_COUNT_MAX = 10;

type Orphan = Owned & { destroyed: boolean };

/**
 * State of one sweep over all backends. Two slots may share an engine, so machines already seen are skipped. With
 * `showAll`, machines that are spared for their age, or that the backend may not end, are reported as well.
 */
export type SweepPass = { showAll: boolean; seen: Set<string>; remainingKills: number };
/** Starts a sweep. With `report` it destroys nothing. */
export const newPass = ({ report = false, showAll = false } = {}): SweepPass => ({
  showAll,
  seen: new Set(),
  remainingKills: report ? 0 : KILL_COUNT_MAX,
});

/**
 * Lists the backend's machines and snapshots with this installation's tag and destroys those that no live row knows (design,
 * section 7): only machines older than a grace period, only a few per sweep, nothing if the list failed or is partial, and nothing
 * in report-only mode. Machines without the tag that the backend may end are treated the same.
 */
export async function sweep(app: LeaseApp, backend: Backend, now: number, pass: SweepPass): Promise<Orphan[]> {
  const prefix = tagPrefix(app.installationId);
  const { strangers } = backend;
  const warm = app.warm.ids(); // Also those of before: one may become a lease, or end, while the list is made.
  const listed = await backend.listOwned(prefix);
  const spared = new Set([...warm, ...app.warm.ids()]);
  const owned = listed.filter(({ tag }) => !spared.has(resourceIdOf(prefix, tag)));
  const { snapshots } = backend.guest;
  // Where they cannot be listed, what is known of the machines is done first.
  const [images] = await Promise.allSettled([typeof snapshots === 'object' ? snapshots.list(prefix) : []]);
  const kept = images.status === 'fulfilled' ? images.value : [];
  const foreign = [...owned, ...kept].find((it) => isOfAnotherCopy(app, it));
  if (foreign && !reportOnlyOf(app.ledger.read)) {
    const because = `another server writes a copy of these books: it made ${foreign.tag} after they had moved here`;
    await app.ledger.write(doubtBooks, { because, now });
    app.events.reportOnly(because, quarantinedResources(app.ledger.read).length);
  }
  const others = strangers && (pass.showAll || strangers.end) ? await strangers.list(prefix) : [];
  const orphans: Orphan[] = [];

  async function judge(it: Owned, end: ((ref: Ref) => Promise<void>) | undefined): Promise<void> {
    const name = `${backend.name} ${it.ref}`;
    const isYoung = now - it.createdAt < GRACE_SECONDS;
    if ((isYoung && !pass.showAll) || pass.seen.has(name)) return;
    pass.seen.add(name);
    const spared = !end || isYoung || pass.remainingKills <= 0 || reportOnlyOf(app.ledger.read) !== undefined;
    if (!spared) pass.remainingKills--;
    orphans.push({ ...it, destroyed: !spared && (await destroy(app, backend, it, end)) });
  }

  for (const it of owned) {
    const resource = findResource(app.ledger.read, resourceIdOf(prefix, it.tag));
    const isKnown = resource && resource.endedAt === null && (resource.ref === null || resource.ref === it.ref);
    if (!isKnown) await judge(it, (ref) => backend.destroy(ref));
  }
  for (const it of others) await judge(it, strangers?.end);
  for (const { tag, createdAt } of kept) {
    const snapshot = findSnapshot(app.ledger.read, resourceIdOf(prefix, tag));
    const end = typeof snapshots === 'object' ? snapshots.remove : undefined;
    if (snapshot?.endedAt !== null) await judge({ ref: tag, tag, state: 'ended', createdAt }, end);
  }
  if (images.status === 'rejected') throw images.reason;
  return orphans;
}

/**
 * Returns whether another copy of these books made a machine or a snapshot, since they moved to this machine or the operator
 * looked: each has a row before it is made, and rows stay.
 */
function isOfAnotherCopy(
  { ledger: { read }, installationId }: LeaseApp,
  { tag, createdAt }: Pick<Owned, 'tag' | 'createdAt'>,
): boolean {
  const { movedWrittenAt, trustedAt } = installationOf(read);
  if (movedWrittenAt === null || createdAt <= Math.max(movedWrittenAt, trustedAt ?? 0)) return false;
  const id = resourceIdOf(tagPrefix(installationId), tag);
  if (id.startsWith('snap_')) return findSnapshot(read, id) === undefined;
  return id.startsWith('res_') && findResource(read, id) === undefined; // A trial of doctor has no row.
}

/** Destroys one orphan. A failure does not stop the sweep; the next one tries again. */
async function destroy(
  app: LeaseApp,
  backend: Backend,
  { ref, tag }: Owned,
  end: (ref: Ref) => Promise<void>,
): Promise<boolean> {
  try {
    await end(ref);
    app.events.orphan(backend.name, ref, tag);
    return true;
  } catch (error) {
    app.events.failed('sweep', error, { backend: backend.name, ref, tag });
    return false;
  }
}
