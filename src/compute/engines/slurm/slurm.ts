import { randomBytes } from 'node:crypto';
import { formatUsd, Nanos } from '../../../base/money.ts';
import type { Backend, Created, Extended, Machine, Offer, Owned, Quote, SpecTwo } from '../../backend.ts';
import { chipOf, quoteOf } from '../../kit/priced.ts';
import { createRecent } from '../../kit/recent.ts';
import { createInside, type Proof } from '../../machine/inside.ts';
import { checkSlurm } from './check.ts';
import { createSlurmCommands, NeverStarted, type Said, type User, wordsOf } from './command.ts';
import {
  CONTROLLER_LOST_SECONDS,
  formatOf,
  type Job,
  MOVED_SIGNAL,
  parseJobs,
  REFUSE_WITHOUT_SCRIPT,
  scriptOf,
  waitsFor,
} from './job.ts';
import type { SlurmSettings } from './settings.ts';
import { beginIn, type RunningJob } from './step.ts';
import { type Claim, createJobUsers } from './user.ts';

/** The most characters of a command's output that regular expressions read. */
const WORDS_LENGTH_MAX = 4096;
const MIN_SECONDS = 60;
const MIB_PER_GIB = 1024;
const STRANGER_NAME_CHARACTERS_MAX = 100;
/** A job that Slurm expects to start within this counts as one that starts now; the clocks may differ as well. */
const STARTS_NOW_SECONDS = 15;

/**
 * Answers of the controller, or of sbatch itself, which mean that there is no job. Any other failure is unknown, above
 * all `Socket timed out on send/recv operation`, behind which a job was seen to start (Slurm 22.05).
 */
