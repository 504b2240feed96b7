import type { Tenant } from '../ledger/tenant.ts';

/** Seconds for which one who was refused goes before others, and a free place is kept for him: longer than he is told to wait. */
const TURN_SECONDS = 3;

/** The places of an upstream: as many calls as it may have at a time. */
export type Places = {
  /** Takes a place at a moment (Unix seconds). Returns what gives it back; undefined where none is free for this tenant. */
  take(tenant: Tenant, now: number): (() => void) | undefined;
};

/** A tree of wallets, or an account with its trees below it. */
type Member = {
  name: string;
  /** The places that it has. */
  taken: number;
  /** How often it was refused one without having come back; 0 again at `until`. */
  wanted: number;
  until: number;
  /** A free place is kept for it. Being refused again does not make that last longer. */
  isKept: boolean;
  /** When it began to wait, as a number in the order of all. */
  turn: number;
  below: Group;
};
type Group = { members: Map<string, Member>; waiting: Set<Member> };

const createGroup = (): Group => ({ members: new Map(), waiting: new Set() });

/**
 * Creates so many places, none of them taken. Whoever is alone may take all. A place that becomes free is kept for those who
 * were refused a moment ago: first for the account with the fewest places, in it for the tree with the fewest, among equals
 * for the one that waits longest. So nobody who has more than his share gets another while somebody waits.
 */
export function createPlaces(countMax: number): Places {
  const accounts = createGroup();
  let takenCount = 0;
  let turnCount = 0;

  function memberOf({ members }: Group, name: string): Member {
    const none = { name, taken: 0, wanted: 0, until: 0, isKept: false, turn: Number.POSITIVE_INFINITY };
    return members.get(name) ?? { ...none, below: createGroup() };
  }

  /** Returns how many places the others of a group get before one of them who has so many gets one more. */
  function countBefore(group: Group, own: Member, taken: number, now: number): number {
    let count = 0;
    for (const it of group.waiting) {
      if (it.until <= now) stopWaiting(group, it);
      if (it === own) continue;
      const before = Math.min(it.wanted, Math.max(0, taken - it.taken + (it.turn < own.turn ? 1 : 0)));
      if (before && takenCount < countMax) it.isKept = true;
      count += before;
    }
    return count;
  }

  function wait({ members, waiting }: Group, it: Member, now: number): void {
    members.set(it.name, it);
    waiting.add(it);
    if (!it.wanted++) it.turn = turnCount++;
    if (!it.isKept) it.until = now + TURN_SECONDS;
  }

  function stopWaiting(group: Group, it: Member): void {
    group.waiting.delete(it);
    it.wanted = 0;
    it.isKept = false;
    it.turn = Number.POSITIVE_INFINITY;
    forget(group, it);
  }

  /** Counts a place as taken. Where it is what the member waited for, the next one goes to others. */
  function add(group: Group, it: Member, isAwaited: boolean, now: number): void {
    group.members.set(it.name, it);
    it.taken++;
    if (!isAwaited || !it.wanted) return; // An account may have lost its turn before its tree has.
    it.wanted--;
    it.turn = turnCount++;
    it.isKept = false;
    it.until = now + TURN_SECONDS;
    if (!it.wanted) stopWaiting(group, it);
  }

  function forget({ members }: Group, it: Member): void {
    if (!it.taken && !it.wanted) members.delete(it.name);
  }

  return {
    take({ accountId, treeId }, now) {
      const account = memberOf(accounts, accountId);
      const tree = memberOf(account.below, treeId);
      const path = [
        { group: account.below, it: tree },
        { group: accounts, it: account },
      ];
      let before = 0;
      for (const { group, it } of path) before += countBefore(group, it, it.taken + before, now);
      if (countMax - takenCount <= before) {
        for (const { group, it } of path) wait(group, it, now);
        return undefined;
      }
      const isAwaited = tree.wanted > 0;
      for (const { group, it } of path) add(group, it, isAwaited, now);
      takenCount++;
      let isTaken = true;
      return () => {
        if (!isTaken) return;
        isTaken = false;
        takenCount--;
        for (const { group, it } of path) {
          it.taken--;
          forget(group, it);
        }
      };
    },
  };
}
