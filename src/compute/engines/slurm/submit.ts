import type { Created, MachineQuote, SpecTwo } from '../../backend.ts';
import { chipOf, quoteOf } from '../../kit/priced.ts';
import { createRecent, type Recent } from '../../kit/recent.ts';
import { type CommandResult, NeverStarted, type SlurmCommands, type User, wordsOf } from './command.ts';
import { scriptOf } from './job.ts';
import { refOf, type SlurmJobs } from './jobs.ts';
import { areAllDown, type SlurmNode } from './nodes.ts';
import type { SlurmSettings } from './settings.ts';
import type { JobUsers, UserClaim } from './user.ts';

export const MIN_SECONDS = 60;
/** The most characters of a command's output that regular expressions read. */
const WORDS_LENGTH_MAX = 4096;
const MIB_PER_GIB = 1024;
/** A job that Slurm expects to start within this counts as one that starts now; the clocks may differ as well. */
const STARTS_NOW_SECONDS = 15;

/**
 * Answers of the controller, or of sbatch itself, which mean that there is no job. Any other failure is unknown, above
 * all `Socket timed out on send/recv operation`, behind which a job was seen to start (Slurm 22.05).
 */
const REFUSALS: [words: RegExp, code: 'capacity_unavailable' | 'provider_unavailable'][] = [
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

type SlurmParts = {
  users: JobUsers;
  jobs: SlurmJobs;
  nodes: Recent<SlurmNode[]>;
  lostSeconds: number;
  now: () => number;
};

/** Creates the calls that submit jobs, and those that ask which job would start now. */
export function createSubmitter(
  slurm: SlurmCommands,
  settings: SlurmSettings,
  { users, jobs, nodes, lostSeconds, now }: SlurmParts,
) {
  const free = createRecent(freeChips);

  async function create({ tag, quote }: { tag: string; quote: MachineQuote }): Promise<Created> {
    const refuse = (error: unknown): Created => {
      const reason = 'The job could not be submitted. Nothing was charged.';
      return { kind: 'refused', code: 'provider_unavailable', reason, words: (error as Error).message };
    };
    // Such a job would wait in the queue, with its money held, for a node that has to be repaired.
    if (areAllDown((await nodes.get()) ?? []))
      return {
        kind: 'refused',
        code: 'capacity_unavailable',
        reason: 'Every node of the cluster is down. Nothing was charged.',
      };
    let claim: UserClaim | undefined;
    try {
      claim = await users.claim(jobs.usersWithJobs);
    } catch (error) {
      return refuse(error);
    }
    if (!claim)
      return {
        kind: 'refused',
        code: 'capacity_unavailable',
        reason: 'Every one of the job users has a lease. Nothing was charged.',
      };
    const created = await submit(tag, describeJob(settings, tag, quote, claim.user), refuse);
    claim.settle(created.kind === 'unknown' ? 'unknown' : 'known');
    free.forget();
    return created;
  }

  async function submit(tag: string, argv: string[], refuse: (error: unknown) => Created): Promise<Created> {
    let result: CommandResult;
    try {
      result = await slurm.run(argv, scriptOf(lostSeconds));
    } catch (error) {
      if (error instanceof NeverStarted) return refuse(error);
      return { kind: 'unknown', reason: (error as Error).message };
    }
    const jobId = /^(\d+)(;[^\s;]+)?\n$/.exec(result.stdout)?.[1];
    if (result.code === 0 && jobId) return { kind: 'created', ref: refOf(jobId, tag) };
    const [, code] =
      (result.code !== 0 && result.stdout === '' && REFUSALS.find(([words]) => words.test(result.stderr))) || [];
    if (code)
      return { kind: 'refused', code, reason: 'Slurm refused the job. Nothing was charged.', words: wordsOf(result) };
    return { kind: 'unknown', reason: `sbatch ended with ${result.code}: ${wordsOf(result)}` };
  }

  /** Returns the chips of which a job would start now: by Slurm's own estimate, and in a partition that starts jobs. */
  async function freeChips(): Promise<ReadonlySet<string>> {
    const user = await users.free(jobs.usersWithJobs);
    if (!user) return new Set();
    const partitions = await slurm.run(['sinfo', '--noheader', '--format=%R|%a']);
    const isUp = (name: string) => partitions.stdout.split('\n').includes(`${name}|up`);
    const startsNow = async (chip: string) => {
      const quote = quoteOf(settings, { chip, max_seconds: MIN_SECONDS });
      const [sbatch, ...rest] = describeJob(settings, 'purser-offers', quote, user) as [string, ...string[]];
      // Submits nothing. `env` has the time in Unix seconds; sbatch itself is run without, since a job would inherit that.
      const result = await slurm.run(['env', 'SLURM_TIME_FORMAT=%s', sbatch, '--test-only', ...rest], '#!/bin/sh\n');
      const [, at, partition] =
        / to start at (\d+) .* in partition (\S+)/.exec(result.stderr.slice(0, WORDS_LENGTH_MAX)) ?? [];
      return partition !== undefined && isUp(partition) && Number(at) <= now() + STARTS_NOW_SECONDS;
    };
    const chips = Object.keys(settings.chips);
    const starts = await Promise.all(chips.map(startsNow));
    return new Set(chips.filter((_, i) => starts[i]));
  }

  return { create, free };
}

/**
 * Returns the sbatch options of a job. The limit counts from the start, in whole minutes, rounded up; `extend` then sets the
 * end to the second. Slurm itself drops a job that would start after its provisioning time.
 */
export function describeJob(
  settings: SlurmSettings,
  tag: string,
  { spec }: MachineQuote,
  { uid, gid }: User,
): string[] {
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
