import { pack } from '../../kit/tar.ts';
import {
  COPIED_WATCHDOG,
  type Deadlines,
  keepDeadlines,
  MOVE_MILLISECONDS,
  RUNNING_WATCHDOG,
  WATCHDOG_PATH,
  watchdogFor,
} from '../../kit/watchdog.ts';
import { WATCHDOG_USER } from '../../kit/watchdog-user.ts';
import { ContainerGone, type Containers, type Inspected } from './containers.ts';
import { type Engine, statusOf, textOf } from './engine.ts';
import { runAs } from './program.ts';

/** The watchdog's directory (kit/watchdog/watchdog.c), a mount. It lies in `/`, which cannot be renamed. */
export const WATCHDOG_DIRECTORY = '/.purser';

/**
 * Puts the watchdog into a container that has not started, through the engine: no path of this machine is mounted. A directory for
 * it replaces a link in the image, which the mount would follow and root could replace.
 */
export async function putWatchdog({ ask, docker }: Engine, container: string, it: Watchdog): Promise<void> {
  const owner = WATCHDOG_USER; // So that the tenant's root cannot write it either.
  const program = { name: WATCHDOG_PATH.slice(1), content: watchdogFor(it.architecture), mode: 0o555, owner };
  const directory = { name: WATCHDOG_DIRECTORY.slice(1), mode: 0o700, owner };
  const archive = pack(program, ...(it.hasDirectory ? [directory] : []));
  await ask('archive', (abortSignal) => docker.getContainer(container).putArchive(archive, { path: '/', abortSignal }));
}
type Watchdog = { architecture: string; hasDirectory: boolean };

/** Returns the watchdog's program as it is started beside process 1, and its directory if it has one. */
export function runningWatchdog({ HostConfig }: Inspected): [program: string, ...directory: string[]] {
  // Not by a label: a container inherits those of an image that was committed from a lease.
  if (HostConfig?.Tmpfs?.[WATCHDOG_DIRECTORY] === undefined) return [RUNNING_WATCHDOG];
  return [`${WATCHDOG_DIRECTORY}/${COPIED_WATCHDOG}`, WATCHDOG_DIRECTORY];
}

/** Creates the deadlines of containers, each read and moved by the watchdog inside. */
export function createDeadlines(engine: Engine, containers: Containers): Deadlines {
  return keepDeadlines(
    async (ref, ...args) => {
      const [program, ...directory] = runningWatchdog(await containers.inspect(ref));
      const argv = [program, ...args, ...directory];
      return runAs(engine, ref, `${WATCHDOG_USER}:${WATCHDOG_USER}`, argv, MOVE_MILLISECONDS);
    },
    // Neither engine starts anything in a container that does not run.
    (error) => (error instanceof ContainerGone || statusOf(error) === 409 ? textOf(error) : undefined),
  );
}
