import type { Clock } from '../base/clock.ts';
import { parseJson } from '../base/parse-json.ts';
import type { Ledger } from '../ledger/ledger.ts';
import { tellUpstream, upstreamSubject } from '../ledger/notices.ts';
import { latestEventOf } from '../ledger/outbox.ts';
import type { Reply } from './reply.ts';

/** Number of unanswered calls in a row after which an upstream counts as down: one failure may be due to the request. */
const FAILURE_COUNT_MIN = 3;
/** Stands for all accounts: no account has this id. */
const EVERYONE = 'everyone';

export type UpstreamOutages = {
  /**
   * Records the result of an account's call. Notifies receivers once when an upstream goes down, and once when it is up again.
   */
  report(upstream: string, reply: Reply, accountId: string): void;
  /** Loads the upstreams that were down before a restart, so that the metrics show them at once. */
  recall(upstreams: Iterable<string>): void;
  /**
   * Returns the start and the reason of an upstream's outage; undefined while it is up. `reachable`: whether it was
   * reachable just now.
   */
  outageOf(upstream: string, reachable: boolean): Outage | undefined;
  /**
   * Returns whether an upstream is down for the requests of an account. If it can be reached, and failed one account alone, the
   * cause may be that account's requests: for others the upstream is up.
   */
  isDown(upstream: string, accountId: string): boolean;
  /** Forgets an upstream that is no longer configured. */
  forget(upstream: string): void;
};

/** `since` is in Unix seconds; `reason` is null for an upstream that has not been called since it became unreachable. */
type Outage = { since: number; reason: string | null };

type OutagesApp = {
  ledger: Ledger;
  clock: Clock;
  /** Called for each change, and for every answer. */
  events: {
    failed(where: string, error: unknown): void;
    upstreamUp(upstream: string): void;
    upstreamDown(upstream: string, reason: string): void;
    upstreamBack(upstream: string): void;
    upstreamRemoved(upstream: string): void;
  };
};

/**
 * Creates the record of the upstreams that are down: at once if one cannot be reached or refuses this gateway's key or address, or
 * after three unanswered calls in a row; up with the next answer. The outbox holds the events sent before a restart.
 */
export function createUpstreamOutages(app: OutagesApp): UpstreamOutages {
  type State = {
    down: Outage | undefined;
    failureCount: number;
    /** The accounts whose calls failed since its last answer, at most two; `everyone` if it could not be reached. */
    failed: Set<string>;
    unreachableSince?: number | undefined;
  };
  const states = new Map<string, State>();

  function stateOf(upstream: string) {
    let state = states.get(upstream);
    if (!state) {
      const told = latestEventOf(app.ledger.read, upstreamSubject(upstream));
      const down =
        told?.type === 'upstream.down'
          ? { since: told.createdAt, reason: (parseJson(told.data) as { reason: string }).reason }
          : undefined;
      state = { down, failureCount: 0, failed: new Set(down ? [EVERYONE] : []) };
      states.set(upstream, state);
    }
    return state;
  }

  return {
    report(upstream, reply, accountId) {
      const health = healthOf(reply);
      if (!health) return;
      const state = stateOf(upstream);
      state.failureCount = health.isUp ? 0 : state.failureCount + 1;
      if (health.isUp) state.failed.clear();
      else if (health.isUnreachable) state.failed.add(EVERYONE);
      else if (state.failed.size < 2) state.failed.add(accountId);
      const wasDown = state.down !== undefined;
      const isDown = !health.isUp && (wasDown || health.isCertain || state.failureCount >= FAILURE_COUNT_MIN);
      if (health.isUp && !wasDown) app.events.upstreamUp(upstream);
      if (isDown === wasDown || (!isDown && !health.isUp)) return;
      const now = app.clock.now();
      const down = health.isUp ? undefined : { reason: health.reason };
      state.down = down && { since: now, ...down };
      if (down) app.events.upstreamDown(upstream, down.reason);
      else app.events.upstreamBack(upstream);
      app.ledger
        .write(tellUpstream, { name: upstream, down, now })
        .catch((error) => app.events.failed('upstream_event', error));
    },

    recall(upstreams) {
      for (const upstream of upstreams)
        if (stateOf(upstream).down) app.events.upstreamDown(upstream, 'It was down when the last process ended.');
    },

    outageOf(upstream, reachable) {
      const state = stateOf(upstream);
      state.unreachableSince = reachable ? undefined : (state.unreachableSince ?? app.clock.now());
      if (state.down) return state.down;
      return state.unreachableSince === undefined ? undefined : { since: state.unreachableSince, reason: null };
    },

    isDown(upstream, accountId) {
      const { down, failed } = stateOf(upstream);
      return down !== undefined && (failed.size > 1 || failed.has(EVERYONE) || failed.has(accountId));
    },

    forget(upstream) {
      states.delete(upstream);
      app.events.upstreamRemoved(upstream);
    },
  };
}

type Health =
  | { isUp: true }
  /** `isCertain`: one such reply is enough. `isUnreachable`: no request can have caused it; a 403 may be about a prompt. */
  | { isUp: false; isCertain: boolean; isUnreachable: boolean; reason: string };

/** Returns a server's health judged by a reply; undefined if the reply does not show it. */
function healthOf(reply: Reply): Health | undefined {
  if (reply.kind === 'unknown' && !reply.isAlive)
    return { isUp: false, isCertain: false, isUnreachable: false, reason: reply.reason };
  if (reply.kind === 'cancelled') return undefined;
  if (reply.kind !== 'refused') return { isUp: true };
  if (reply.code === 'rate_limited') return undefined; // A limit on the way to the server may be the cause.
  if (reply.code !== 'gateway_unavailable') return { isUp: true }; // It refused the request, so it works.
  const { fault, isUnreachable = false, reason } = reply;
  return { isUp: false, isCertain: fault !== undefined || isUnreachable, isUnreachable, reason: fault ?? reason };
}
