import { createHash } from 'node:crypto';
import type { Tenant } from '../ledger/tenant.ts';
import type { Bounded } from './bound.ts';
import type { Model, Route } from './catalogue.ts';
import type { Upstream } from './upstream.ts';

/** The most conversations whose server is remembered, of a tree of wallets and of all: about 3 MB. */
const CONVERSATION_COUNT_MAX = { each: 1024, all: 16_384 };
/**
 * Seconds between two requests that try a server which is down. The account of the last one waits longer than others, whose
 * requests may be better.
 */
const TRIAL_SECONDS = { same: 15, other: 10 };
/** A conversation leaves its server for a request while that has this many more calls in flight than another one. */
const EXCESS_CALLS_MAX = 4;

/** The order in which the servers of a model's pool are asked. */
export type Balancer = {
  /**
   * Returns the routes of a request in the order in which they are asked: those of its pool, then the fallbacks. In a pool the
   * server of the conversation comes first while it is up and not much busier than others, if the model is `sticky`; a conversation
   * without one gets the first of the others, which are in the order of their calls in flight. Those whose context is too short for
   * the prompt and its answer come after them, and those that are down for this tenant last.
   */
  order(
    model: Model,
    bounded: Pick<Bounded, 'routes' | 'estimate' | 'choices' | 'maxUsage'>,
    upstreams: ReadonlyMap<string, Upstream>,
    conversation: string | undefined,
    tenant: Tenant,
  ): readonly Route[];
};

/** Creates the balancer of all models. `now` returns Unix seconds, `isDown` whether an upstream is down for an account. */
export function createBalancer(now: () => number, isDown: (upstream: string, accountId: string) => boolean): Balancer {
  const homes = createHomes();
  /** The last request that tried each server that was down. */
  const tries = new Map<string, { at: number; accountId: string }>();
  /** The servers in the order in which they were last asked first. */
  const turns = new Map<string, number>();
  let turnCount = 0;

  /** Returns whether a server is not to be asked: it is down, and another request has tried it a moment ago. */
  function isAvoided({ upstream }: Route, { accountId }: Tenant): boolean {
    const last = tries.get(upstream);
    if (!last || !isDown(upstream, accountId)) return false;
    return now() - last.at < TRIAL_SECONDS[last.accountId === accountId ? 'same' : 'other'];
  }

  return {
    order(model, { routes, estimate, choices, maxUsage }, upstreams, conversation, tenant) {
      if (model.poolSize === 1) return routes;
      const equals = model.routes.slice(0, model.poolSize);
      const key = model.balance === 'sticky' && conversation ? `${model.id}\n${conversation}` : undefined;
      // A server refuses an output limit that does not fit beside the prompt, and no other is asked then.
      const isTooShort = (route: Route) =>
        route.contextLength < estimate + route.promptOverheadTokens + maxUsage(route).completionTokens / choices;
      const ranked = routes
        .filter((it) => equals.includes(it))
        .map((route) => ({
          route,
          rank: (isAvoided(route, tenant) ? 2 : 0) + (isTooShort(route) ? 1 : 0),
          calls: upstreams.get(route.upstream)?.callCount() ?? 0,
          // Among equals: the same one after a restart, or each in turn.
          tie: key === undefined ? (turns.get(nameOf(route)) ?? 0) : weightOf(key, route),
        }))
        .sort((a, b) => a.rank - b.rank || a.calls - b.calls || a.tie - b.tie);
      const [least] = ranked;
      if (!least) return routes;
      const home = key === undefined ? undefined : homes.find(tenant, key);
      const own = ranked.find(({ route, rank }) => nameOf(route) === home && rank === least.rank);
      const isFull = own !== undefined && own.calls > least.calls + EXCESS_CALLS_MAX;
      const first = own && !isFull ? own : least;
      // One that is too busy for a moment stays the home: the prompt is cached there.
      if (key !== undefined && !isFull) homes.set(tenant, key, nameOf(first.route));
      turns.set(nameOf(first.route), ++turnCount);
      const { upstream } = first.route;
      if (isDown(upstream, tenant.accountId)) tries.set(upstream, { at: now(), accountId: tenant.accountId });
      const others = ranked.filter((it) => it !== first).map((it) => it.route);
      return [first.route, ...others, ...routes.filter((it) => !equals.includes(it))];
    },
  };
}

/** The servers of an account's conversations, by tree and conversation, and their number. Those continued last are last. */
type Conversations = { count: number; trees: Map<string, Map<string, string>> };

/**
 * Creates the memory of the server of each conversation. A tree of wallets that has too many forgets its own. With too many in all,
 * the account with the most forgets one: many wallets give no account a larger share.
 */
function createHomes() {
  const accounts = new Map<string, Conversations>();
  let count = 0;

  function forgetOldest(accountId: string, treeId: string): void {
    const account = accounts.get(accountId) as Conversations;
    const own = account.trees.get(treeId) as Map<string, string>;
    own.delete(own.keys().next().value as string);
    if (own.size === 0) account.trees.delete(treeId);
    account.count--;
    count--;
    if (account.count === 0) accounts.delete(accountId);
  }

  return {
    find: ({ accountId, treeId }: Tenant, key: string): string | undefined =>
      accounts.get(accountId)?.trees.get(treeId)?.get(key),
    set({ accountId, treeId }: Tenant, key: string, server: string): void {
      const account = accounts.get(accountId) ?? { count: 0, trees: new Map() };
      accounts.set(accountId, account);
      const own = account.trees.get(treeId) ?? new Map<string, string>();
      account.trees.delete(treeId);
      account.trees.set(treeId, own);
      if (!own.delete(key)) {
        account.count++;
        count++;
      }
      own.set(key, server);
      if (own.size > CONVERSATION_COUNT_MAX.each) forgetOldest(accountId, treeId);
      if (count <= CONVERSATION_COUNT_MAX.all) return;
      let largest: [string, Conversations] = [accountId, account];
      for (const it of accounts) if (it[1].count > largest[1].count) largest = it;
      forgetOldest(largest[0], largest[1].trees.keys().next().value as string);
    },
  };
}

const nameOf = ({ upstream, upstreamModel }: Route) => `${upstream}\n${upstreamModel}`;

/** Returns the weight of a server for a conversation (rendezvous hashing), by which one of several idle servers is chosen. */
const weightOf = (conversation: string, route: Route): number =>
  createHash('sha256')
    .update(`${conversation}\n${nameOf(route)}`)
    .digest()
    .readUInt32BE();
