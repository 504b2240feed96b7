import type { Machine } from '../../backend.ts';

/** A lease as a job: its script, and how `squeue` tells of it. */

/** Where the job keeps its things: HOME and TMPDIR of all that runs in it. */
export const directoryOf = (jobId: string) => `/tmp/purser-lease-${jobId}`;

/**
 * Removes what earlier jobs of its user left, and does nothing until it is told to end. Then all that still carries the job's number in its environment is killed, also
 * where the cluster tracks processes by descent and a daemon has slipped away, and the job's directory is removed.
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
  /** When Slurm ends it: known only of one that runs. */
  endsAt: number | undefined;
  /** How many GPUs it asked for. */
  gpus: number;
};

/**
 * The output format for `squeue`. A job's name is its owner's to choose, line breaks included: a mark that nobody can
 * know beforehand begins each record, and the name stands last.
 */
export const formatOf = (mark: string) => `${mark}|%A|%T|%U|%V|%e|%b|%j`;

const RECORD = /^\|(\d+)\|([A-Z_]+)\|(\d+)\|(\d+)\|(\d+|N\/A|NONE)\|([^|\n]*)\|(.*)\n$/s;

/** The GPUs in what `squeue` says of a job's resources, as in `gres:gpu:h100:2,gres:shard:1`. */
function gpusOf(gres: string): number {
  const counts = [...gres.matchAll(/(?:^|,)(?:gres[:/])?gpu(?::[^,:=]*[^,:=\d][^,:=]*)?(?:[:=](\d+))?(?=,|$)/g)];
  return counts.reduce((sum, [, count]) => sum + Number(count ?? 1), 0);
}

/** Reads what `squeue` said; anything that is not exactly a list of jobs is an error. */
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