const SAID_NO: [words: RegExp, code: 'capacity_unavailable' | 'provider_unavailable'][] = [
  [/Unable to contact slurm controller \(connect failure\)/, 'provider_unavailable'],
  // sbatch prints these itself, before anything is sent: it has no configuration, or munge gives it no credential.
  [/Could not establish a configuration source/, 'provider_unavailable'],
  [/auth_g_create: REQUEST_SUBMIT_BATCH_JOB has authentication error/, 'provider_unavailable'],
  [/Invalid generic resource \(gres\) specification/, 'provider_unavailable'],
  [/Invalid partition name specified/, 'provider_unavailable'],
  [/Invalid account or account\/partition combination specified/, 'provider_unavailable'],
  [/Invalid qos specification/, 'provider_unavailable'],
  [/Invalid user id/, 'provider_unavailable'],
  [/Invalid --[ug]id specification/, 'provider_unavailable'],
  [/Requested node configuration is not available/, 'provider_unavailable'],
  [/Requested time limit is invalid/, 'provider_unavailable'],
  [/User's group not permitted to use this partition/, 'provider_unavailable'],
  [/Access\/permission denied/, 'provider_unavailable'],
  [/Job violates accounting\/QOS policy/, 'capacity_unavailable'],
  [/Required partition not available/, 'capacity_unavailable'],
  [/Unable to create job record, try again/, 'capacity_unavailable'],
];
const NO_SUCH_JOB = /Invalid job id specified/;
/** Answers of the controller which mean that the deadline was not changed. */
const NOT_EXTENDED =
  /Invalid job id specified|Job\/step already completing or completed|Job is not running|Job is pending execution|Invalid time (value|specified)|Requested time limit is invalid|Access\/permission denied/i;

/**
 * Jobs of a Slurm cluster, by its own programs. The tag is the job's name and comment, the deadline is the job's end
 * time, and a job that waits in the queue is `provisioning`. Everything runs as `job_user`, or as one of `job_users`; only
 * root may say so (`man sbatch`, --uid).
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
  const inside = createInside(async (ref, order) => beginIn(slurm.start, await runningJob(ref), order), { proofOf });
  const users = createJobUsers(slurm, settings, { leases, now });
  const free = createRecent(freeChips);

  async function jobs(filter: string): Promise<Job[] | undefined> {
    const mark = randomBytes(12).toString('hex');
    const flags = ['--noheader', '--local', '--states=all', `--format=${formatOf(mark)}`];
    const said = await slurm.run(['squeue', filter, ...flags]);
    if (said.code === 0 && said.stderr === '') return parseJobs(said.stdout, mark);
    if (NO_SUCH_JOB.test(said.stderr)) return undefined;
    throw new Error(`squeue cannot tell: ${wordsOf(said)}`);
  }

  /** Returns all jobs of the job users that are not gone. Other users' jobs do not count: any user may give a job any name. */
  async function liveJobs(): Promise<Job[]> {
    const uids = (await users.all()).map(({ uid }) => uid);
    const all = await jobs(`--user=${uids.join(',')}`);
    if (!all) throw new Error('squeue knows no such user');
    return all.filter((job) => uids.includes(job.uid) && job.state !== 'gone');
  }

  const usersWithJobs = async () => new Set((await liveJobs()).map(({ uid }) => uid));

  async function list(owned: string): Promise<Owned[]> {
    return (await liveJobs())
      .filter((job) => job.name.startsWith(owned))
      .map((job) => ({ ...machineOf(job), tag: job.name, createdAt: job.submittedAt }));
  }

  /** Returns jobs of the job users without our tag: submitted by a tenant, or by another program that uses the same user. */
  async function strangers(owned: string): Promise<Owned[]> {
    return (await liveJobs())
      .filter((job) => !job.name.startsWith(owned))
      .map(({ id, name, state, submittedAt }) => ({
        ref: id,
        tag: name.replace(/[^\x20-\x7e]/g, '?').slice(0, STRANGER_NAME_CHARACTERS_MAX), // Its owner chose it.
        state: state as Machine['state'],
        createdAt: submittedAt,
      }));
  }

  async function endStranger(jobId: string): Promise<void> {
    const names = (await users.all()).map(({ name }) => name);
    // Each user is matched by name: their number may since have been given to another.
    for (const name of names) await cancel(`--user=${name}`, jobId);
  }

  async function cancel(...what: string[]): Promise<void> {
    const said = await slurm.run(['scancel', ...what]);
    if (said.code !== 0 && !/Invalid job id specified|already completing or completed/.test(said.stderr))
      throw new Error(`scancel failed: ${wordsOf(said)}`);
  }

  /**
   * Returns the job of a reference, or undefined when the controller has none that could still run. A cluster that lost its state
   * numbers its jobs from 1 again, and an owner may rename a job: a live job that does not match is not ours to end, and does not
   * prove that ours is gone.
   */
  async function look(ref: string): Promise<Job | undefined> {
    const { jobId, tag } = parseRef(ref);
    const [job, ...others] = (await jobs(`--jobs=${jobId}`)) ?? [];
    if (!job || (job.state === 'gone' && others.length === 0)) return undefined;
    const isOurs = (await users.all()).some(({ uid }) => uid === job.uid);
    if (others.length > 0 || job.id !== jobId || !isOurs || job.name !== tag)
      throw new Error(`job ${jobId} is there, but it is not ${tag} of one of our users any more`);
    return job;
  }

  async function inspect(ref: string): Promise<Machine | undefined> {
    const job = await look(ref);
    return job && machineOf(job);
  }

  /**
   * Returns the proof of a job, or why it cannot be given. RUNNING proves nothing: Slurm takes minutes to notice a dead node
   * (SlurmdTimeout), and accepts commands before the job's script has begun, which ends all the processes that they leave. Not
   * every GPU is NVIDIA's.
   */
  async function proofOf(ref: string): Promise<Proof | string> {
    const job = await look(ref);
    return job ? { gpus: job.gpus, mayLackTool: true, before: REFUSE_WITHOUT_SCRIPT } : 'the job is gone';
  }

  async function create({ tag, quote }: { tag: string; quote: Quote }): Promise<Created> {
    const refuse = (error: unknown): Created => {
      const reason = 'The job could not be submitted. Nothing was charged.';
      return { kind: 'refused', code: 'provider_unavailable', reason, words: (error as Error).message };
    };
    let claim: Claim | undefined;
    try {
      claim = await users.claim(usersWithJobs);
    } catch (error) {
      return refuse(error);
    }
    if (!claim)
      return {
        kind: 'refused',
        code: 'capacity_unavailable',
        reason: 'Every one of the job users has a lease. Nothing was charged.',
      };
    const created = await submit(tag, describe(settings, tag, quote, claim.user), refuse);
    claim.settle(created.kind === 'unknown' ? 'unknown' : 'known');
    free.forget();
    return created;
  }

  async function submit(tag: string, argv: string[], refuse: (error: unknown) => Created): Promise<Created> {
    let said: Said;
    try {
      said = await slurm.run(argv, scriptOf(lostSeconds));
    } catch (error) {
      if (error instanceof NeverStarted) return refuse(error);
      return { kind: 'unknown', reason: (error as Error).message };
    }
    const jobId = /^(\d+)(;[^\s;]+)?\n$/.exec(said.stdout)?.[1];
    if (said.code === 0 && jobId) return { kind: 'created', ref: refOf(jobId, tag) };
    const [, code] =
      (said.code !== 0 && said.stdout === '' && SAID_NO.find(([words]) => words.test(said.stderr))) || [];
    if (code)
      return { kind: 'refused', code, reason: 'Slurm refused the job. Nothing was charged.', words: wordsOf(said) };
    return { kind: 'unknown', reason: `sbatch ended with ${said.code}: ${wordsOf(said)}` };
  }

  /** Returns the chips of which a job would start now: by Slurm's own estimate, and in a partition that starts jobs. */
  async function freeChips(): Promise<ReadonlySet<string>> {
    const user = await users.free(usersWithJobs);
    if (!user) return new Set();
    const partitions = await slurm.run(['sinfo', '--noheader', '--format=%R|%a']);
    const isUp = (name: string) => partitions.stdout.split('\n').includes(`${name}|up`);
    const startsNow = async (chip: string) => {
      const quote = quoteOf(settings, { chip, max_seconds: MIN_SECONDS });
      const [sbatch, ...rest] = describe(settings, 'purser-offers', quote, user) as [string, ...string[]];
      // Submits nothing. `env` has the time in Unix seconds; sbatch itself is run without, since a job would inherit that.
      const said = await slurm.run(['env', 'SLURM_TIME_FORMAT=%s', sbatch, '--test-only', ...rest], '#!/bin/sh\n');
      const [, at, partition] =
        / to start at (\d+) .* in partition (\S+)/.exec(said.stderr.slice(0, WORDS_LENGTH_MAX)) ?? [];
      return partition !== undefined && isUp(partition) && Number(at) <= now() + STARTS_NOW_SECONDS;
    };
    const chips = Object.keys(settings.chips);
    const starts = await Promise.all(chips.map(startsNow));
    return new Set(chips.filter((_, i) => starts[i]));
  }

  /** Sets the end to the second. A time limit would have whole minutes, and an owner may only lower it. */
  async function extend(ref: string, deadline: number): Promise<Extended> {
    const job = await look(ref);
    if (job?.state !== 'running') return { kind: 'refused', reason: 'the job does not run' };
    const end = new Date(deadline * 1000).toISOString().slice(0, 'YYYY-MM-DDTHH:MM:SS'.length);
    const said = await slurm.run(['scontrol', 'update', `JobId=${job.id}`, `EndTime=${end}`]);
    const words = wordsOf(said);
    if (said.code !== 0)
      return { kind: NOT_EXTENDED.test(words) ? 'refused' : 'unknown', reason: `scontrol refused the end: ${words}` };
    // If the signal is lost, the script asks for the end at the earlier one.
    await slurm.run(['scancel', '--batch', `--signal=${MOVED_SIGNAL}`, job.id]).catch(() => {});
    const after = await look(ref);
    if (after?.endsAt === deadline) return { kind: 'done' };
    return { kind: 'unknown', reason: `the job ends at ${after?.endsAt}, and not at ${deadline}` };
  }

  async function destroy(ref: string): Promise<void> {
    const job = await look(ref);
    free.forget();
    if (!job || job.state === 'ended') return; // Slurm is ending it: processes that remain are killed after its KillWait.
    await cancel(job.id);
  }

  /** Returns the job and its user, if it is still this lease's. */
  async function runningJob(ref: string): Promise<RunningJob> {
    const job = await look(ref);
    if (job?.state !== 'running') throw new Error(`job ${parseRef(ref).jobId} does not run`);
    const user = (await users.all()).find(({ uid }) => uid === job.uid) as User;
    return { id: job.id, user };
  }

  return {
    name: 'slurm',
    // A submission that timed out may still lie in the controller's queue of messages when a list is answered.
    absence: { lists: 3, apartSeconds: 20 },
    async offers(waitMilliseconds) {
      const chips = await free.get(waitMilliseconds);
      return Object.keys(settings.chips).map((chip) => offerOf(settings, chip, chips?.has(chip) ?? false));
    },
    quote: async (spec) => quoteOf(settings, spec),
    create,
    inspect,
    extend,
    destroy,
    listOwned: list,
    strangers: { list: strangers, ...(settings.exclusive_user ? { end: endStranger } : {}) },
    find: async (tag) => (await list(tag)).filter((it) => it.tag === tag).map(({ tag: _, createdAt: __, ...it }) => it),
    inside,
    doctor: {
      trial: 'free',
      check: () =>
        checkSlurm(slurm, settings, {
          users: users.all,
          ask: (chip, as) =>
            describe(settings, 'purser-check', quoteOf(settings, { chip, max_seconds: MIN_SECONDS }), as),
          strangers: () => strangers(prefix),
        }),
    },
    close: async () => {},
  };
}

