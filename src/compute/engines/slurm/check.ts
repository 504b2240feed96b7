import type { CheckFinding, Owned } from '../../backend.ts';
import { finding, warning } from '../../finding.ts';
import { type SlurmCommands, type User, wordsOf } from './command.ts';
import { areAllDown, nodesDown, type SlurmNode } from './nodes.ts';
import type { SlurmSettings } from './settings.ts';
import type { JobUsers } from './user.ts';

/** Every program this backend runs, here and on the nodes. */
const PROGRAMS = ['sbatch', 'squeue', 'sinfo', 'scontrol', 'scancel', 'srun', 'id', 'script'];
const SHOWN_MAX = 10;
const MISSING = 'for it; do command -v "$it" >/dev/null || echo "$it"; done';

type Record = ReadonlyMap<string, string>;

type CheckParts = {
  users: JobUsers['all'];
  nodes(): Promise<SlurmNode[]>;
  /** The sbatch options of a chip's job. */
  ask(chip: string, user: User): string[];
  /** Returns the jobs of our users that are not this installation's. */
  strangers(): Promise<Owned[]>;
};

/**
 * Checks what a lease depends on, each by asking Slurm itself. Settings that only weaken the isolation of tenants are
 * reported and are no fault: a cluster may serve a single tenant.
 */
export async function checkSlurm(
  slurm: SlurmCommands,
  settings: SlurmSettings,
  { users, nodes: nodesOfOurs, ask, strangers }: CheckParts,
): Promise<CheckFinding[]> {
  const say = async (...argv: string[]) => {
    const result = await slurm.run(argv);
    if (result.code !== 0) throw new Error(`${argv.join(' ')}: ${wordsOf(result)}`);
    return result.stdout;
  };

  const commands = await finding('commands', async () => {
    const missing = (await say('/bin/sh', '-c', MISSING, 'purser', ...PROGRAMS)).split('\n').filter(Boolean);
    if (missing.length)
      throw new Error(
        `${missing.join(', ')} cannot be found. Install Slurm's client programs (Debian: slurm-client) and util-linux here.`,
      );
    return 'all are there';
  });
  if (!commands.ok) return [commands];

  const controller = await finding('controller', async () => {
    const result = await slurm.run(['scontrol', 'ping']);
    if (result.code === 0) return result.stdout.trim().split('\n').join('; ');
    const at = settings.slurm_conf ?? 'the slurm.conf that Slurm finds by itself (set slurm_conf if it is another)';
    throw new Error(
      `The controller does not answer: ${wordsOf(result)}. Is slurmctld running, and is ${at} its configuration?`,
    );
  });
  if (!controller.ok) return [commands, controller];

  const config = valuesOf(await say('scontrol', 'show', 'config').catch(() => ''));
  const nodes = recordsOf(await say('scontrol', '--oneliner', 'show', 'node').catch(() => ''));
  const chips: CheckFinding[] = [];
  for (const name of Object.keys(settings.chips))
    chips.push(
      await finding(`chip ${name}`, async () => {
        const [user] = await users();
        return checkChip(slurm, settings, name, nodes, user, ask(name, user));
      }),
    );
  const fit = Object.keys(settings.chips).find((_, at) => chips[at]?.ok);
  return [
    commands,
    controller,
    await finding('partition', async () =>
      checkPartition(settings, recordsOf(await say('scontrol', '--oneliner', 'show', 'partition'))),
    ),
    await finding('nodes', async () => checkNodes(await nodesOfOurs())),
    await finding('job_user', async () => checkUsers(settings, await users())),
    ...chips,
    await finding('submission', async () => {
      if (fit === undefined) return 'could not be tried, since no job of ours would be taken';
      const refusals: string[] = [];
      for (const user of await users()) refusals.push(await checkSubmission(slurm, user, ask(fit, user)));
      return refusals.join('; ');
    }),
    await finding('other jobs', async () => checkOtherJobs(settings, await strangers())),
    await finding('processes', () => {
      const tracked = config.get('ProctrackType') ?? 'unknown';
      if (tracked === 'proctrack/cgroup') return tracked;
      return `${tracked}: what a tenant starts is not held in a control group. Set ProctrackType=proctrack/cgroup where tenants do not trust each other`;
    }),
    await finding('devices', () => checkDevices(config)),
    await finding('directories', () => {
      const container = config.get('JobContainerType') ?? 'unknown';
      if (container === 'job_container/tmpfs') return container;
      return `${container}: tenants share /tmp and /dev/shm of a node. Set JobContainerType=job_container/tmpfs (or a SPANK plugin for private directories) where they do not trust each other`;
    }),
    await finding('accounting', () => {
      const storage = config.get('AccountingStorageType') ?? 'unknown';
      if (!/\/none$/.test(storage)) return storage;
      return `${storage}: sacct knows no jobs. Purser does without; to look into the past, set AccountingStorageType`;
    }),
  ];
}

