import type { Backend, Created } from '../../backend.ts';
import { offersOf, quoteOf } from '../../kit/priced.ts';
import { createGuest } from '../../machine/guest.ts';
import { createLeases } from './lease.ts';
import { beginIn } from './process.ts';
import type { LocalSettings } from './settings.ts';

/** Shorter than elsewhere: no connection can delay the end of a command. */
const GRACE_MILLISECONDS = 10_000;

/**
 * Plain processes of this user on this machine, for `purser demo` alone: a directory and a keeper per lease. Leases are not
 * isolated from each other, nor from Purser. All of them end with Purser.
 */
export function openLocalBackend(
  settings: LocalSettings,
  { leases: root, now }: { leases: string; now: () => number },
): Backend {
  const leases = createLeases(root);

  async function create({ tag, deadline }: { tag: string; deadline: number }): Promise<Created> {
    if (leases.inspect(tag)) return { kind: 'created', ref: tag }; // An earlier attempt of ours has made it.
    try {
      leases.make(tag, now(), deadline);
      await leases.keep(tag);
      return { kind: 'created', ref: tag };
    } catch (error) {
      const { message: reason } = error as Error;
      await leases.end(tag).catch(() => {});
      if (leases.inspect(tag)) return { kind: 'unknown', reason };
      return {
        kind: 'refused',
        code: 'provider_unavailable',
        reason: 'The lease could not be made. Nothing was charged.',
        words: reason,
      };
    }
  }

  return {
    name: 'local',
    absence: { lists: 1, apartSeconds: 1 },
    offers: async () => offersOf(settings, 'process on this machine'),
    quote: async (spec) => quoteOf(settings, spec),
    create,
    find: async (tag) => [leases.inspect(tag) ?? []].flat(),
    inspect: async (ref) => leases.inspect(ref),
    async extend(ref, deadline) {
      if (leases.inspect(ref)?.state !== 'running') return { kind: 'refused', reason: 'the lease has ended' };
      leases.setDeadline(ref, deadline);
      // Its keeper may have read the old one a moment ago.
      if (leases.inspect(ref)?.state !== 'running') return { kind: 'refused', reason: 'the lease ended first' };
      return { kind: 'done' };
    },
    destroy: leases.end,
    listOwned: async (prefix) =>
      leases
        .list()
        .filter((tag) => tag.startsWith(prefix))
        .flatMap((tag) => {
          const machine = leases.inspect(tag);
          return machine ? [{ ...machine, tag, createdAt: leases.createdAt(tag) }] : [];
        }),
    guest: createGuest(async (ref, order) => beginIn(leases.enter(ref), order), {
      graceMilliseconds: GRACE_MILLISECONDS,
      pause: 'the demonstration cannot pause',
      snapshots: 'the demonstration keeps no disk',
    }),
    doctor: { check: async () => [], trial: 'free' }, // It needs nothing of the machine.
    async close() {
      await Promise.all(leases.list().map((tag) => leases.end(tag)));
    },
  };
}
