import type { Duplex } from 'node:stream';
import { contained } from '../base/fault.ts';
import { createLimit } from '../base/limits.ts';
import { containConnection } from '../net/contain.ts';
import { inTime } from '../net/deadline.ts';
import { type Line, type LineSession, openLine } from './line.ts';
import type { List } from './list.ts';
import { createLookUp, type Outside } from './outside.ts';
import { type Gate, type Secrets, serveConnection } from './proxy.ts';
import { createTally, type Reached, type Tally } from './tally.ts';

/** The ways out of all leases (docs/decisions/0081). */

const OPEN_MILLISECONDS = 20_000;
/** The pause before a way out that was lost is opened again, and the longest such pause. */
const RETRY_MILLISECONDS = { min: 1000, max: 60_000 };
/** A way out that lasted for this long is opened again after the shortest pause; a tenant could end it over and over. */
const LASTING_MILLISECONDS = 60_000;

/** Connections of a lease whose TLS is ended here, in a minute: each takes two handshakes, on the thread that serves everybody. */
const ENDED_PER_MINUTE = 300;

/** The parts of a server that the ways out call. */
type EgressNeeds = {
  outside: Outside;
  /**
   * Returns the lists of a lease that may be used now, the same array while they are the same; undefined otherwise. Called for each
   * piece that passes.
   */
  listsOf(id: string): readonly List[] | undefined;
  secretsOf(id: string): Omit<Secrets, 'enter'>;
  /** Returns whether the lease's machine is still to have a way out. */
  isLive(id: string): boolean;
  /** Returns whether the machine is paused: no program starts there, and none answers. */
  isPaused(id: string): boolean;
  /** Starts the program inside. Throws if the machine cannot be asked. */
  begin(id: string): Promise<LineSession>;
  /** Counts one connection's memory; throws if its wallet uses too much. Returns what releases it. */
  enter(id: string): () => void;
  passed(bytes: number): void;
  /** Called with the first refusal of each host of the tally, and the number of all. */
  refused(id: string, host: string, reason: string, isNews: boolean): void;
  /** Called when a way out was lost or could not be opened, and is tried again. */
  failed(id: string, error: unknown): void;
};

export type Egress = {
  /** Opens the way out of a lease, unless it is open, and keeps it open. Rejects if it is not open in time. */
  open(id: string): Promise<void>;
  /** Returns the hosts that a lease has reached since the server's start; undefined for a lease that never had a way out. */
  reached(id: string): Reached[] | undefined;
  /** Ends the connections of a lease that its lists no longer let pass. */
  recheck(id: string): void;
  /** Ends the ways out of leases that are over, and does the same as `recheck` for the others. */
  check(): void;
  close(): void;
};

type Way = {
  id: string;
  tally: Tally;
  /** The checks of its connections. */
  checks: Set<() => void>;
  line: Line | undefined;
  opening: Promise<void>;
  isWanted: boolean;
  /** The pause before it is opened again, and what ends one that is under way. */
  retryMilliseconds: number;
  endPause: () => void;
};

/** Creates what serves the connections of ways out, once their programs have started. */
function createServing(needs: EgressNeeds) {
  const world = { ...needs.outside, lookUp: createLookUp(needs.outside) };
  const endings = createLimit(ENDED_PER_MINUTE, () => performance.now());

  function tryEnter(id: string): (() => void) | undefined {
    try {
      return needs.enter(id);
    } catch {
      return undefined;
    }
  }

  function gateOf(way: Way, { hasSecrets = false }: LineSession): Gate {
    const { id, tally } = way;
    const secrets = needs.secretsOf(id);
    return {
      id,
      lists: () => (way.isWanted ? needs.listsOf(id) : undefined),
      watch(check) {
        way.checks.add(check);
        return () => void way.checks.delete(check);
      },
      passed(host, bytes) {
        tally.add(host, bytes);
        needs.passed(bytes);
      },
      refused: (host, reason) => needs.refused(id, host, reason, tally.refuse(host)),
      secrets: {
        ...secrets,
        replacements: (host, port) => (hasSecrets ? secrets.replacements(host, port) : []),
        enter: () => (endings.tryTake(id) ? tryEnter(id) : undefined),
      },
    };
  }

  return (way: Way, session: LineSession) => {
    const gate = gateOf(way, session);
    return contained('connection', async (stream: Duplex) => {
      containConnection(stream, 'connection');
      const leave = tryEnter(way.id);
      if (!leave) return stream.destroy();
      stream.once('close', leave);
      await serveConnection(stream, gate, world);
    });
  };
}

