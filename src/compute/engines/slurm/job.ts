import type { Machine } from '../../backend.ts';
import { LAUNCHER, PROCESSES } from '../../machine/process.ts';
import { areAllDown, nodesDown, type SlurmNode } from './nodes.ts';

/** A lease as a job: its script, and how to read its state from `squeue`. */

/** The job's directory: HOME and TMPDIR of everything that runs in it. */
export const directoryOf = (jobId: string) => `/tmp/purser-lease-${jobId}`;

/**
 * The seconds for which a job outlives its end while the controller cannot be asked. It covers a restart of the controller,
 * and clocks that differ a little.
 */
export const CONTROLLER_LOST_SECONDS = 300;

/** Signals a job's script that its end was moved. A process that does not expect this signal ignores it (signal(7)). */
export const MOVED_SIGNAL = 'URG';

/**
 * The environment of commands in a job, and where they start, in the directory `$HOME`. A command begins as Slurm left it.
 */
export const SURROUNDINGS = `export TMPDIR="$HOME" SHELL=/bin/sh LANG=C.UTF-8
unset SLURM_CONF LC_ALL`;

/**
 * The job's script. It removes the remains of earlier jobs of its user, then waits until it has to end. At the end it kills every
 * process with the job's number in its environment, including daemons that escaped a cluster that tracks processes by descent, and
 * removes the job's directory. With PURSER_ALONE it kills every process of its user.
 *
 * Slurm's time limit is enforced by the controller alone. So the script asks the controller for the job's end: at the start, on a
 * signal, and when that end has come. If the controller cannot be asked then, for `lostSeconds`, the script ends the job itself. If
 * it never learnt an end (Slurm's programs are not on the node), it waits.
 *
 * It is the launcher of background processes: Slurm ends a step with its first process, where it tracks by control groups.
 */
export const scriptOf = (lostSeconds: number) => `#!/bin/sh
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
  # What has cleared its environment is known by its user, where that has no other purpose.
  [ -z "$PURSER_ALONE" ] || kill -s KILL -- -1 2>/dev/null
  exit 0
}
end= give_up=
learn_end() {
  answer=$(TZ=UTC SLURM_TIME_FORMAT=%s squeue --noheader --local --jobs="$SLURM_JOB_ID" --format=%e 2>/dev/null)
  case $answer in ''|*[!0-9]*) return 1 ;; esac
  end=$answer give_up=
}
start_processes() {
  for waits in "$directory"/${PROCESSES}/*/waits; do
    [ -f "$waits" ] && rm -f "$waits" || continue
    (
      export HOME="$directory"
      ${SURROUNDINGS}
      umask 022
      cd "$HOME" && exec setsid /bin/sh "\${waits%/waits}/keeper" "\${waits%/waits}"
    ) </dev/null >/dev/null 2>&1 &
  done
}
trap finish TERM INT
trap start_processes USR1
trap learn_end ${MOVED_SIGNAL}
# What a job left here whose script was killed. One that lives has its number in an environment.
for left in ${directoryOf('[0-9]*')}; do
  [ -O "$left" ] && [ ! -L "$left" ] || continue
  grep -qszx "SLURM_JOB_ID=\${left##*-}" /proc/[0-9]*/environ
  case $? in 1|2) rm -rf "$left" ;; esac
done
mkdir -p "$directory" && [ -O "$directory" ] || exit 1
echo "$$" >"$directory/${LAUNCHER}"
while :; do
  now=$(date +%s) nap=60
  # While it answers, ending the job is the controller's.
  if { [ -z "$end" ] || [ "$now" -ge "$end" ]; } && ! learn_end && [ -n "$end" ]; then
    give_up=\${give_up:-$((now + ${lostSeconds}))}
    [ "$now" -lt "$give_up" ] || finish
  fi
  if [ -n "$end" ]; then
    ahead=$((end - now))
    [ "$ahead" -ge "$nap" ] || nap=$ahead
    [ "$nap" -gt 0 ] || nap=${Math.min(15, lostSeconds)}
  fi
  sleep "$nap" & sleeper=$!
  wait "$sleeper"
  kill "$sleeper" 2>/dev/null
done
`;

/** Ends a command unless the job's script has begun: Slurm may start it seconds after the job, and never where that is cancelled. */
export const REFUSE_WITHOUT_SCRIPT = `[ -s "$HOME/${LAUNCHER}" ] || { echo 'the script of its job has not begun' >&2; exit 1; }`;

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
  // Another cluster of the federation has started it, where Purser reaches nothing. This one passes a cancellation on.
  REVOKED: 'ended',
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
  TIMEOUT: 'gone',
};

