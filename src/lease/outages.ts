/** The interval at which one lease of a failing backend is tried, so that its return is noticed; the others back off. */
const PROBE_SECONDS = 10;
/** Shortest time between two wake-ups, and from the first failure to the first wake-up: before that the back-off is short anyway. */
const WAKE_APART_SECONDS = 10;
/** A failure that lasts is logged again after this long. */
const LOG_APART_SECONDS = 600;

/**
 * The failing backends that this process knows of. A `unit` is a backend, or the part of it that fails by itself (see
 * `Backend.partOf`). Times are Unix seconds.
 */
export type Outages = {
  /**
   * Records a failed step of a lease that would be retried after `delay` seconds. Returns the delay to use, and whether to log the
   * failure: a unit's first, then one every ten minutes or when twice as many leases fail.
   */
  failed(unit: string, id: string, delay: number, now: number): { delay: number; isNews: boolean };
  /**
   * Records that the backend answered for a lease. Returns whether backed-off leases of that unit are to be woken, and the units
   * where no lease fails any more, with the length of their failure. A lease that failed before its part was known counts for the
   * whole backend.
   */
  answered(unit: string, id: string, now: number): { wake: boolean; recovered: { unit: string; seconds: number }[] };
  /** Returns where leases fail, since when, and how many; with `at`, only there and at its parts. */
  list(at?: string): { unit: string; since: number; leases: number }[];
  /** Forgets a lease that has ended. */
  forget(id: string): void;
};

type BackendOutage = { failing: Set<string>; since: number; loggedAt: number; loggedCount: number; probeAt: number };

export function createOutages(): Outages {
  const outages = new Map<string, BackendOutage>();
  /** The time at which leases of a unit were last woken. A missing unit has not answered since the start. */
  const wokenAt = new Map<string, number>();

  /** Removes a lease from all units. Returns the outages that this ends. */
  function forget(id: string): [unit: string, outage: BackendOutage][] {
    const recovered = [...outages].filter(([, { failing }]) => failing.delete(id) && !failing.size);
    for (const [unit] of recovered) outages.delete(unit);
    return recovered;
  }

  return {
    failed(unit, id, delay, now) {
      let it = outages.get(unit);
      if (!it) {
        it = { failing: new Set(), since: now, loggedAt: Number.NEGATIVE_INFINITY, loggedCount: 0, probeAt: 0 };
        outages.set(unit, it);
      }
      it.failing.add(id);
      const isNews = now - it.loggedAt >= LOG_APART_SECONDS || it.failing.size >= 2 * it.loggedCount;
      if (isNews) Object.assign(it, { loggedAt: now, loggedCount: it.failing.size });
      if (it.probeAt > now) return { delay, isNews };
      it.probeAt = now + Math.min(delay, PROBE_SECONDS);
      return { delay: it.probeAt - now, isNews };
    },

    answered(unit, id, now) {
      const it = outages.get(unit);
      const recovered = forget(id).map(([unit, { since }]) => ({ unit, seconds: now - since }));
      const last = wokenAt.get(unit);
      const isLong =
        it !== undefined && it.failing.size > 0 && now - Math.max(it.since, last ?? 0) >= WAKE_APART_SECONDS;
      const wake = last === undefined || isLong;
      if (wake) wokenAt.set(unit, now);
      return { wake, recovered };
    },

    list: (at) =>
      [...outages]
        .filter(([unit]) => at === undefined || unit === at || unit.startsWith(`${at} `))
        .map(([unit, { since, failing }]) => ({ unit, since, leases: failing.size })),

    forget,
  };
}
