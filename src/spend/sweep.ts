import { type Backend, type Owned, resourceIdOf, tagPrefix } from '../compute/backend.ts';
import { findResource } from '../compute/resources.ts';
import type { LeaseApp } from './lease.ts';

/** What was made a moment ago may not have its row's reference yet; it is spared. */
const GRACE_SECONDS = 300;
/** So many at most in one pass: a mistake of ours must not empty a cluster. */
const KILL_COUNT_MAX = 10;

export type Orphan = Owned & { resourceId: string; destroyed: boolean };

/**
 * Lists the backend by this installation's tag and destroys what no live row knows: older than a grace period, a few in
 * one pass, nothing when the list failed or is partial (design, section 7). With `report` nothing is touched.
 */
export async function sweep(app: LeaseApp, backend: Backend, now: number, report = false): Promise<Orphan[]> {
  const prefix = tagPrefix(app.installationId);
  const orphans: Orphan[] = [];
  for (const owned of await backend.listOwned(prefix)) {
    const resourceId = resourceIdOf(prefix, owned.tag);
    const resource = findResource(app.ledger.read, resourceId);
    const known = resource && resource.endedAt === null && (resource.ref === null || resource.ref === owned.ref);
    if (known || now - owned.createdAt < GRACE_SECONDS) continue;
    const destroyed = !report && orphans.filter((it) => it.destroyed).length < KILL_COUNT_MAX;
    if (destroyed) {
      await backend.destroy(owned.ref);
      app.events.orphan(backend.name, owned.ref, owned.tag);
    }
    orphans.push({ ...owned, resourceId, destroyed });
  }
  return orphans;
}
