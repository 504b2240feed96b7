import { formatUsd, Nanos } from '../../../base/money.ts';
import type { Backend, Extended, Machine, Offer, SpecTwo } from '../../backend.ts';
import { chipOf, quoteOf } from '../../kit/priced.ts';
import { createRecent } from '../../kit/recent.ts';
import { createGuest } from '../../machine/guest.ts';
import { checkSlurm } from './check.ts';
import { createSlurmCommands, type SlurmCommands, wordsOf } from './command.ts';
import { CONTROLLER_LOST_SECONDS, gpusOf, MOVED_SIGNAL, REFUSE_WITHOUT_SCRIPT } from './job.ts';
import { createJobs, machineOf, type SlurmJobs } from './jobs.ts';
import { listNodes } from './nodes.ts';
import type { SlurmSettings } from './settings.ts';
import { beginIn } from './step.ts';
import { createSubmitter, describeJob, MIN_SECONDS } from './submit.ts';
import { createJobUsers } from './user.ts';

/** Answers of the controller which mean that the deadline was not changed. */
const NOT_EXTENDED =
  /Invalid job id specified|Job\/step already completing or completed|Job is not running|Job is pending execution|Invalid time (value|specified)|Requested time limit is invalid|Access\/permission denied/i;

/**
 * Opens the jobs of a Slurm cluster, by its own programs. The tag is the job's name and comment, the deadline is the job's end
 * time, and a queued job is `provisioning`. Everything runs as `job_user`, or as one of `job_users`, which root alone may order
 * (`man sbatch`, --uid).
 */
export function openSlurmBackend(
  settings: SlurmSettings,
  {
    prefix,
    leases,
    now,
    lostSeconds = CONTROLLER_LOST_SECONDS,
  }: { prefix: string; leases: string; now: () => number; lostSeconds?: number },
): Backend {
  if (process.getuid?.() !== 0)
    throw new Error(
      'compute.provider_two: the slurm backend needs Purser to run as root, since sbatch --uid lets nobody else submit jobs as job_user.',
    );
  const slurm = createSlurmCommands(settings.slurm_conf);
  const users = createJobUsers(slurm, settings, { leases, now });
  const jobs = createJobs(slurm, users);
  const nodes = createRecent(() => listNodes(slurm, settings));
  const { create, free } = createSubmitter(slurm, settings, { users, jobs, nodes, lostSeconds, now });
  const guest = createGuest(async (ref, order) => beginIn(slurm.start, await jobs.running(ref), order), {
    /**
     * RUNNING proves nothing: Slurm takes minutes to notice a dead node (SlurmdTimeout), and accepts commands before the job's
     * script has begun, which ends all the processes that they leave. Not every GPU is NVIDIA's.
     */
    async proofOf(ref) {
      const job = await jobs.look(ref);
      return job ? { gpus: job.gpus, mayLackTool: true, before: REFUSE_WITHOUT_SCRIPT } : 'the job is gone';
    },
    gpus: (_, spec) => gpusOf(chipOf(settings, (spec as SpecTwo).chip).gres ?? ''),
    pause: 'the time limit of a Slurm job runs on while it is suspended',
    snapshots: 'Slurm does not keep the disk of a job',
  });

  async function inspect(ref: string): Promise<Machine | undefined> {
    const job = await jobs.look(ref);
    return job && machineOf(job, job.state === 'provisioning' ? await nodes.get() : undefined);
  }

  async function destroy(ref: string): Promise<void> {
    const job = await jobs.look(ref);
    free.forget();
    // Where Slurm is ending it already, this changes nothing: processes that remain are killed after its KillWait.
    if (job) await jobs.cancel(job.id);
  }

  return {
    name: 'slurm',
    identity: () => identityOf(slurm),
    // A submission that timed out may still lie in the controller's queue of messages when a list is answered.
    absence: { lists: 3, apartSeconds: 20 },
    async offers(waitMilliseconds) {
      const chips = await free.get(waitMilliseconds);
      return Object.keys(settings.chips).map((chip) => offerOf(settings, chip, chips?.has(chip) ?? false));
    },
    quote: async (spec) => quoteOf(settings, spec),
    create,
    inspect,
    extend: (ref, deadline) => extend(slurm, jobs, ref, deadline),
    destroy,
    listOwned: jobs.list,
    strangers: { list: jobs.strangers, ...(settings.exclusive_user ? { end: jobs.endStranger } : {}) },
    find: async (tag) =>
      (await jobs.list(tag)).filter((it) => it.tag === tag).map(({ tag: _, createdAt: __, ...it }) => it),
    guest,
    doctor: {
      trial: 'free',
      check: () =>
        checkSlurm(slurm, settings, {
          users: users.all,
          nodes: () => listNodes(slurm, settings),
          ask: (chip, as) =>
            describeJob(settings, 'purser-check', quoteOf(settings, { chip, max_seconds: MIN_SECONDS }), as),
          strangers: () => jobs.strangers(prefix),
        }),
    },
    close: async () => {},
  };
}

/** The controller is asked: the configuration of this machine may name another cluster than the one that answers. */
async function identityOf(slurm: SlurmCommands): Promise<string | undefined> {
  const result = await slurm.run(['scontrol', 'show', 'config']);
  if (result.code !== 0) throw new Error(`scontrol cannot tell the cluster: ${wordsOf(result)}`);
  const name = /^ClusterName\s*=\s*(\S+)/m.exec(result.stdout)?.[1];
  return name && `slurm ${name}`;
}

/** Sets the end to the second. A time limit would have whole minutes, and an owner may only lower it. */
async function extend(slurm: SlurmCommands, jobs: SlurmJobs, ref: string, deadline: number): Promise<Extended> {
  const job = await jobs.look(ref);
  if (job?.state !== 'running') return { kind: 'refused', reason: 'the job does not run' };
  const end = new Date(deadline * 1000).toISOString().slice(0, 'YYYY-MM-DDTHH:MM:SS'.length);
  const result = await slurm.run(['scontrol', 'update', `JobId=${job.id}`, `EndTime=${end}`]);
  const words = wordsOf(result);
  if (result.code !== 0)
    return { kind: NOT_EXTENDED.test(words) ? 'refused' : 'unknown', reason: `scontrol refused the end: ${words}` };
  // If the signal is lost, the script asks for the end at the earlier one.
  await slurm.run(['scancel', '--batch', `--signal=${MOVED_SIGNAL}`, job.id]).catch(() => {});
  const after = await jobs.look(ref);
  if (after?.endsAt === deadline) return { kind: 'done' };
  return { kind: 'unknown', reason: `the job ends at ${after?.endsAt}, and not at ${deadline}` };
}

function offerOf(settings: SlurmSettings, name: string, available: boolean): Offer {
  const { cpus, memory_gib: memoryGib, gres, price_hourly_usd: priceHourly } = chipOf(settings, name);
  const size = `${cpus} CPUs and ${memoryGib} GiB${gres === undefined ? '' : ` and ${gres}`}`;
  return {
    offerId: null,
    description: `${name}: Slurm job with ${size}, ${formatUsd(Nanos(priceHourly))} USD an hour`,
    spec: { chip: name, max_seconds: Math.min(3600, settings.limits.max_seconds) },
    ...(gres === undefined ? { size: { cpus, memoryGib, gpus: 0 } } : {}),
    priceHourly,
    minSeconds: MIN_SECONDS,
    maxSeconds: settings.limits.max_seconds,
    available,
  };
}
