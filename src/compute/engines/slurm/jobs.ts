import { randomBytes } from 'node:crypto';
import type { Machine, Owned } from '../../backend.ts';
import { type SlurmCommands, type User, wordsOf } from './command.ts';
import { formatOf, parseJobs, type SlurmJob, waitsFor } from './job.ts';
import type { SlurmNode } from './nodes.ts';
import type { RunningJob } from './step.ts';
import type { JobUsers } from './user.ts';

const STRANGER_NAME_CHARACTERS_MAX = 100;
const NO_SUCH_JOB = /Invalid job id specified/;

/** Lists the jobs of the job users, and ends those of leases. */
export function createJobs(slurm: SlurmCommands, users: JobUsers) {
  /** Lists jobs of any user; undefined when the controller knows no job of this number. */
  async function jobs(filter: string): Promise<SlurmJob[] | undefined> {
    const mark = randomBytes(12).toString('hex');
    const flags = ['--noheader', '--local', '--states=all', `--format=${formatOf(mark)}`];
    const result = await slurm.run(['squeue', filter, ...flags]);
    if (result.code === 0 && result.stderr === '') return parseJobs(result.stdout, mark);
    if (NO_SUCH_JOB.test(result.stderr)) return undefined;
    throw new Error(`squeue failed: ${wordsOf(result)}`);
  }

  /** Returns all jobs of the job users that are not gone. Other users' jobs do not count: any user may give a job any name. */
  async function liveJobs(): Promise<SlurmJob[]> {
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
    const result = await slurm.run(['scancel', ...what]);
    if (result.code !== 0 && !/Invalid job id specified|already completing or completed/.test(result.stderr))
      throw new Error(`scancel failed: ${wordsOf(result)}`);
  }

  /**
   * Returns the job of a reference, or undefined when the controller has none that could still run. A cluster that lost its state
   * numbers its jobs from 1 again, and an owner may rename a job: a live job that does not match is not ours to end, and does not
   * prove that ours is gone.
   */
  async function look(ref: string): Promise<SlurmJob | undefined> {
    const { jobId, tag } = parseRef(ref);
    const [job, ...others] = (await jobs(`--jobs=${jobId}`)) ?? [];
    if (!job || (job.state === 'gone' && others.length === 0)) return undefined;
    const isOurs = (await users.all()).some(({ uid }) => uid === job.uid);
    if (others.length > 0 || job.id !== jobId || !isOurs || job.name !== tag)
      throw new Error(`job ${jobId} is there, but it is not ${tag} of one of our users any more`);
    return job;
  }

  /** Returns the job and its user, if it is still this lease's. */
  async function running(ref: string): Promise<RunningJob> {
    const job = await look(ref);
    if (job?.state !== 'running') throw new Error(`job ${parseRef(ref).jobId} does not run`);
    const user = (await users.all()).find(({ uid }) => uid === job.uid) as User;
    return { id: job.id, user };
  }

  return { look, running, list, usersWithJobs, strangers, endStranger, cancel };
}
export type SlurmJobs = ReturnType<typeof createJobs>;

/** Returns the reference of a job. It names the job and its user, so that a job number alone is never trusted. */
export const refOf = (jobId: string, tag: string) => `${jobId}:${tag}`;
function parseRef(ref: string): { jobId: string; tag: string } {
  const [, jobId, tag] = /^(\d+):(.+)$/.exec(ref) ?? [];
  if (jobId === undefined || tag === undefined) throw new Error(`not the reference of a job: ${ref}`);
  return { jobId, tag };
}

/** Describes a job as a machine. `nodes` are those that it may run on, as far as they are known. */
export function machineOf({ id, name, state, endsAt, reason }: SlurmJob, nodes?: readonly SlurmNode[]): Machine {
  if (state === 'gone') throw new Error('a job that is gone is no machine');
  return {
    ref: refOf(id, name),
    state,
    ...(endsAt === undefined ? {} : { deadline: endsAt }),
    ...(reason === undefined ? {} : { note: `Slurm says: ${reason}`, waitsFor: waitsFor(reason, nodes) }),
  };
}
