import { assetBytes } from '../../../files/asset.ts';
import type { Extended, Ref } from '../../backend.ts';
import { type Engine, statusOf, textOf } from './engine.ts';
import { runAs } from './program.ts';
import { packFile } from './tar.ts';
import { WATCHDOG_USER } from './watchdog-user.ts';

/**
 * The watchdog (watchdog/watchdog.c) is the first process of every container: a static program that is put into the
 * container before it starts, holds the deadline in memory and exits when it has passed
 * (docs/decisions/0020-deadline-inside-the-machine.md).
 */

/** The program's path inside. A tenant who is root there may remove it; the running process is not affected. */
export const WATCHDOG_PATH = '/.purser-watchdog';

/** The program that runs as process 1, even if its file was removed. */
export const RUNNING_WATCHDOG = '/proc/1/exe';
export const MOVE_MILLISECONDS = 15_000;

const ARCHITECTURES = ['amd64', 'arm64'];
export const hasWatchdog = (architecture: string) => ARCHITECTURES.includes(architecture);
export const watchdogFor = (architecture: string) =>
  assetBytes(`src/compute/backends/container/watchdog/watchdog-${architecture}`);

/** Puts the watchdog into a container that has not started, through the engine: no path of this machine is mounted. */
export async function putWatchdog({ ask, docker }: Engine, container: string, architecture: string): Promise<void> {
  const program = watchdogFor(architecture);
  // Owned by a user of its own, so that the tenant's root cannot write it either.
  const archive = packFile(WATCHDOG_PATH.slice(1), program, { mode: 0o555, owner: WATCHDOG_USER });
  await ask('archive', (abortSignal) => docker.getContainer(container).putArchive(archive, { path: '/', abortSignal }));
}

/** The deadlines of a backend's running containers. */
export type Deadlines = {
  /** Notes the deadline that a container was started with. */
  note(ref: Ref, deadline: number): void;
  /** The deadline of a running container. If not known, its watchdog is asked; undefined when that fails. */
  read(ref: Ref): Promise<number | undefined>;
  /** Moves the deadline. Throws when the engine cannot be asked. */
  move(ref: Ref, deadline: number): Promise<Extended>;
  forget(ref: Ref): void;
};

export function createDeadlines(engine: Engine): Deadlines {
  return keepDeadlines(
    (ref, ...args) =>
      runAs(engine, ref, `${WATCHDOG_USER}:${WATCHDOG_USER}`, [RUNNING_WATCHDOG, ...args], MOVE_MILLISECONDS),
    // Neither engine starts anything in a container that does not run.
    (error) => statusOf(error) === 409,
  );
}

/**
 * `tell` runs the watchdog inside with these arguments, as its own user. `isStopped` says of its error that nothing was run
 * since the machine does not run.
 */
export function keepDeadlines(
  tell: (ref: Ref, ...args: string[]) => Promise<{ exitCode: number; stdout: string }>,
  isStopped: (error: unknown) => boolean,
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
      known.delete(ref); // Until it has answered nobody knows.
      try {
        const { exitCode } = await tell(ref, String(deadline));
        // Killed, it may have moved the deadline before; any other error comes before that.
        if (exitCode >= 128) return { kind: 'unknown', reason: `the watchdog was killed (${exitCode})` };
        if (exitCode !== 0) return { kind: 'refused', reason: `the watchdog did not take the deadline (${exitCode})` };
      } catch (error) {
        if (isStopped(error)) return { kind: 'refused', reason: textOf(error) };
        throw error;
      }
      known.set(ref, deadline);
      return { kind: 'done' };
    },
  };
}
