import type { Ref, Snapshots, Taken } from '../backend.ts';
import { continueProcesses, type Signals, stopProcesses } from './pausing.ts';
import { AUTHORITY_FILE, ROOTS_FILE } from './trust.ts';
import { WATCHDOG_PATH } from './watchdog.ts';

/** Snapshots of machines whose first process is a watchdog: it runs on while all others stand still, so the deadline holds. */

/** The paths of the files that Purser puts into machines, all of them in `/`. */
export const OURS = [WATCHDOG_PATH, AUTHORITY_FILE, ROOTS_FILE];

export type NotTaken = Extract<Taken, { kind: 'refused' }>;
/** Returns the outcome of a take that left nothing. `words` are the provider's, for the operator. */
export const notTaken = (
  reason: string,
  words?: string,
  code: NotTaken['code'] = 'provider_unavailable',
): NotTaken => ({
  ...{ kind: 'refused', code, reason },
  ...(words === undefined ? {} : { words }),
});

/** The parts of snapshots that are alike on every engine. */
export type SnapshotParts = {
  signals: Signals;
  gibMax: Snapshots['gibMax'];
  /** Unix seconds. */
  now(): number;
};

/** Returns the size of a snapshot in bytes, as it is written at `where`. Throws where that is no size. */
export function sizeIn(text: string | undefined, where: string): number {
  const bytes = Number(text);
  if (Number.isSafeInteger(bytes) && bytes >= 0) return bytes;
  throw new Error(`${where} does not say how large its snapshot is`);
}

type TakeParts = {
  signals: Signals;
  /** Returns why no snapshot of a machine is taken; undefined if it may be. */
  whyNot(ref: Ref, bytesMax: number): Promise<NotTaken | undefined>;
  /** Copies the disk within `whileStopped`, and makes the snapshot of the copy. */
  keep(
    order: { ref: Ref; tag: string; bytesMax: number },
    whileStopped: <T>(copy: () => Promise<T>) => Promise<T>,
  ): Promise<Taken>;
  /** Removes what was made under a tag. */
  remove(tag: string): Promise<void>;
  /** Returns whether an error is an answer of the engine: then nothing is under way any more. */
  isAnswer(error: unknown): boolean;
  textOf(error: unknown): string;
  /** Returns the outcome for an answer whose meaning is known. */
  meaningOf?(error: unknown): NotTaken | undefined;
};

/** Creates the calls that take a snapshot, and that let run what a take has stopped. */
export function createTake(parts: TakeParts): Pick<Snapshots, 'take' | 'letRun'> {
  const { signals, whyNot, keep, remove, isAnswer, textOf, meaningOf } = parts;

  async function letRun(ref: Ref): Promise<void> {
    const continued = await continueProcesses(signals, ref);
    if (continued.kind !== 'done') throw new Error(continued.reason);
  }

  return {
    letRun,

    async take({ isRunning, ...order }) {
      const { ref, tag, bytesMax } = order;
      const why = await whyNot(ref, bytesMax).catch((error) => notTaken('The machine cannot be asked', textOf(error)));
      if (why) return why;
      try {
        return await keep(order, async (copy) => {
          let copied: Awaited<ReturnType<typeof copy>>;
          try {
            // Where not all of them stop, the disk is kept as a power cut would leave it.
            if (isRunning) await stopProcesses(signals, ref);
            copied = await copy();
          } catch (error) {
            if (isRunning && !isAnswer(error)) await letRun(ref).catch(() => {}); // It is tried again: the outcome is unknown.
            throw error;
          }
          // A tenant decides whether their processes continue: where that is not known, no unpaid snapshot is left behind.
          if (isRunning)
            await letRun(ref).catch(async (error) => {
              await remove(tag);
              throw error;
            });
          return copied;
        });
      } catch (error) {
        if (!isAnswer(error)) throw error;
        await remove(tag);
        // It may have been about the processes. While they may stand still the outcome is unknown, so that it is tried again.
        if (isRunning) await letRun(ref);
        return meaningOf?.(error) ?? notTaken('The provider refused the snapshot', textOf(error));
      }
    },
  };
}
