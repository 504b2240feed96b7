import type { Tenant } from '../ledger/tenant.ts';
import type { Reply } from './reply.ts';

const WINDOW_SECONDS = 60;
/** Seconds until an open circuit lets a first request try, and the maximum between two tries. */
const FIRST_WAIT_SECONDS = 5;
const WAIT_SECONDS_MAX = 60;
/** Members whose requests came back unanswered try this much later than others, whose requests may be better. */
const AFTER_OTHERS_SECONDS = 5;

/** A call of a route. */
export type Trial = {
  /** Makes the call. A reply without information about the server is marked as coming from a working server. */
  run(ask: () => Promise<Reply>): Promise<Reply>;
  /** Ends the trial without a call. */
  leave(): void;
};

/** Tenants for which a circuit opens together: a tree of wallets, the trees of an account, all accounts. */
type CircuitGroup = { name: string; has(it: Tenant): boolean; memberOf(it: Tenant): string; memberCountMin: 1 | 2 };

const treeOf = (it: Tenant) => it.treeId;
const accountOf = (it: Tenant) => it.accountId;
/** Returns the groups of a tenant. A failure that only one member of a group sees may be that member's own doing. */
const groupsOf = ({ treeId, accountId }: Tenant): CircuitGroup[] => [
  { name: treeId, has: (it) => it.treeId === treeId, memberOf: treeOf, memberCountMin: 1 },
  { name: accountId, has: (it) => it.accountId === accountId, memberOf: treeOf, memberCountMin: 2 },
  { name: 'all', has: () => true, memberOf: accountOf, memberCountMin: 2 },
];

type Open = {
  nextAt: number;
  waitSeconds: number;
  /** The members with a trial request in flight. */
  trying: Set<string>;
  /** The members whose requests came back unanswered. */
  failed: Set<string>;
};
/** The open circuits, by the name of their group. */
type OpenCircuits = Map<string, Open>;
type Sort = 'answered' | 'unanswered' | 'nothing';

/**
 * Creates the circuit of one route, closed. It opens with `countMax` unknown outcomes within a minute and no answer between
 * them: for a tree of wallets with its own, for an account with those of two trees, for all with those of two accounts. So
 * a server that has died costs each tenant a few holds, and no tenant can close a model for others. The first answer closes
 * it for all. A call that exceeds its time limit while others are answered does not count: its request took more than its
 * time allows.
 *
 * While it is open, one request tries at a time; if that takes longer than the wait, another may. `changed` is called when
 * it opens, with the name of the group, and when it closes.
 */
export function createCircuit(
  now: () => number,
  changed: (isOpen: boolean, whose?: string) => void,
  countMax: number,
): { begin(tenant: () => Tenant): Trial | number } {
  const open: OpenCircuits = new Map();
  let failures: { at: number; tenant: Tenant }[] = [];
  let answerCount = 0;

  function close(): void {
    answerCount++;
    if (failures.length) failures = [];
    if (!open.size) return;
    open.clear();
    changed(false);
  }

  /** Counts an unknown outcome, and opens the circuit of each group that it brings to the limit. */
  function fail(tenant: Tenant): void {
    const at = now();
    if (!open.has(tenant.treeId)) failures.push({ at, tenant }); // An open circuit has its count already.
    failures = failures.filter((it) => it.at > at - WINDOW_SECONDS || open.has(it.tenant.treeId));
    for (const { name, has, memberOf, memberCountMin } of groupsOf(tenant)) {
      if (open.has(name)) continue;
      const own = failures.filter((it) => has(it.tenant));
      const failed = new Set(own.map((it) => memberOf(it.tenant)));
      if (own.length < countMax || failed.size < memberCountMin) continue;
      open.set(name, { nextAt: at + FIRST_WAIT_SECONDS, waitSeconds: FIRST_WAIT_SECONDS, trying: new Set(), failed });
      changed(true, name);
    }
  }

  return {
    begin(tenant) {
      const seconds = open.size ? waitOf(open, tenant(), now()) : 0;
      if (seconds > 0) return seconds;
      const end = open.size ? startTrial(open, tenant(), now) : () => {};
      return {
        leave: () => end('nothing'),
        async run(ask) {
          const answersBefore = answerCount;
          let sort: Sort = 'unanswered';
          try {
            const reply = await ask();
            const isHisOwn = reply.kind === 'unknown' && reply.isLate && answerCount !== answersBefore;
            sort = isHisOwn ? 'nothing' : sortOf(reply);
            return isHisOwn ? { ...reply, isAlive: true } : reply;
          } finally {
            end(sort);
            if (sort === 'answered') close();
            else if (sort === 'unanswered') fail(tenant());
          }
        },
      };
    },
  };
}

/** Returns the seconds that a tenant has to wait; 0 if it may ask now. */
function waitOf(open: OpenCircuits, tenant: Tenant, now: number): number {
  let seconds = 0;
  for (const { name, memberOf, memberCountMin } of groupsOf(tenant)) {
    const it = open.get(name);
    const member = memberOf(tenant);
    if (!it) continue;
    if (it.trying.has(member)) return 1; // It may end at any moment.
    const isLater = memberCountMin > 1 && it.failed.has(member);
    seconds = Math.max(seconds, it.nextAt + (isLater ? AFTER_OTHERS_SECONDS : 0) - now);
  }
  return seconds;
}

/** Makes a tenant's call the trial in each of its groups whose circuit is open. Returns a function that records its result. */
function startTrial(open: OpenCircuits, tenant: Tenant, now: () => number): (sort: Sort) => void {
  const ends = groupsOf(tenant).flatMap(({ name, memberOf }) => {
    const it = open.get(name);
    const member = memberOf(tenant);
    if (!it) return [];
    const { waitSeconds } = it;
    it.trying.add(member);
    it.nextAt = now() + waitSeconds;
    it.waitSeconds = Math.min(2 * waitSeconds, WAIT_SECONDS_MAX);
    return (sort: Sort) => {
      it.trying.delete(member);
      if (sort === 'unanswered') {
        it.failed.add(member);
        it.nextAt = Math.max(it.nextAt, now() + it.waitSeconds);
      } else if (it.trying.size === 0) {
        it.nextAt = now();
        it.waitSeconds = waitSeconds;
      }
    };
  });
  return (sort) => {
    for (const end of ends) end(sort);
  };
}

function sortOf(reply: Reply): Sort {
  if (reply.kind === 'refused') return 'nothing'; // It costs nothing and does not predict the next outcome.
  if (reply.kind === 'cancelled') return 'nothing'; // It may have been about to answer.
  return reply.kind === 'unknown' && !reply.isAlive ? 'unanswered' : 'answered';
}
