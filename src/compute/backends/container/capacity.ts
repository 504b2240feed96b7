import { type Claim, fit, type Size } from './claim.ts';
import type { Capacity } from './engine.ts';
import type { ContainerSettings } from './settings.ts';

/** A create of unknown outcome may still make its container: it keeps its capacity for this long. */
const DOUBT_MILLISECONDS = 60_000;

/** Capacity counting both existing containers and those about to be made, so that two creates never share the last. */
export type Room = {
  /** Reserves capacity for the container `tag`, or says what is lacking. Throws when the engine cannot be asked. */
  take(tag: string, size: Size): Promise<Claim | { lacking: string }>;
  /** Ends a reservation: the engine lists the container now, or there is none. If in doubt it is kept for a minute. */
  leave(tag: string, doubt?: boolean): void;
  /** Returns a test whether a size fits now. Throws when the engine cannot be asked. */
  look(milliseconds: number): Promise<(size: Size) => boolean>;
};

/** The calls to the engine: the claims of its containers, of all installations, and the size of its machine. */
export type Engines = {
  list(milliseconds?: number): Promise<Claim[]>;
  capacity(milliseconds?: number): Promise<Capacity>;
};

export function createRoom(settings: ContainerSettings, prefix: string, engine: Engines): Room {
  const coming = new Map<string, Claim>();
  let last: Promise<unknown> = Promise.resolve();

  async function taken(milliseconds?: number): Promise<Claim[]> {
    // Read before the list, so that a container made meanwhile is in at least one of the two.
    const before = [...coming.values()];
    const there = await engine.list(milliseconds);
    return [...there, ...before.filter(({ tag }) => !there.some((it) => it.tag === tag))];
  }

  /** For all leases of provider_one together: the machine's capacity, unless the operator configured another. */
  const capacity = async (milliseconds?: number) =>
    'offers' in settings ? undefined : (settings.capacity ?? (await engine.capacity(milliseconds)));

  async function decide(tag: string, size: Size): Promise<Claim | { lacking: string }> {
    const others = (await taken()).filter((it) => it.tag !== tag);
    const found = fit(settings, prefix, others, size, await capacity());
    if ('lacking' in found) return found;
    const { cpus, memoryGib, offer } = size;
    const claim = { tag, cpus, memoryGib, offer, devices: found.devices };
    coming.set(tag, claim);
    return claim;
  }

  return {
    async look(milliseconds) {
      const [claims, whole] = await Promise.all([taken(milliseconds), capacity(milliseconds)]);
      return (size) => !('lacking' in fit(settings, prefix, claims, size, whole));
    },
    take(tag, size) {
      const mine = last.then(() => decide(tag, size));
      last = mine.catch(() => {});
      return mine;
    },
    leave(tag, doubt = false) {
      if (doubt) setTimeout(() => coming.delete(tag), DOUBT_MILLISECONDS).unref();
      else coming.delete(tag);
    },
  };
}
