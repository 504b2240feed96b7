import { type Claim, fit, type Size } from './claim.ts';
import type { Capacity } from './engine.ts';
import type { ContainerSettings } from './settings.ts';

/** A create whose outcome nobody knows may still make its container: for so long it keeps what it took. */
const DOUBT_MILLISECONDS = 60_000;

/** What is about to be made beside what is there: two creates that race for the last one do not both get it. */
export type Room = {
  /** Takes room for a container that is to carry `tag`, or says what is lacking. Throws when the engine cannot be asked. */
  take(tag: string, size: Size): Promise<Claim | { lacking: string }>;
  /** The engine's list speaks for it now, or there is none; in doubt it is kept for a minute. */
  leave(tag: string, doubt?: boolean): void;
  /** Tells of a size whether there is room for it now. Throws when the engine cannot be asked. */
  look(milliseconds: number): Promise<(size: Size) => boolean>;
};

/** What a room asks the engine: what its containers claim, of all installations, and how large its machine is. */
export type Engines = {
  list(milliseconds?: number): Promise<Claim[]>;
  capacity(milliseconds?: number): Promise<Capacity>;
};

export function createRoom(settings: ContainerSettings, prefix: string, engine: Engines): Room {
  const coming = new Map<string, Claim>();
  let last: Promise<unknown> = Promise.resolve();

  async function taken(milliseconds?: number): Promise<Claim[]> {
    // Read before the list: what arrives on the engine meanwhile is in one of the two, or in both.
    const before = [...coming.values()];
    const there = await engine.list(milliseconds);
    return [...there, ...before.filter(({ tag }) => !there.some((it) => it.tag === tag))];
  }

  /** Of all leases of provider_one together: the machine's, unless the operator has said otherwise. */
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
