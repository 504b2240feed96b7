import { createHash } from 'node:crypto';
import type { Bounded } from './bound.ts';
import type { Model, Route } from './catalogue.ts';
import type { Upstream } from './upstream.ts';

/** The conversations whose server is remembered: about 3 MB. Of more, those that were not continued for longest are forgotten. */
const CONVERSATION_COUNT_MAX = 16_384;
/** Seconds between two requests that try a server which is down. */
const TRIAL_SECONDS = 15;

/** The order in which the servers of a model's pool are asked. */
export type Balancer = {
  /**
   * Returns the routes of a request in the order in which they are asked: those of its pool, then the fallbacks. In a pool
   * the server of the conversation comes first while it is up, if the model is `sticky`; a conversation without one gets the
   * first of the others. These are in the order of their calls in flight. Those whose context is too short for the prompt
   * and its answer come after them, and those that are down last.
   */
  order(
    model: Model,
    bounded: Pick<Bounded, 'routes' | 'estimate' | 'choices' | 'maxUsage'>,
    upstreams: ReadonlyMap<string, Upstream>,
    conversation: string | undefined,
  ): readonly Route[];
};

/** Creates the balancer of all models. `now` returns Unix seconds, `isDown` whether an upstream was down at its last call. */
export function createBalancer(now: () => number, isDown: (upstream: string) => boolean): Balancer {
  /** The names of the servers, by model and conversation; the last that was continued is the last. */
  const servers = new Map<string, string>();
  const triedAt = new Map<string, number>();
  /** The servers in the order in which they were last asked first. */
  const turns = new Map<string, number>();
  let turnCount = 0;

  /** Returns whether a server is not to be asked: it is down, and another request has tried it a moment ago. */
  function isAvoided({ upstream }: Route): boolean {
    if (isDown(upstream)) return now() - (triedAt.get(upstream) ?? 0) < TRIAL_SECONDS;
    triedAt.delete(upstream);
    return false;
  }

  function remember(key: string, route: Route): void {
    servers.delete(key);
    servers.set(key, nameOf(route));
    if (servers.size > CONVERSATION_COUNT_MAX) servers.delete(servers.keys().next().value as string);
  }

  return {
    order(model, { routes, estimate, choices, maxUsage }, upstreams, conversation) {
      if (model.poolSize === 1) return routes;
      const equals = model.routes.slice(0, model.poolSize);
      const key = model.balance === 'sticky' && conversation ? `${model.id}\n${conversation}` : undefined;
      // A server refuses an output limit that does not fit beside the prompt, and nobody else is asked then.
      const isTooShort = (route: Route) =>
        route.contextLength < estimate + route.promptOverheadTokens + maxUsage(route).completionTokens / choices;
      const ranked = routes
        .filter((it) => equals.includes(it))
        .map((route) => ({
          route,
          rank: (isAvoided(route) ? 2 : 0) + (isTooShort(route) ? 1 : 0),
          calls: upstreams.get(route.upstream)?.callCount() ?? 0,
          // Among equals: the same one after a restart, or each in turn.
          tie: key === undefined ? (turns.get(nameOf(route)) ?? 0) : weightOf(key, route),
        }))
        .sort((a, b) => a.rank - b.rank || a.calls - b.calls || a.tie - b.tie);
      const known = key === undefined ? undefined : servers.get(key);
      const own = ranked.find(({ route, rank }) => nameOf(route) === known && rank === ranked[0]?.rank) ?? ranked[0];
      if (!own) return routes;
      if (key !== undefined) remember(key, own.route);
      turns.set(nameOf(own.route), ++turnCount);
      if (isDown(own.route.upstream)) triedAt.set(own.route.upstream, now());
      const others = ranked.filter((it) => it !== own).map((it) => it.route);
      return [own.route, ...others, ...routes.filter((it) => !equals.includes(it))];
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
