import type { Machine } from '../../backend.ts';

/** A lease as a job: its script, and how to read its state from `squeue`. */

/** The job's directory: HOME and TMPDIR of everything that runs in it. */
export const directoryOf = (jobId: string) => `/tmp/purser-lease-${jobId}`;

/**
 * The job's script. It removes what earlier jobs of its user left, then waits until it is told to end. At the end it
 * kills every process with the job's number in its environment, including daemons that escaped a cluster which tracks
 * processes by descent, and removes the job's directory.
 */
export const SCRIPT = `#!/bin/sh
umask 077
directory="${directoryOf('$SLURM_JOB_ID')}"
finish() {
  trap '' TERM INT
  for round in 1 2 3; do
    for entry in $(grep -lszx "SLURM_JOB_ID=$SLURM_JOB_ID" /proc/[0-9]*/environ); do
      process=\${entry#/proc/}
      process=\${process%/environ}
      [ "$process" = "$$" ] || kill -KILL "$process" 2>/dev/null
    done
    rm -rf "$directory"
  done
  exit 0
}
trap finish TERM INT
# What a job left here whose script was killed. One that lives has its number in an environment.
for left in ${directoryOf('[0-9]*')}; do
  [ -O "$left" ] && [ ! -L "$left" ] || continue
  grep -qszx "SLURM_JOB_ID=\${left##*-}" /proc/[0-9]*/environ
  case $? in 1|2) rm -rf "$left" ;; esac
done
mkdir -p "$directory" && [ -O "$directory" ] || exit 1
while :; do sleep 60 & wait "$!"; done
`;

/** Every state of a job (`man squeue`, JOB STATE CODES); `gone` needs nothing any more. */
const STATES: Record<string, Machine['state'] | 'gone'> = {
  PENDING: 'provisioning',
  CONFIGURING: 'provisioning',
  REQUEUED: 'provisioning',
  REQUEUE_FED: 'provisioning',
  REQUEUE_HOLD: 'provisioning',
  RESV_DEL_HOLD: 'provisioning',
  SPECIAL_EXIT: 'provisioning',
  RUNNING: 'running',
  RESIZING: 'running',
  SIGNALING: 'running',
  STOPPED: 'running',
  SUSPENDED: 'running',
  COMPLETING: 'ended',
  STAGE_OUT: 'ended',
  BOOT_FAIL: 'gone',
  CANCELLED: 'gone',
  COMPLETED: 'gone',
  DEADLINE: 'gone',
  FAILED: 'gone',
  LAUNCH_FAILED: 'gone',
  NODE_FAIL: 'gone',
  OUT_OF_MEMORY: 'gone',
  PREEMPTED: 'gone',
  RECONFIG_FAIL: 'gone',
  REVOKED: 'gone',
  TIMEOUT: 'gone',
};

export type Job = {
  id: string;
  uid: number;
  name: string;
  state: Machine['state'] | 'gone';
  submittedAt: number;
  /** When Slurm ends it; known only while it runs. */
  endsAt: number | undefined;
  /** How many GPUs it asked for. */
  gpus: number;
};

/**
 * The output format for `squeue`. A job's owner may choose any name, line breaks included, so each record begins with
 * an unguessable mark, and the name comes last.
 */
export const formatOf = (mark: string) => `${mark}|%A|%T|%U|%V|%e|%b|%j`;

const RECORD = /^\|(\d+)\|([A-Z_]+)\|(\d+)\|(\d+)\|(\d+|N\/A|NONE)\|([^|\n]*)\|(.*)\n$/s;

/** The GPUs in what `squeue` says of a job's resources, as in `gres:gpu:h100:2,gres:shard:1`. */
function gpusOf(gres: string): number {
  const counts = [...gres.matchAll(/(?:^|,)(?:gres[:/])?gpu(?::[^,:=]*[^,:=\d][^,:=]*)?(?:[:=](\d+))?(?=,|$)/g)];
  return counts.reduce((sum, [, count]) => sum + Number(count ?? 1), 0);
}

/** Parses the output of `squeue`. Throws on anything that is not exactly a list of jobs. */
export function parseJobs(said: string, mark: string): Job[] {
  const [before, ...records] = said.split(mark);
  if (before !== '') throw new Error(`squeue said what cannot be read: ${JSON.stringify(before?.slice(0, 200))}`);
  return records.map((record) => {
    const fields = RECORD.exec(record);
    const state = fields ? STATES[fields[2] as string] : undefined;
    if (!fields || !state)
      throw new Error(`squeue said a line that cannot be read: ${JSON.stringify(record.slice(0, 200))}`);
    const [, id, , uid, submittedAt, endsAt, gres, name] = fields as unknown as [
      string,
      string,
      string,
      string,
      string,
      string,
      string,
      string,
    ];
    const ends = state === 'running' ? Number(endsAt) : undefined;
    if (Number.isNaN(ends)) throw new Error(`squeue tells no end of job ${id}, which runs: ${endsAt}`);
    return { id, uid: Number(uid), name, state, submittedAt: Number(submittedAt), endsAt: ends, gpus: gpusOf(gres) };
  });
}