export type SlurmJob = {
  id: string;
  uid: number;
  name: string;
  state: Machine['state'] | 'gone';
  submittedAt: number;
  /** The time at which Slurm ends it; known only while it runs. */
  endsAt: number | undefined;
  /** The number of GPUs that it requested. */
  gpus: number;
  /** Slurm's reason why a waiting job does not run. */
  reason: string | undefined;
};

/**
 * Returns the output format for `squeue`. A job's owner may choose any name, line breaks included, and a reason may be free text of
 * an administrator; so an unguessable mark precedes each record and its name.
 */
export const formatOf = (mark: string) => `${mark}|%A|%T|%U|%V|%e|%b|%r${mark}|%j`;

const RECORD = /^\|(\d+)\|([A-Z_]+)\|(\d+)\|(\d+)\|(\d+|N\/A|NONE)\|([^|\n]*)\|(.*)$/s;
const NAME = /^\|(.*)\n$/s;

/** Returns the number of GPUs in a job's resources as they are ordered, or as `squeue` prints them: `gres:gpu:h100:2,gres:shard:1`. */
export function gpusOf(gres: string): number {
  const counts = [...gres.matchAll(/(?:^|,)(?:gres[:/])?gpu(?::[^,:=]*[^,:=\d][^,:=]*)?(?:[:=](\d+))?(?=,|$)/g)];
  return counts.reduce((sum, [, count]) => sum + Number(count ?? 1), 0);
}

/** Parses the output of `squeue`. Throws on anything that is not exactly a list of jobs. */
export function parseJobs(output: string, mark: string): SlurmJob[] {
  const [before, ...parts] = output.split(mark);
  if (before !== '') throw new Error(`squeue said what cannot be read: ${JSON.stringify(before?.slice(0, 200))}`);
  return Array.from({ length: Math.ceil(parts.length / 2) }, (_, i) => {
    const [record = '', rest = ''] = parts.slice(2 * i, 2 * i + 2);
    const fields = RECORD.exec(record);
    const name = NAME.exec(rest)?.[1];
    const state = fields ? STATES[fields[2] as string] : undefined;
    if (!fields || name === undefined || !state)
      throw new Error(`squeue said a line that cannot be read: ${JSON.stringify((record + rest).slice(0, 200))}`);
    const [, id, , uid, submittedAt, endsAt, gres, reason] = fields as unknown as RecordFields;
    const ends = state === 'running' ? Number(endsAt) : undefined;
    if (Number.isNaN(ends)) throw new Error(`squeue tells no end of job ${id}, which runs: ${endsAt}`);
    return {
      id,
      uid: Number(uid),
      name,
      state,
      submittedAt: Number(submittedAt),
      endsAt: ends,
      gpus: gpusOf(gres),
      reason: state === 'provisioning' ? reason : undefined,
    };
  });
}
type RecordFields = [string, string, string, string, string, string, string, string];

/**
 * Descriptions for tenants of why a job waits, by the beginning of Slurm's reason (`man squeue`, JOB REASON CODES). Slurm's own
 * words may name nodes.
 */
const WAITS: [reason: RegExp, words: string][] = [
  [/^(None)?$/, 'it waits for the scheduler to look at it'],
  [/^(Resources|Licenses)$/, 'it waits until what it needs is free'],
  [/^Priority$/, 'it waits behind jobs of a higher priority'],
  [/^(Nodes required|ReqNodeNotAvail|NodeDown|Reservation)/, 'the nodes that it needs are down or reserved'],
  [/^Partition/, 'its queue takes no such jobs at the moment'],
  [/^(QOS|Assoc|Max)|Limit/, 'a limit of the cluster is reached'],
  [/^JobHeld/, 'an administrator of the cluster holds it'],
];
/** Returns why a job waits, in words for its tenant. `nodes` are those that it may run on, as far as they are known. */
export function waitsFor(reason: string, nodes: readonly SlurmNode[] = []): string {
  if (areAllDown(nodes)) return 'every node that it may run on is down';
  const words = WAITS.find(([it]) => it.test(reason))?.[1] ?? 'it waits in the queue of the cluster';
  return reason === 'Resources' && nodesDown(nodes).length ? `${words}, and some nodes are down` : words;
}
