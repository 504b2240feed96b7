import { type Backend, type Owned, type Ref, resourceIdOf, tagPrefix } from '../compute/backend.ts';
import { reportOnlyOf } from '../ledger/installation.ts';
import { findResource } from '../ledger/resource.ts';
import type { LeaseApp } from './create.ts';

/** What was made a moment ago may not have its row's reference yet; it is spared. */
const GRACE_SECONDS = 300;
/** So many at most in one pass: a mistake of ours must not empty a cluster. */
const KILL_COUNT_MAX = 10;

export type Orphan = Owned & { destroyed: boolean };

/**
 * One look at all backends: two slots may have one engine behind them, and what the first has seen is its affair. With
 * `showStrangers` those are told of as well that the backend may not end.
 */
export type Pass = { showStrangers: boolean; seen: Set<string>; killsLeft: number; graceSeconds: number };
/** `report` looks only, and destroys nothing: so it also tells of what was made a moment ago, before a restore perhaps. */
export const newPass = ({ report = false, showStrangers = false } = {}): Pass => ({
  showStrangers,
  seen: new Set(),
  killsLeft: report ? 0 : KILL_COUNT_MAX,
  graceSeconds: report ? 0 : GRACE_SECONDS,
});

/**
 * Lists the backend by this installation's tag and destroys what no live row knows: older than a grace period, a few in
 * one pass, nothing when the list failed or is partial (design, section 7), and nothing while the installation only
 * reports. Strangers that the backend may end are treated alike.
 */
export async function sweep(app: LeaseApp, backend: Backend, now: number, pass: Pass): Promise<Orphan[]> {
  const prefix = tagPrefix(app.installationId);
  const { strangers } = backend;
  const owned = await backend.listOwned(prefix);
  const others = strangers && (pass.showStrangers || strangers.end) ? await strangers.list(prefix) : [];
  const orphans: Orphan[] = [];

  async function judge(it: Owned, end: ((ref: Ref) => Promise<void>) | undefined): Promise<void> {
    const name = `${backend.name} ${it.ref}`;
    if (now - it.createdAt < pass.graceSeconds || pass.seen.has(name)) return;
    pass.seen.add(name);
    const spared = !end || pass.killsLeft <= 0 || reportOnlyOf(app.ledger.read) !== undefined;
    if (!spared) pass.killsLeft--;
    orphans.push({ ...it, destroyed: !spared && (await destroy(app, backend, it, end)) });
  }

  for (const it of owned) {
    const resource = findResource(app.ledger.read, resourceIdOf(prefix, it.tag));
    const isKnown = resource && resource.endedAt === null && (resource.ref === null || resource.ref === it.ref);
    if (!isKnown) await judge(it, (ref) => backend.destroy(ref));
  }
  for (const it of others) await judge(it, strangers?.end);
  return orphans;
}

/** One that cannot be destroyed hides no other: it is tried again in the next pass. */
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
