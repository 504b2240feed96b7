import type { Backend, Ref } from './backend.ts';

/**
 * The processor time that a machine has used, by its own clock since its host was booted. It is read from the machine's control
 * group, or from its processes; `none` where neither is distinguishable from the host's.
 */
export type CpuTime =
  | { source: 'cgroup' | 'processes'; usedSeconds: number; uptimeSeconds: number }
  | { source: 'none' };

const READ_SECONDS = 10;
/** The most that READ_CPU prints. */
export const CPU_BYTES_MAX = 256;

/**
 * Prints `purser-cpu SOURCE VALUE UNIT UPTIME`, with the unit in parts of a second. Commands may see more than their machine, so
 * the mark of the lease chooses the processes:
 * - PURSER_LEASE (local): the processes that have it in their environment;
 * - SLURM_JOB_ID: the job's control group, else the processes that have it in their environment;
 * - a user whose slice the command is in (a pool host): that slice;
 * - a user of a pool host without systemd: the user's processes;
 * - otherwise the machine is a container: its root control group where that is not the host's own, else all processes of its
 *   process namespace.
 * It needs sh and /proc, and grep where a mark is looked for. Linux counts 100 ticks a second for programs (USER_HZ).
 */
export const READ_CPU = `read -r up rest < /proc/uptime || exit 1
say() { echo "purser-cpu $1 $2 $3 $up"; exit 0; }
v1= v2=
while IFS=: read -r number controllers path; do
  case $controllers in
    '') v2=$path ;;
    *cpuacct*) v1=$path ;;
  esac
done < /proc/self/cgroup
own=
group() { # $1: the lease's directory below the root of a hierarchy
  if [ -n "$v1" ]; then
    read -r used < "/sys/fs/cgroup/cpuacct$1/cpuacct.usage" && say cgroup "$used" 1000000000
  elif [ -n "$v2" ]; then
    while read -r name used; do [ "$name" = usage_usec ] && say cgroup "$used" 1000000; done < "/sys/fs/cgroup$1/cpu.stat"
  fi
} 2>/dev/null
processes() { # the names of the lease's directories in /proc
  sum=0
  for entry in $1; do
    { IFS= read -r line < "$entry/stat"; } 2>/dev/null || continue
    set -- \${line##*) }
    sum=$((sum + \${12} + \${13} + \${14} + \${15}))
  done
  say processes "$sum" 100
}
marked() { # everything with the variable $1 in its environment
  command -v grep >/dev/null || say none 0 1
  found=
  for entry in $(grep -lzsxF "$1" /proc/[0-9]*/environ 2>/dev/null); do found="$found \${entry%/environ}"; done
  [ -n "$found" ] || say none 0 1
  processes "$found"
}
path=\${v1:-$v2}
if [ -n "$PURSER_LEASE" ]; then marked "PURSER_LEASE=$PURSER_LEASE"; fi
if [ -n "$SLURM_JOB_ID" ]; then
  case $path in */job_"$SLURM_JOB_ID"/*) group "\${path%%/job_"$SLURM_JOB_ID"/*}/job_$SLURM_JOB_ID" ;; esac
  marked "SLURM_JOB_ID=$SLURM_JOB_ID"
fi
case $USER in
  purser-*)
    case $path in */"$USER.slice"/*) group "\${path%%/"$USER.slice"/*}/$USER.slice" ;; esac
    found=
    for entry in /proc/[0-9]*; do [ -O "$entry" ] && found="$found $entry"; done
    processes "$found"
    ;;
esac
if [ -n "$v1" ]; then
  [ -e /sys/fs/cgroup/cpuacct/release_agent ] || group ''
else
  [ ! -e /sys/fs/cgroup/cgroup.events ] || group ''
fi
processes "$(echo /proc/[0-9]*)"`;

const CPU_LINE = /^purser-cpu (cgroup|processes|none) (\d{1,20}) (\d{1,10}) (\d{1,12}(?:\.\d{1,6})?)$/m;

/**
 * Reads the processor time of a machine by a command inside it. Its tenant can falsify the answer: that only spends their own
 * money. Throws when the machine cannot be asked.
 */
export async function readCpuTime(backend: Backend, ref: Ref): Promise<CpuTime> {
  const order = { command: READ_CPU, timeoutSeconds: READ_SECONDS, streamBytesMax: CPU_BYTES_MAX };
  const { stdout } = await backend.guest.exec(ref, order);
  return cpuTimeIn(stdout.toString('latin1'));
}

/** Returns what READ_CPU has printed. */
export function cpuTimeIn(output: string): CpuTime {
  const [, source, value, unit, uptime] = CPU_LINE.exec(output) ?? [];
  if (source === undefined || source === 'none') return { source: 'none' };
  return {
    source: source as 'cgroup' | 'processes',
    usedSeconds: Number(value) / Number(unit),
    uptimeSeconds: Number(uptime),
  };
}

/**
 * Returns the part of one processor that a machine has used between two readings, 1 for the whole; undefined where they cannot be
 * compared. It can be below 0, as processes may take their time with them when they end.
 */
export function cpuShare(before: CpuTime, after: CpuTime): number | undefined {
  if (before.source === 'none' || after.source !== before.source) return undefined;
  const elapsed = after.uptimeSeconds - before.uptimeSeconds;
  return elapsed > 0 ? (after.usedSeconds - before.usedSeconds) / elapsed : undefined;
}
