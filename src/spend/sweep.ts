import { type Backend, type Owned, resourceIdOf, tagPrefix } from '../compute/backend.ts';
import { findResource } from '../compute/resources.ts';
import { reportOnlyOf } from '../ledger/installation.ts';
import type { LeaseApp } from './lease.ts';

/** What was made a moment ago may not have its row's reference yet; it is spared. */
const GRACE_SECONDS = 300;
/** So many at most in one pass: a mistake of ours must not empty a cluster. */
const KILL_COUNT_MAX = 10;

export type Orphan = Owned & { resourceId: string; destroyed: boolean };

/** One look at all backends: two slots may have one engine behind them, and what the first has seen is its affair. */
export type Pass = { seen: Set<string>; killsLeft: number; graceSeconds: number };
/** `report` looks only, and destroys nothing: so it also tells of what was made a moment ago, before a restore perhaps. */
export const newPass = ({ report = false } = {}): Pass => ({
  seen: new Set(),
  killsLeft: report ? 0 : KILL_COUNT_MAX,
  graceSeconds: report ? 0 : GRACE_SECONDS,
});

/**
 * Lists the backend by this installation's tag and destroys what no live row knows: older than a grace period, a few in
 * one pass, nothing when the list failed or is partial (design, section 7), and nothing while the installation only
 * reports.
 */
export async function sweep(app: LeaseApp, backend: Backend, now: number, pass: Pass): Promise<Orphan[]> {
  const prefix = tagPrefix(app.installationId);
  const orphans: Orphan[] = [];
  for (const owned of await backend.listOwned(prefix)) {
    const resourceId = resourceIdOf(prefix, owned.tag);
    const resource = findResource(app.ledger.read, resourceId);
    const known = resource && resource.endedAt === null && (resource.ref === null || resource.ref === owned.ref);
    const name = `${backend.name} ${owned.ref}`;
    if (known || now - owned.createdAt < pass.graceSeconds || pass.seen.has(name)) continue;
    pass.seen.add(name);
    const spared = pass.killsLeft <= 0 || reportOnlyOf(app.ledger.read) !== undefined;
    if (!spared) pass.killsLeft--;
    orphans.push({ ...owned, resourceId, destroyed: !spared && (await destroy(app, backend, owned)) });
  }
  return orphans;
}

/** One that cannot be destroyed hides no other: it is tried again in the next pass. */
async function destroy(app: LeaseApp, backend: Backend, { ref, tag }: Owned): Promise<boolean> {
  try {
    await backend.destroy(ref);
    app.events.orphan(backend.name, ref, tag);
    return true;
  } catch (error) {
    app.events.failed('sweep', error, { backend: backend.name, ref, tag });
    return false;
  }
}
