import type { Surroundings } from '../backend.ts';
import { type Capacity, type Claim, countFree, fit, GIB, type LeaseSize, type SoldSize } from './claim.ts';

/** A create of unknown outcome may still make its container: it keeps its capacity for this long. */
const DOUBT_MILLISECONDS = 60_000;

/** Capacity counting both existing containers and those about to be made, so that two creates never share the last. */
export type Reservations = {
  /** Reserves capacity for the container `tag`, or returns what is lacking. Throws when the engine cannot be asked. */
  reserve(tag: string, size: LeaseSize): Promise<Claim | { lacking: string }>;
  /**
   * Reserves the processors of a paused container, whose memory and disk it has, or returns what is lacking. Throws when the engine
   * cannot be asked.
   */
  takeRoom(tag: string): Promise<string | undefined>;
  /** Ends a reservation: the engine lists the container now, or there is none. If in doubt, the reservation is kept for a minute. */
  release(tag: string, doubt?: boolean): void;
  /** Returns how many more of a size fit now. Throws when the engine cannot be asked. */
  free(): Promise<(size: LeaseSize) => number>;
};

/** The calls to the engine: the claims of its containers, of all installations, and the size of its machine. */
type Engines = {
  list(): Promise<Claim[]>;
  capacity(): Promise<Capacity>;
  /** Returns the bytes that are free on its disk; undefined where that is not known. */
  diskFree?(): Promise<number | undefined>;
};

/** A claim as it counts: that of a paused container has no processors, but those that were sold. */
type Counted = Claim & { cpusSold?: number };

/** The reservations on an engine that its list may not show yet, by tag, and the end of the last that was begun. */
export type EngineRoom = { coming: Map<string, Counted>; last: Promise<unknown> };

const newRoom = (): EngineRoom => ({ coming: new Map(), last: Promise.resolve() });

/** Returns the reservations on the engine at an address, which backends of one server share: they sell the same room. */
export function roomAt(rooms: Surroundings['rooms'], address: string): EngineRoom {
  const room = rooms?.get(address) ?? newRoom();
  rooms?.set(address, room);
  return room;
}

export function createReservations(
  settings: SoldSize,
  { prefix, isPaused = () => false, isWarm = () => false }: Pick<Surroundings, 'prefix' | 'isPaused' | 'isWarm'>,
  engine: Engines,
  room: EngineRoom = newRoom(),
): Reservations {
  const { coming } = room;

  async function claims(): Promise<Counted[]> {
    // Read before the list, so that a container made in the meantime is in at least one of the two.
    const before = [...coming.values()];
    const listed = (await engine.list()).map((it) => {
      const reserved = before.find(({ tag }) => tag === it.tag);
      const isIdle = !reserved && it.tag.startsWith(prefix) && isPaused(it.tag);
      return reserved ?? (isIdle ? { ...it, cpus: 0, cpusSold: it.cpus } : it);
    });
    return [...listed, ...before.filter(({ tag }) => !listed.some((it) => it.tag === tag))];
  }

  /** Returns the capacity for all leases of provider_one together: the machine's, unless the operator configured another. */
  const capacity = async () => ('offers' in settings ? undefined : (settings.capacity ?? (await engine.capacity())));

  /** Returns whether what a lease may write is free on the disk now. What others may still write is not counted. */
  const fitsOn = (bytes: number | undefined, { diskGb }: LeaseSize) => bytes === undefined || bytes >= diskGb * GIB;

  async function decide(tag: string, size: LeaseSize): Promise<Claim | { lacking: string }> {
    const [all, bytes] = await Promise.all([claims(), engine.diskFree?.()]);
    const others = all.filter((it) => it.tag !== tag);
    const fitting = fit(settings, prefix, others, size, await capacity());
    if ('lacking' in fitting) return fitting;
    const { cpus, memoryGib, offer, diskGb } = size;
    if (!fitsOn(bytes, size)) return { lacking: `less than ${diskGb} GB of disk are free` };
    const claim = { tag, cpus, memoryGib, offer, devices: fitting.devices, diskGb };
    coming.set(tag, claim);
    return claim;
  }

  async function retake(tag: string): Promise<string | undefined> {
    const all = await claims();
    const own = all.find((it) => it.tag === tag);
    // Its machine is gone, which its lease finds out; or it has kept its offer's place, which the settings may no longer sell.
    if (!own || own.offer !== undefined || 'offers' in settings) return undefined;
    const sold = { ...own, cpus: own.cpusSold ?? own.cpus };
    const others = all.filter((it) => it !== own);
    const size = { ...sold, gpu: null, gpus: 0, diskGb: 0 };
    const fitting = fit(settings, prefix, others, size, await capacity());
    if ('lacking' in fitting) return fitting.lacking;
    coming.set(tag, sold);
    return undefined;
  }

  /** Runs after what was begun before, so that two never share the last. */
  function inTurn<T>(run: () => Promise<T>): Promise<T> {
    const mine = room.last.then(run);
    room.last = mine.catch(() => {});
    return mine;
  }

  return {
    async free() {
      const [existing, whole, bytes] = await Promise.all([claims(), capacity(), engine.diskFree?.()]);
      return (size) => {
        const staying = existing.filter(({ tag }) => !isWarm(tag));
        return fitsOn(bytes, size) ? countFree(settings, prefix, staying, size, whole) : 0;
      };
    },
    reserve: (tag, size) => inTurn(() => decide(tag, size)),
    takeRoom: (tag) => inTurn(() => retake(tag)),
    release(tag, doubt = false) {
      if (doubt) setTimeout(() => coming.delete(tag), DOUBT_MILLISECONDS).unref();
      else coming.delete(tag);
    },
  };
}
