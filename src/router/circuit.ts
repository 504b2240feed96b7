import type { Tenant } from '../ledger/tenant.ts';
import type { Route } from './catalogue.ts';
import type { Refused, Reply } from './reply.ts';
import { createCircuit, type Trial } from './route-circuit.ts';
import type { Upstream } from './upstream.ts';

/** Number of unknown outcomes of a route within a minute, with no answer between them, that open its circuit. */
const UNKNOWN_COUNT_MAX = 3;
const BUSY_RETRY_SECONDS = 1;

/**
 * The circuits of all models at their upstreams, shared by the routes to them. An unknown outcome costs its caller a hold: after
 * several, a route is not asked for a while, and then by one request at a time.
 */
export type Circuits = {
  /**
   * Admits a caller to one of these routes before anything is held for it: a route whose circuit is closed to the caller,
   * and whose upstream has a free permit, which is taken. Refuses if there is none.
   */
  enter(routes: readonly Route[], tenant: () => Tenant, upstreams: ReadonlyMap<string, Upstream>): Pass | Refused;
};

/** The permission of a caller to ask. */
export type Pass = {
  /**
   * Asks by the route, or refuses if its circuit is open or its upstream has no free permit. `ask` gets a function to call
   * when the call is over: a stream continues after its reply.
   */
  ask(route: Route, ask: (onEnd: () => void) => Promise<Reply>): Promise<Reply>;
  /** Ends it: another caller may try if this one would have been the trial, and its permits are given back. */
  leave(): void;
};

/** Returns whether a caller may ask. */
export const isPass = (it: Pass | Refused): it is Pass => 'ask' in it;

type Begun = { trial: Trial; leave: () => void };

/**
 * Creates the circuits, all closed. `now` returns Unix seconds; `changed` is called when a circuit opens or closes, with
 * the group concerned (see `createCircuit`). A circuit opens after `countMax` unknown outcomes.
 */
export function createCircuits(
  now: () => number,
  changed: (route: Route, isOpen: boolean, whose?: string) => void,
  countMax = UNKNOWN_COUNT_MAX,
): Circuits {
  /** By the name of the model there. A reload replaces routes, but keeps unchanged upstreams. */
  const circuits = new WeakMap<Upstream, Map<string, ReturnType<typeof createCircuit>>>();
  const circuitOf = (upstream: Upstream, route: Route) => {
    let own = circuits.get(upstream);
    if (!own) {
      own = new Map();
      circuits.set(upstream, own);
    }
    let circuit = own.get(route.upstreamModel);
    if (!circuit) {
      circuit = createCircuit(now, (isOpen, whose) => changed(route, isOpen, whose), countMax);
      own.set(route.upstreamModel, circuit);
    }
    return circuit;
  };

  return {
    enter(routes, tenant, upstreams) {
      const begin = (route: Route): Begun | WaitingRefusal => {
        const upstream = upstreams.get(route.upstream) as Upstream;
        const trial = circuitOf(upstream, route).begin(tenant);
        if (typeof trial === 'number') return circuitOpen(trial);
        const leave = upstream.enter(tenant, now());
        if (leave) return { trial, leave };
        trial.leave();
        return BUSY;
      };
      const refused = new Map<Route, WaitingRefusal>();
      for (const route of routes) {
        const begun = begin(route);
        if ('trial' in begun) return passFor(route, begun, refused, begin);
        refused.set(route, begun);
      }
      return [...refused.values()].reduce((a, b) => (b.retryAfterSeconds < a.retryAfterSeconds ? b : a));
    },
  };
}

/** Creates the pass of a caller who entered by a route, after those before it refused. */
function passFor(
  entered: Route,
  first: Begun,
  refused: ReadonlyMap<Route, Refused>,
  begin: (route: Route) => Begun | Refused,
): Pass {
  let unused: Begun | undefined = first;
  const taken = [first.leave];
  return {
    async ask(route, ask) {
      const before = refused.get(route);
      if (before) return before;
      const begun = (route === entered && unused) || begin(route);
      if (!('trial' in begun)) return begun;
      if (begun === unused) unused = undefined;
      else taken.push(begun.leave);
      return begun.trial.run(() => ask(begun.leave));
    },
    leave() {
      unused?.trial.leave();
      unused = undefined;
      for (const leave of taken) leave();
    },
  };
}

type WaitingRefusal = Refused & { retryAfterSeconds: number };

const BUSY: WaitingRefusal = {
  kind: 'refused',
  code: 'rate_limited',
  reason: `The model server has all the requests in flight that it may have, or keeps its free places for others who were refused before. Nothing was charged. Retry in ${BUSY_RETRY_SECONDS} s: who has fewest goes first.`,
  retryAfterSeconds: BUSY_RETRY_SECONDS,
  elsewhere: true,
};

function circuitOpen(seconds: number): WaitingRefusal {
  return {
    kind: 'refused',
    code: 'gateway_unavailable',
    reason: `The model server has left several requests without a known outcome, so it is not asked for ${seconds} s (circuit_open). Nothing was charged.`,
    retryAfterSeconds: seconds,
    elsewhere: true,
  };
}
