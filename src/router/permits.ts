import type { Tenant } from '../ledger/tenant.ts';

/** Seconds for which a refused caller takes precedence and a free permit is kept for it: longer than its Retry-After. */
const TURN_SECONDS = 3;

/** The permits of an upstream: the calls that it may have at a time. */
export type Permits = {
  /**
   * Takes one of `countMax` permits at a moment (Unix seconds). Returns a function that gives it back; undefined if none is free
   * for this tenant. Those that are taken stay so, even if they are more: a reload may lower their number.
   */
  take(tenant: Tenant, now: number, countMax: number): (() => void) | undefined;
};

/** A tree of wallets, or an account with its trees below it. */
type Member = {
  name: string;
  /** The permits that it has. */
  taken: number;
  /** The number of its refused calls that have not come back; 0 again at `until`. */
  wanted: number;
  until: number;
  /** A free permit is kept for it. Further refusals do not extend this. */
  isKept: boolean;
  /** The position at which it began to wait, in the order of all. */
  turn: number;
  below: Group;
};
type Group = { members: Map<string, Member>; waiting: Set<Member> };

const createGroup = (): Group => ({ members: new Map(), waiting: new Set() });

/**
 * Creates permits, none of them taken. A single tenant may take all. A permit that becomes free is kept for tenants that
 * were refused a moment ago: first for the account with the fewest permits, in it for the tree with the fewest, among equals for
 * the longest wait. So no tenant with more than its share gets another permit while others wait.
 */
export function createPermits(): Permits {
  const accounts = createGroup();
  let takenCount = 0;
  let turnCount = 0;

  /**
   * Returns the number of permits that go to the others of a group before a member with `taken` permits gets one more. Where one
   * `isFree`, it is kept for them.
   */
  function countBefore(
    group: Group,
    own: Member,
    taken: number,
    { now, isFree }: { now: number; isFree: boolean },
  ): number {
    let count = 0;
    for (const it of group.waiting) {
      if (it.until <= now) stopWaiting(group, it);
      if (it === own) continue;
      const before = Math.min(it.wanted, Math.max(0, taken - it.taken + (it.turn < own.turn ? 1 : 0)));
      if (before && isFree) it.isKept = true;
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

  /** Counts a permit as taken. If the member was waiting for it, the next one goes to others. */
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

  return {
    take({ accountId, treeId }, now, countMax) {
      const account = memberOf(accounts, accountId);
      const tree = memberOf(account.below, treeId);
      const path = [
        { group: account.below, it: tree },
        { group: accounts, it: account },
      ];
      let before = 0;
      const moment = { now, isFree: takenCount < countMax };
      for (const { group, it } of path) before += countBefore(group, it, it.taken + before, moment);
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

/** Returns the member of a group; one that it does not have yet has no permits. */
function memberOf({ members }: Group, name: string): Member {
  const none = { name, taken: 0, wanted: 0, until: 0, isKept: false, turn: Number.POSITIVE_INFINITY };
  return members.get(name) ?? { ...none, below: createGroup() };
}

function stopWaiting(group: Group, it: Member): void {
  group.waiting.delete(it);
  it.wanted = 0;
  it.isKept = false;
  it.turn = Number.POSITIVE_INFINITY;
  forget(group, it);
}

/** Removes a member that has no permits and waits for none. */
function forget({ members }: Group, it: Member): void {
  if (!it.taken && !it.wanted) members.delete(it.name);
}
