import { setTimeout as sleep } from 'node:timers/promises';
import { assetBytes } from '../../files/asset.ts';
import type { Extended, Ref } from '../backend.ts';
import { onOneLine } from './one-line.ts';

/**
 * The watchdog (watchdog/watchdog.c) is the first process of every container: a static program that is put into the
 * container before it starts, holds the deadline in memory and exits when it has passed
 * (docs/decisions/0020-deadline-inside-the-machine.md).
 */

/** The program's path inside. A tenant who is root there may remove it; the running process is not affected. */
export const WATCHDOG_PATH = '/.purser-watchdog';

/** The program that runs as process 1, even if its file was removed. Under gVisor no engine can start it. */
export const RUNNING_WATCHDOG = '/proc/1/exe';
/**
 * The name of the copy that a watchdog puts into its directory, if it has one: a directory of its user alone, which also holds its
 * deadline. The copy gets that directory as well, after all other arguments.
 */
export const COPIED_WATCHDOG = 'watchdog';
export const MOVE_MILLISECONDS = 15_000;
/** The exit code of a watchdog that does not know the argument. */
export const UNKNOWN_ARGUMENT = 64;
const START_TRIES = 10;
const START_PAUSE_MILLISECONDS = 300;
/** Returns whether a watchdog with this exit code ended its machine for what was written beside its disk (watchdog/mounts.h). */
export const wroteBesideDisk = (exitCode: number | undefined) => exitCode === 153;
/** Describes why such a machine ended. */
export const WROTE_BESIDE_DISK = 'it wrote more than 16 MiB to files that the engine mounts into it beside its disk';

const ARCHITECTURES = ['amd64', 'arm64'];
export const hasWatchdog = (architecture: string) => ARCHITECTURES.includes(architecture);
export const watchdogFor = (architecture: string) => assetBytes(`src/compute/kit/watchdog/watchdog-${architecture}`);

/**
 * Runs the watchdog's program beside process 1, and again where it was not started, or not yet. An engine may fail to start a program
 * in a machine that runs: gVisor's does so once in some hundred times (126).
 */
export async function untilStarted<T extends { exitCode: number }>(run: () => Promise<T>): Promise<T> {
  for (let tries = 1; ; tries++) {
    const result = await run();
    const { exitCode } = result;
    if (exitCode === 0 || exitCode === UNKNOWN_ARGUMENT || exitCode >= 128 || tries === START_TRIES) return result;
    await sleep(START_PAUSE_MILLISECONDS);
  }
}

/** Has a watchdog told its deadline. If it was killed, it may have moved the deadline before; any other error comes before that. */
export async function tellDeadline(
  tell: () => Promise<{ exitCode: number; stdout: string | Buffer }>,
): Promise<Extended> {
  const { exitCode, stdout } = await untilStarted(tell);
  if (exitCode === 0) return { kind: 'done' };
  if (exitCode >= 128) return { kind: 'unknown', reason: `the watchdog was killed (${exitCode})` };
  return { kind: 'refused', reason: onOneLine(`the watchdog did not take the deadline (${exitCode}) ${stdout}`) };
}

/** The deadlines of a backend's running containers. */
export type Deadlines = {
  /** Notes the deadline that a container was started with. */
  note(ref: Ref, deadline: number): void;
  /** Returns the deadline of a running container. If not known, its watchdog is asked; undefined when that fails. */
  read(ref: Ref): Promise<number | undefined>;
  /** Moves the deadline. Throws when the engine cannot be asked. */
  move(ref: Ref, deadline: number): Promise<Extended>;
  forget(ref: Ref): void;
};

/**
 * Creates the deadlines. `tell` runs the watchdog inside with these arguments, as its own user. `whyStopped` returns the words of
 * an error which means that nothing was run, since the machine does not run.
 */
export function keepDeadlines(
  tell: (ref: Ref, ...args: string[]) => Promise<{ exitCode: number; stdout: string }>,
  whyStopped: (error: unknown) => string | undefined,
): Deadlines {
  const known = new Map<Ref, number>();

  return {
    note: (ref, deadline) => void known.set(ref, deadline),
    forget: (ref) => void known.delete(ref),

    async read(ref) {
      const noted = known.get(ref);
      if (noted !== undefined) return noted;
      const { exitCode, stdout } = await tell(ref).catch(() => ({ exitCode: -1, stdout: '' }));
      if (exitCode !== 0 || !/^\d+\n$/.test(stdout)) return undefined;
      known.set(ref, Number(stdout));
      return Number(stdout);
    },

    async move(ref, deadline) {
      known.delete(ref); // The deadline is unknown until the watchdog has answered.
      try {
        const moved = await tellDeadline(() => tell(ref, String(deadline)));
        if (moved.kind === 'done') known.set(ref, deadline);
        return moved;
      } catch (error) {
        const reason = whyStopped(error);
        if (reason !== undefined) return { kind: 'refused', reason };
        throw error;
      }
    },
  };
}