/** Returns the reference of a job. It names the job and its user, so that a job number alone is never trusted. */
const refOf = (jobId: string, tag: string) => `${jobId}:${tag}`;
function parseRef(ref: string): { jobId: string; tag: string } {
  const [, jobId, tag] = /^(\d+):(.+)$/.exec(ref) ?? [];
  if (jobId === undefined || tag === undefined) throw new Error(`not the reference of a job: ${ref}`);
  return { jobId, tag };
}

function machineOf({ id, name, state, endsAt, reason }: Job): Machine {
  if (state === 'gone') throw new Error('what is gone is no machine');
  return {
    ref: refOf(id, name),
    state,
    ...(endsAt === undefined ? {} : { deadline: endsAt }),
    ...(reason === undefined ? {} : { note: `Slurm says: ${reason}`, waitsFor: waitsFor(reason) }),
  };
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

/**
 * The sbatch options of a job. The limit counts from the start, in whole minutes, rounded up; `extend` then sets the
 * end to the second. Slurm itself drops a job that would start after its provisioning time.
 */
function describe(settings: SlurmSettings, tag: string, { spec }: Quote, { uid, gid }: User): string[] {
  const { chip: name, max_seconds: seconds } = spec as SpecTwo;
  const chip = chipOf(settings, name);
  const minutes = Math.ceil(seconds / 60);
  return [
    ...['sbatch', '--parsable', `--uid=${uid}`, `--gid=${gid}`, `--job-name=${tag}`, `--comment=${tag}`],
    ...[`--time=${minutes}`, `--deadline=now+${settings.provision_seconds + minutes * 60 + 60}`, '--no-requeue'],
    ...[
      '--nodes=1',
      '--ntasks=1',
      `--cpus-per-task=${chip.cpus}`,
      `--mem=${Math.ceil(chip.memory_gib * MIB_PER_GIB)}M`,
    ],
    ...(chip.gres === undefined ? [] : [`--gres=${chip.gres}`]),
    ...(settings.partition === undefined ? [] : [`--partition=${settings.partition}`]),
    ...[
      '--input=/dev/null',
      '--output=/dev/null',
      '--error=/dev/null',
      '--chdir=/',
      // A user of `job_users` has one job at a time; exclusive, it has nothing else on the node either.
      `--export=ALL${settings.job_users && settings.exclusive_user ? ',PURSER_ALONE=1' : ''}`,
      '--propagate=NONE',
    ],
  ];
}