/** Waits before a way out is opened again, until somebody asks for it. */
async function pauseOf(way: Way): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>();
  const timer = setTimeout(resolve, way.retryMilliseconds).unref();
  way.endPause = resolve;
  await promise;
  clearTimeout(timer);
}

/** Creates what opens ways out, and opens those again that are lost while they are wanted. */
function createOpener(needs: EgressNeeds) {
  const serving = createServing(needs);

  async function openOnce(way: Way): Promise<void> {
    const { id } = way;
    const beginning = needs.begin(id);
    const session = await inTime(beginning, OPEN_MILLISECONDS, 'the start of the way out').catch((error) => {
      beginning.then(
        (late) => late.kill(),
        () => {},
      );
      throw error;
    });
    const line = openLine(session, serving(way, session));
    way.line = line;
    try {
      await inTime(line.ready, OPEN_MILLISECONDS, 'the start of the way out');
    } catch (error) {
      line.close();
      throw error;
    }
    if (!way.isWanted) line.close();
    const openedAt = performance.now();
    void line.ended.then((reason) => {
      if (way.line !== line || !way.isWanted) return;
      way.line = undefined;
      if (performance.now() - openedAt > LASTING_MILLISECONDS) way.retryMilliseconds = RETRY_MILLISECONDS.min;
      if (!needs.isPaused(id)) needs.failed(id, reason);
      way.opening = keepOpening(way);
    });
  }

  /** Opens a way out again, with longer and longer pauses. Never rejects. */
  async function keepOpening(way: Way): Promise<void> {
    while (way.isWanted) {
      await pauseOf(way);
      way.retryMilliseconds = Math.min(way.retryMilliseconds * 2, RETRY_MILLISECONDS.max);
      try {
        if (!way.isWanted || !needs.isLive(way.id)) return;
        if (needs.isPaused(way.id)) continue;
        await openOnce(way);
        return;
      } catch (error) {
        needs.failed(way.id, error);
      }
    }
  }

  /** Opens a way out for the first time. Rejects if that fails, and continues to try. */
  return (way: Way): Promise<void> => {
    way.opening = openOnce(way);
    return way.opening.catch((error) => {
      needs.failed(way.id, error);
      way.opening = keepOpening(way);
      throw error;
    });
  };
}

function end(way: Way): void {
  way.isWanted = false;
  way.line?.close();
  way.line = undefined;
}

export function createEgress(needs: EgressNeeds): Egress {
  const ways = new Map<string, Way>();
  const openFirst = createOpener(needs);
  let isClosed = false;

  function recheck(id: string): void {
    for (const check of ways.get(id)?.checks ?? []) check();
  }

  return {
    async open(id) {
      if (isClosed) throw new Error('the server is stopping');
      const known = ways.get(id);
      if (known?.isWanted) {
        known.retryMilliseconds = RETRY_MILLISECONDS.min;
        known.endPause();
        return inTime(known.opening, OPEN_MILLISECONDS, 'the start of the way out');
      }
      const way: Way = {
        id,
        tally: known?.tally ?? createTally(),
        checks: new Set(),
        line: undefined,
        opening: Promise.resolve(),
        isWanted: true,
        retryMilliseconds: RETRY_MILLISECONDS.min,
        endPause() {},
      };
      ways.set(id, way);
      await openFirst(way);
    },
    reached: (id) => ways.get(id)?.tally.list(),
    recheck,
    check() {
      for (const way of ways.values()) {
        recheck(way.id);
        if (needs.isLive(way.id)) continue;
        end(way);
        ways.delete(way.id);
      }
    },
    close() {
      isClosed = true;
      for (const way of ways.values()) end(way);
    },
  };
}