/** Checks that the nodes of our partitions take jobs. */
function checkNodes(nodes: readonly SlurmNode[]): string {
  const down = nodesDown(nodes);
  if (!down.length) return `all ${nodes.length} take jobs`;
  const some = down.slice(0, SHOWN_MAX).map(({ name, state, reason }) => `${name} is ${state} (${reason})`);
  const more = down.length > some.length ? ` and ${down.length - some.length} more` : '';
  const words = `${down.length} of ${nodes.length} take no jobs: ${some.join(', ')}${more}. Repair them, then: scontrol update NodeName=… State=RESUME`;
  if (areAllDown(nodes)) throw new Error(words);
  return warning(words);
}

/** Reports whether tenants share a user. */
function checkUsers(settings: SlurmSettings, all: readonly User[]): string {
  const who = all.map(({ name, uid, gid }) => `${name} is user ${uid} of group ${gid}`).join(', ');
  if (settings.job_users) return `${who}; each has one lease at a time`;
  return warning(
    `${who}; all tenants are this one user, so they can read, signal and enter each other. Give job_users where they do not trust each other`,
  );
}

/** Checks that the job users have no jobs but leases of this installation. */
function checkOtherJobs(settings: SlurmSettings, others: readonly Owned[]): string {
  if (!others.length) return 'the job users have none';
  const some = others.slice(0, SHOWN_MAX).map(({ ref, tag, state }) => `${ref} (${tag}, ${state})`);
  const more = others.length > some.length ? ` and ${others.length - some.length} more` : '';
  throw new Error(
    `${others.length} jobs of the job users are no lease of this installation: ${some.join(', ')}${more}. ${settings.exclusive_user ? 'The running server ends them after some minutes' : 'Nobody pays for them. End them with scancel, or set exclusive_user: true if these users have no other purpose'}`,
  );
}

/** Returns the partition that jobs go to: the configured ones, of which Slurm takes the first that has room, or the default. */
function checkPartition(settings: SlurmSettings, all: readonly Record[]): string {
  const wanted = settings.partition?.split(',');
  const isOurs = (it: Record) =>
    wanted ? wanted.includes(it.get('PartitionName') ?? '') : it.get('Default') === 'YES';
  const ours = all.filter(isOurs);
  const known = all.map((it) => it.get('PartitionName')).join(', ') || 'none';
  const missing = wanted?.filter((name) => !ours.some((it) => it.get('PartitionName') === name)) ?? [];
  if (missing.length)
    throw new Error(`There is no partition ${missing.join(', ')}. Set partition to one of: ${known}.`);
  if (!ours.length) throw new Error(`No partition is the default. Set partition to one of: ${known}.`);
  const faults: string[] = [];
  for (const it of ours) {
    const name = it.get('PartitionName');
    if (it.get('State') !== 'UP')
      faults.push(`${name} is ${it.get('State')}: scontrol update PartitionName=${name} State=UP`);
    const largest = secondsOf(it.get('MaxTime') ?? '');
    const sold = settings.limits.max_seconds;
    if (largest !== undefined && largest < sold)
      faults.push(
        `${name} ends jobs after ${largest} s (MaxTime), and leases may last ${sold} s: set limits.max_seconds to at most ${largest}, or raise MaxTime`,
      );
  }
  if (faults.length) throw new Error(`${faults.join('; ')}.`);
  return ours.map((it) => `${it.get('PartitionName')} is UP, MaxTime ${it.get('MaxTime')}`).join('; ');
}

/**
 * Returns Slurm's own answer for the job of a chip: `--test-only` examines it like a real one, job_user included, and submits
 * nothing.
 */
