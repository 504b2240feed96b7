import type { Pausing, Ref } from '../../backend.ts';
import { createPausing } from '../../kit/pausing.ts';
import { type Deadlines, MOVE_MILLISECONDS, RUNNING_WATCHDOG, WATCHDOG_PATH } from '../../kit/watchdog.ts';
import { WATCHDOG_USER } from '../../kit/watchdog-user.ts';
import type { LxdApi } from './api.ts';
import { allowanceOf, claimIn } from './describe.ts';
import type { LxdInstances } from './instances.ts';
import { runProgram } from './program.ts';

type PauseNeeds = { instances: LxdInstances; deadlines: Deadlines; room: Pick<Pausing, 'takeRoom' | 'letGo'> };

/** Creates the pause of instances, in which tenants' commands run as `tenant`. */
export function createLxdPause(lxd: LxdApi, tenant: number, { instances, deadlines, room }: PauseNeeds): Pausing {
  const run = async (ref: Ref, user: number, argv: string[]) =>
    (await runProgram(lxd, ref, user, argv, MOVE_MILLISECONDS)).exitCode;
  return createPausing(
    {
      async limitCpu(ref, to) {
        const instance = await instances.look(ref);
        if (!instance) throw new Error('the container is gone');
        const config = { 'limits.cpu.allowance': allowanceOf(to === 'least' ? 0 : claimIn(instance).cpus) };
        await lxd.ask('PATCH', `/1.0/instances/${ref}`, { config });
      },
      // The tenants' user may not start the program of process 1 itself.
      signal: (ref, what) => run(ref, tenant, [WATCHDOG_PATH, what]),
      look: (ref) => run(ref, WATCHDOG_USER, [RUNNING_WATCHDOG, 'stopped']),
    },
    deadlines,
    room,
  );
}
