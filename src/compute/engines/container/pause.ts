import type { Pausing, Ref } from '../../backend.ts';
import { claimOf } from '../../kit/claim.ts';
import { createPausing, type Signals } from '../../kit/pausing.ts';
import { type Deadlines, MOVE_MILLISECONDS, WATCHDOG_PATH } from '../../kit/watchdog.ts';
import { WATCHDOG_USER } from '../../kit/watchdog-user.ts';
import type { Containers } from './containers.ts';
import { CPU_PERIOD_MICROSECONDS } from './describe.ts';
import type { Engine } from './engine.ts';
import { runAs } from './program.ts';
import { sharesKernel } from './settings.ts';
import { runningWatchdog } from './watchdog.ts';

/** The least that the kernel takes: 1 ms in 100 ms. */
const CPUS_LEAST = 0.01;

/** Creates the calls that stop and continue what runs in containers. */
export function createSignals(engine: Engine, { inspect }: Containers): Signals {
  const run = async (ref: Ref, user: string, argv: string[]) =>
    (await runAs(engine, ref, user, argv, MOVE_MILLISECONDS)).exitCode;
  return {
    // The tenants' user may not start the program of process 1 itself.
    signal: async (ref, what) => run(ref, (await engine.defaultsOf(ref)).user, [WATCHDOG_PATH, what]),
    async look(ref) {
      const [program] = runningWatchdog(await inspect(ref));
      return run(ref, `${WATCHDOG_USER}:${WATCHDOG_USER}`, [program, 'stopped']);
    },
  };
}

/** Creates the pause of containers. */
export function createContainerPause(
  engine: Engine,
  containers: Containers,
  deadlines: Deadlines,
  room: Pick<Pausing, 'takeRoom' | 'letGo'>,
): Pausing {
  const { inspect } = containers;

  async function limitCpu(ref: Ref, to: 'least' | 'sold'): Promise<void> {
    const cpus = to === 'least' ? CPUS_LEAST : claimOf((await inspect(ref)).Config.Labels).cpus;
    if (!(await engine.isPodman())) {
      const limit = { NanoCpus: Math.round(cpus * 1e9) };
      await engine.ask('update', (abortSignal) => engine.docker.getContainer(ref).update({ ...limit, abortSignal }));
      return;
    }
    const cpu = { period: CPU_PERIOD_MICROSECONDS, quota: Math.round(cpus * CPU_PERIOD_MICROSECONDS) };
    await engine.request('POST', `/v4.3.0/libpod/containers/${ref}/update`, { cpu });
  }

  const pausing = createPausing({ limitCpu, ...createSignals(engine, containers) }, deadlines, room);
  return {
    ...pausing,
    async begin(ref, deadline, stopped) {
      const container = await inspect(ref);
      // Only the host's kernel knows signals and control groups as a pause needs them.
      if (sharesKernel(container.HostConfig.Runtime)) return pausing.begin(ref, deadline, stopped);
      return { kind: 'refused', reason: `machines under the runtime ${container.HostConfig.Runtime} cannot be paused` };
    },
  };
}
