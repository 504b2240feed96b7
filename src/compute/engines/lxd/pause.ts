import type { Pausing, Ref } from '../../backend.ts';
import { createPausing, type Signals } from '../../kit/pausing.ts';
import { type Deadlines, MOVE_MILLISECONDS, RUNNING_WATCHDOG, WATCHDOG_PATH } from '../../kit/watchdog.ts';
import { WATCHDOG_USER } from '../../kit/watchdog-user.ts';
import { type LxdApi, LxdRefusal, STATUS } from './api.ts';
import { allowanceOf, claimIn } from './describe.ts';
import { CHANGE_MILLISECONDS, type LxdInstances } from './instances.ts';
import { runProgram } from './program.ts';

/** Creates the calls that stop and continue what runs in containers, in which tenants' commands run as `tenant`. */
export function createSignals(lxd: LxdApi, tenant: number): Signals {
  const run = async (ref: Ref, user: number, argv: string[]) =>
    (await runProgram(lxd, ref, user, argv, MOVE_MILLISECONDS)).exitCode;
  return {
    // The tenants' user may not start the program of process 1 itself.
    signal: (ref, what) => run(ref, tenant, [WATCHDOG_PATH, what]),
    look: (ref) => run(ref, WATCHDOG_USER, [RUNNING_WATCHDOG, 'stopped']),
  };
}

type PauseNeeds = {
  signals: Signals;
  instances: LxdInstances;
  deadlines: Deadlines;
  room: Pick<Pausing, 'takeRoom' | 'letGo'>;
};

/** Creates the pause of instances. */
export function createLxdPause(lxd: LxdApi, { signals, instances, deadlines, room }: PauseNeeds): Pausing {
  const pausing = createPausing(
    {
      async limitCpu(ref, to) {
        const instance = await instances.look(ref);
        if (!instance) throw new Error('the container is gone');
        const config = { 'limits.cpu.allowance': allowanceOf(to === 'least' ? 0 : claimIn(instance).cpus) };
        await lxd.ask('PATCH', `/1.0/instances/${ref}`, { config });
      },
      ...signals,
    },
    deadlines,
    room,
  );
  /** Stops or continues the processors of a virtual machine; succeeds if that is so already. */
  const change = (ref: Ref, action: 'freeze' | 'unfreeze') =>
    lxd.run('PUT', `/1.0/instances/${ref}/state`, { action }, CHANGE_MILLISECONDS).catch(async (error) => {
      const instance = error instanceof LxdRefusal ? await instances.look(ref) : undefined;
      if ((instance?.status_code === STATUS.frozen) !== (action === 'freeze')) throw error;
    });

  return {
    ...pausing,
    async begin(ref, deadline, stopped) {
      if (!(await instances.isMachine(ref))) return pausing.begin(ref, deadline, stopped);
      await change(ref, 'freeze');
      await stopped?.();
      return deadlines.move(ref, deadline);
    },
    async complete(ref) {
      if (!(await instances.isMachine(ref))) await pausing.complete(ref);
    },
    async end(ref, deadline) {
      if (!(await instances.isMachine(ref))) return pausing.end(ref, deadline);
      const moved = await deadlines.move(ref, deadline);
      if (moved.kind === 'done') await change(ref, 'unfreeze');
      return moved;
    },
  };
}
