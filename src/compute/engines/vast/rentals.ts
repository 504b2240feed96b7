import type { VastInstance } from './instances.ts';
import { createVastRecords } from './records.ts';

/** The state of a rented machine in this process. The file of its record outlives the process; the rest can be asked for again. */
type Rental = {
  /** The latest known state, for its address and its contract's end. */
  instance?: VastInstance | undefined;
  /** The SSH server of the machine has accepted our key. */
  isReached: boolean;
  /** The time of `performance.now()` at which a key was last sent to it. */
  keySentAt: number;
  /** Unix seconds at which it was first seen, if Vast has no start date of it. */
  firstSeenAt?: number;
  /** The tag of a destroyed machine, or an empty text: its absence is still to be confirmed. */
  destroyedTag?: string;
};

/** Keeps one rental per machine, with its record. */
export function createRentals(leases: string) {
  const records = createVastRecords(leases);
  const rentals = new Map<string, Rental>();
  const fresh = (): Rental => ({ isReached: false, keySentAt: Number.NEGATIVE_INFINITY });

  /** Returns the rental of a machine, a new one if it is not known. */
  function of(ref: string): Rental {
    const known = rentals.get(ref) ?? fresh();
    rentals.set(ref, known);
    return known;
  }

  return {
    of,
    record: records.read,
    keep: records.keep,
    change: records.change,

    /** Keeps what Vast has shown of a machine. */
    see(instance: VastInstance): VastInstance {
      of(instance.ref).instance = instance;
      if (records.read(instance.ref)?.seen === false) records.change(instance.ref, { seen: true });
      return instance;
    },

    /** Returns the time at which a machine without a start date was first seen. */
    firstSeenAt(ref: string, now: number): number {
      const rental = of(ref);
      rental.firstSeenAt ??= now;
      return rental.firstSeenAt;
    },

    /** Returns the tag of a machine, also of one that was destroyed; undefined if it is not known. */
    tagOf: (ref: string): string | undefined => records.read(ref)?.tag || rentals.get(ref)?.destroyedTag || undefined,

    /** Forgets a machine that Vast has destroyed, but for its tag, until its absence is confirmed. */
    forget(ref: string): void {
      const { destroyedTag } = of(ref);
      records.remove(ref);
      rentals.delete(ref);
      if (destroyedTag !== undefined) of(ref).destroyedTag = destroyedTag;
    },

    /** Forgets a machine whose absence is confirmed. */
    drop(ref: string): void {
      records.remove(ref);
      rentals.delete(ref);
    },
  };
}
export type Rentals = ReturnType<typeof createRentals>;