async function checkChip(
  slurm: SlurmCommands,
  settings: SlurmSettings,
  name: string,
  nodes: readonly Record[],
  user: User,
  argv: string[],
): Promise<string> {
  const { gres } = settings.chips[name] as SlurmSettings['chips'][string];
  const having = nodes.filter((it) => gres === undefined || hasGres(it.get('Gres') ?? '', gres));
  const where = having
    .map((it) => `${it.get('NodeName')} (${it.get('State')}${it.get('Reason') ? `: ${it.get('Reason')}` : ''})`)
    .join(', ');
  if (gres !== undefined && !having.length)
    throw new Error(
      `No node has ${gres}. Correct chips.${name}.gres, or gres.conf and Gres= of the node; \`scontrol show node\` lists what there is.`,
    );
  const [sbatch, ...rest] = argv as [string, ...string[]];
  const result = await slurm.run([sbatch, '--test-only', ...rest], '#!/bin/sh\n');
  if (result.code === 0)
    return `${wordsOf(result).replace(/^sbatch: /, '')}${gres === undefined ? '' : `; ${gres} is on ${where}`}`;
  throw new Error(
    `Slurm would refuse the job as ${user.name}: ${wordsOf(result)}. Nodes: ${where || 'none'}. Correct chips.${name}, or make the node available.`,
  );
}

/** Checks that a tenant cannot submit jobs of their own: a `--test-only` submission as the job user has to fail. */
async function checkSubmission(slurm: SlurmCommands, user: User, argv: string[]): Promise<string> {
  const [sbatch, ...rest] = argv.filter((it) => !/^--[ug]id=/.test(it)) as [string, ...string[]];
  const result = await slurm.run([sbatch, '--test-only', ...rest], '#!/bin/sh\n', user);
  if (result.code !== 0) return `Slurm refuses what ${user.name} submits: ${wordsOf(result)}`;
  throw new Error(
    `A tenant can submit jobs as ${user.name} that nobody pays and nothing ends. Install docs/job_submit.lua, as docs/backends.md says under "slurm".`,
  );
}

function checkDevices(config: Record): string {
  const plugins = config.get('TaskPlugin') ?? 'unknown';
  if (plugins.includes('task/cgroup') && config.get('ConstrainDevices') === 'yes')
    return `${plugins}, ConstrainDevices=yes`;
  return `TaskPlugin is ${plugins}, ConstrainDevices is ${config.get('ConstrainDevices') ?? 'not set'}: a tenant can open GPUs that are not his. Set TaskPlugin=task/cgroup and ConstrainDevices=yes (cgroup.conf) where tenants do not trust each other`;
}

/** Returns whether `Gres=` of a node, as in `gpu:h100:2(S:0-1),shard:4`, covers what a job requests, as in `gpu:h100:1`. */
function hasGres(of: string, wanted: string): boolean {
  const parse = (text: string) =>
    text.split(',').map((part) => {
      const words = part.replace(/\(.*?\)/g, '').split(':');
      const count = /^\d+$/.test(words.at(-1) ?? '') ? Number(words.pop()) : 1;
      return { name: words[0], type: words[1], count };
    });
  const has = parse(of);
  return parse(wanted).every(({ name, type, count }) => {
    const matching = has.filter((it) => it.name === name && (type === undefined || it.type === type));
    return matching.reduce((sum, it) => sum + it.count, 0) >= count;
  });
}

/** Parses `Name = value`, one a line, as of `scontrol show config`. */
function valuesOf(words: string): Record {
  return new Map(
    words
      .split('\n')
      .map((line) => line.split('='))
      .filter(([name, value]) => value !== undefined && /^\w+\s*$/.test(name as string))
      .map(([name, ...value]) => [(name as string).trim(), value.join('=').trim()]),
  );
}

/** Parses `Name=value …`, one record a line, as of `scontrol --oneliner show`. A value ends where the next name begins. */
function recordsOf(words: string): Record[] {
  return words
    .split('\n')
    .filter((line) => line.includes('='))
    .map((line) => {
      const names = [...line.matchAll(/(?:^|\s)(\w+)=/g)];
      return new Map(
        names.map((it, i) => [it[1] as string, line.slice(it.index + it[0].length, names[i + 1]?.index).trim()]),
      );
    });
}

/**
 * Returns the seconds of a time as Slurm writes it: `UNLIMITED` is undefined, else `[days-]hours:minutes:seconds` (`man
 * slurm.conf`, MaxTime).
 */
function secondsOf(time: string): number | undefined {
  const [, days, hours, minutes, seconds] = /^(?:(\d+)-)?(\d+):(\d+):(\d+)$/.exec(time) ?? [];
  if (hours === undefined) return undefined;
  return ((Number(days ?? 0) * 24 + Number(hours)) * 60 + Number(minutes)) * 60 + Number(seconds);
}
