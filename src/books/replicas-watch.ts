import { hasFullCopy, type Replicas } from '../files/drbd.ts';
import type { Events } from '../telemetry/events.ts';

const LOOK_MILLISECONDS = 15_000;

/** Follows the copies of the disk under the books. It is for the eyes alone: nothing that is done rests on it. */
export type ReplicasWatch = {
  /** Returns what was found last; undefined before the first look, and where the disk is not known to replicate itself. */
  now(): Replicas | undefined;
  /** Looks at once, and then again and again. */
  start(): void;
  /** Looks once. Resolves when the result is known. */
  look(): Promise<void>;
  stop(): void;
};

/** Creates the watch. `read` never throws, and ends by itself. */
export function watchReplicas(
  read: () => Promise<Replicas | undefined>,
  events: Pick<Events, 'replicaMissing' | 'replicaBack'>,
): ReplicasWatch {
  let latest: Replicas | undefined;
  let wasFull = true;
  let looking: Promise<void> | undefined;
  let timer: NodeJS.Timeout | undefined;

  async function lookNow(): Promise<void> {
    latest = await read();
    if (!latest || latest.unknown !== null) return;
    const isFull = hasFullCopy(latest);
    if (isFull === wasFull) return;
    wasFull = isFull;
    if (isFull) events.replicaBack(latest);
    else events.replicaMissing(latest);
  }
  /** At most one look at a time: a program that hangs is not started over and over. */
  const look = () =>
    (looking ??= lookNow().finally(() => {
      looking = undefined;
    }));
  return {
    now: () => latest,
    look,
    start() {
      void look();
      timer = setInterval(look, LOOK_MILLISECONDS);
      timer.unref();
    },
    stop: () => clearInterval(timer),
  };
}
