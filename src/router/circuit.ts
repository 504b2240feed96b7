import type { Route } from './catalogue.ts';
import type { Refused, Reply } from './upstream.ts';

/** Unknown outcomes of a route within `WINDOW_SECONDS`, with no answer between them, that open its circuit. */
const UNKNOWN_COUNT_MAX = 3;
const WINDOW_SECONDS = 60;
/** Seconds until an open circuit lets a first request try, and the most between two that try. */
const FIRST_WAIT_SECONDS = 5;
const WAIT_SECONDS_MAX = 60;

/**
 * The circuits of all routes. An outcome that is not known costs its caller a hold, so a route with several of them is not
 * asked for a while. Then one request at a time tries whether it answers again.
 */
export type Circuits = {
  /** Asks by the route, or refuses where its circuit is open. */
  ask(route: Route, ask: () => Promise<Reply>): Promise<Reply>;
};

type Circuit = {
  /** When outcomes were unknown, Unix seconds. */
  unknownAt: number[];
  open: { nextAt: number; waitSeconds: number; isTried: boolean } | undefined;
};

/**
 * Creates the circuits, all closed. `now` returns Unix seconds; `changed` is told when one opens or closes. One opens after
 * `countMax` unknown outcomes.
 */
export function createCircuits(
  now: () => number,
  changed: (route: Route, isOpen: boolean) => void,
  countMax = UNKNOWN_COUNT_MAX,
): Circuits {
  const circuits = new WeakMap<Route, Circuit>();

  function circuitOf(route: Route): Circuit {
    const found = circuits.get(route) ?? { unknownAt: [], open: undefined };
    circuits.set(route, found);
    return found;
  }

  function note(route: Route, circuit: Circuit, kind: Reply['kind'], isTrial: boolean): void {
    if (kind === 'refused') return; // Costs nothing, and says nothing of the next outcome.
    if (kind !== 'unknown') {
      circuit.unknownAt = [];
      if (circuit.open) changed(route, false);
      circuit.open = undefined;
      return;
    }
    const at = now();
    if (circuit.open) {
      if (!isTrial) return; // It was asked before the circuit opened.
      circuit.open.waitSeconds = Math.min(2 * circuit.open.waitSeconds, WAIT_SECONDS_MAX);
      circuit.open.nextAt = at + circuit.open.waitSeconds;
      return;
    }
    circuit.unknownAt = [...circuit.unknownAt, at].filter((it) => it > at - WINDOW_SECONDS);
    if (circuit.unknownAt.length < countMax) return;
    circuit.open = { nextAt: at + FIRST_WAIT_SECONDS, waitSeconds: FIRST_WAIT_SECONDS, isTried: false };
    changed(route, true);
  }

  return {
    async ask(route, ask) {
      const circuit = circuitOf(route);
      const { open } = circuit;
      const waitSeconds = open ? open.nextAt - now() : 0;
      if (open && (waitSeconds > 0 || open.isTried)) return circuitOpen(Math.max(waitSeconds, 1));
      if (open) open.isTried = true;
      let kind: Reply['kind'] = 'unknown';
      try {
        const reply = await ask();
        kind = reply.kind === 'unknown' && reply.isAlive ? 'answered' : reply.kind; // The server is there, and answers.
        return reply;
      } finally {
        if (open) open.isTried = false;
        note(route, circuit, kind, open !== undefined && open === circuit.open);
      }
    },
  };
}

function circuitOpen(seconds: number): Refused {
  return {
    kind: 'refused',
    code: 'gateway_unavailable',
    reason: `The model server has left several requests without a known outcome, so it is not asked for ${seconds} s (circuit_open). Nothing was charged.`,
    retryAfterSeconds: seconds,
    elsewhere: true,
  };
}
