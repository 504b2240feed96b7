import type { TestContext } from 'node:test';
import { type Cluster, openSlurm } from '../test/compute/engines/slurm.ts';
import type { Engine } from './engine.ts';
import { HOURLY_USD } from './prices.ts';
import type { Stage } from './site.ts';
import { resourceIdOf } from './tag.ts';

/** Users that every Debian has, and that nobody else uses here. */
const JOB_USERS = ['lp', 'mail', 'uucp'];
const CHIP = 'cpu';
/** States of a job in which its processes run. */
const RUNS = ['RUNNING', 'SUSPENDED'];

export type SlurmEngine = Engine & { cluster: Cluster };

/** Opens the Slurm backend on a real cluster of one node. Returns undefined without Slurm. */
export async function openCluster(t: Stage): Promise<SlurmEngine | undefined> {
  const cluster = await openSlurm(t as TestContext);
  if (!cluster) return undefined;
  t.after(() => cluster.stop());
  return {
    settings: {
      provider_two: {
        backend: 'slurm',
        job_users: JOB_USERS,
        slurm_conf: cluster.conf,
        provision_seconds: 30,
        chips: { [CHIP]: { cpus: 1, memory_gib: 0.125, price_hourly_usd: HOURLY_USD } },
      },
    },
    kinds: [{ provider: 'provider_two', spec: (max_seconds) => ({ chip: CHIP, max_seconds }), canExtend: true }],
    graceSeconds: 60, // The controller looks at its limits every 30 s, and counts in minutes.
    cluster,
    async list() {
      const jobs = (await cluster.slurm('squeue', '-h', '-o', '%j %T')).split('\n').filter(Boolean);
      return jobs.map((it) => {
        const [tag, state] = it.split(' ') as [string, string];
        return { tag, resourceId: resourceIdOf(tag), running: RUNS.includes(state) };
      });
    },
    kill: ({ tag }) => cluster.slurm('scancel', '--signal=KILL', '--full', `--name=${tag}`),
  };
}
