/** The hosts that a lease reached, and those it was refused, since the server's start. */
export type Reached = { host: string; bytes: number; refused: number };

/** Places for hosts that were reached, and for hosts that were refused; each further one counts as `OTHER`. */
const HOST_COUNT_MAX = 64;
const OTHER = 'other';

export type Tally = {
  /** Counts bytes of an allowed host, either way. */
  add(host: string, bytes: number): void;
  /** Counts a refusal. Returns whether it is the first of its place. */
  refuse(host: string): boolean;
  list(): Reached[];
};

/** Creates a tally. Refused hosts, which anyone may invent, take no place of those that were reached. */
export function createTally(): Tally {
  const reached = new Map<string, number>();
  const refused = new Map<string, number>();
  function count(counts: Map<string, number>, host: string, amount: number): boolean {
    const place = counts.has(host) || counts.size < HOST_COUNT_MAX ? host : OTHER;
    const before = counts.get(place);
    counts.set(place, (before ?? 0) + amount);
    return before === undefined;
  }
  return {
    add: (host, bytes) => void count(reached, host, bytes),
    refuse: (host) => count(refused, host, 1),
    list() {
      const hosts = new Set([...reached.keys(), ...refused.keys()]);
      return [...hosts].map((host) => ({ host, bytes: reached.get(host) ?? 0, refused: refused.get(host) ?? 0 }));
    },
  };
}
