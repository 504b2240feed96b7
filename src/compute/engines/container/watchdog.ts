import {
  type Deadlines,
  keepDeadlines,
  MOVE_MILLISECONDS,
  RUNNING_WATCHDOG,
  WATCHDOG_PATH,
  watchdogFor,
} from '../../kit/watchdog.ts';
import { WATCHDOG_USER } from '../../kit/watchdog-user.ts';
import { type Engine, statusOf, textOf } from './engine.ts';
import { runAs } from './program.ts';
import { packFile } from './tar.ts';

/** Puts the watchdog into a container that has not started, through the engine: no path of this machine is mounted. */
export async function putWatchdog({ ask, docker }: Engine, container: string, architecture: string): Promise<void> {
  const program = watchdogFor(architecture);
  // Owned by a user of its own, so that the tenant's root cannot write it either.
  const archive = packFile(WATCHDOG_PATH.slice(1), program, { mode: 0o555, owner: WATCHDOG_USER });
  await ask('archive', (abortSignal) => docker.getContainer(container).putArchive(archive, { path: '/', abortSignal }));
}

/** Creates the deadlines of containers, each read and moved by the watchdog inside. */
export function createDeadlines(engine: Engine): Deadlines {
  return keepDeadlines(
    (ref, ...args) =>
      runAs(engine, ref, `${WATCHDOG_USER}:${WATCHDOG_USER}`, [RUNNING_WATCHDOG, ...args], MOVE_MILLISECONDS),
    // Neither engine starts anything in a container that does not run.
    (error) => (statusOf(error) === 409 ? textOf(error) : undefined),
  );
}
