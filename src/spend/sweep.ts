import { type Backend, type Owned, resourceIdOf, tagPrefix } from '../compute/backend.ts';
import { findResource } from '../compute/resources.ts';
import { reportOnlyOf } from '../ledger/installation.ts';
import type { LeaseApp } from './lease.ts';

/** What was made a moment ago may not have its row's reference yet; it is spared. */
const GRACE_SECONDS = 300;
/** So many at most in one pass: a mistake of ours must not empty a cluster. */
const KILL_COUNT_MAX = 10;

export type Orphan = Owned & { resourceId: string; destroyed: boolean };

/**
 * Lists the backend by this installation's tag and destroys what no live row knows: older than a grace period, a few in
 * one pass, nothing when the list failed or is partial (design, section 7). With `report`, and while the installation
 * only reports, nothing is touched. Two slots may have one engine behind them: what is in `seen` is the other's affair.
 */
export async function sweep(
  app: LeaseApp,
  backend: Backend,
  now: number,
  { report = false, seen = new Set<string>() } = {},
): Promise<Orphan[]> {
  const prefix = tagPrefix(app.installationId);
  const orphans: Orphan[] = [];
  let tried = 0;
  for (const owned of await backend.listOwned(prefix)) {
    const resourceId = resourceIdOf(prefix, owned.tag);
    const resource = findResource(app.ledger.read, resourceId);
    const known = resource && resource.endedAt === null && (resource.ref === null || resource.ref === owned.ref);
    const name = `${backend.name} ${owned.ref}`;
    if (known || now - owned.createdAt < GRACE_SECONDS || seen.has(name)) continue;
    seen.add(name);
    const spared = report || reportOnlyOf(app.ledger.read) !== undefined || tried >= KILL_COUNT_MAX;
    if (!spared) tried++;
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
