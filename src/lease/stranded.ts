import type { Slots } from '../compute/slots.ts';
import type { Reader } from '../db/handle.ts';
import { allLiveResources, type Resource } from '../ledger/resource.ts';

/** Returns the part of the configuration that a live resource needs and that is missing, in words. */
function missedBy(resource: Resource, slots: Slots): string | undefined {
  const backend = slots.backendOf(resource);
  if (!backend) return `the backend ${resource.backend}`;
  return backend.misses?.(resource);
}

/**
 * Throws when a backend with live resources is missing from the configuration (design, section 7): no step could end them, and
 * another backend would count a lease that it does not find as gone. The message names the missing backends, their resources, and
 * the remedies. Makes no external calls.
 */
export function refuseStranded(read: Reader, slots: Slots): void {
  const missing = new Map<string, string[]>();
  for (const resource of allLiveResources(read)) {
    const what = missedBy(resource, slots);
    if (what === undefined) continue;
    const where = `compute.${resource.slot} no longer has ${what}`;
    missing.set(where, [...(missing.get(where) ?? []), resource.id]);
  }
  if (!missing.size) return;
  const lines = [...missing].map(([where, ids]) => `  ${where}, which these live leases need: ${ids.join(', ')}`);
  throw new Error(
    `The configuration lacks what live leases need, and nobody would end them:\n${lines.join('\n')}\n` +
      'Put it back until they have ended. If their machines are gone for good, abandon each: purser resource abandon ID --reason "…"',
  );
}
