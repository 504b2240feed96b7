import type { ExecOrder } from '../backend.ts';
import { GIB } from './claim.ts';

/** Prints the limits of the control group that a container sees as its own, of version 2 or 1: a name and a number each. */
const SCRIPT = `limit() {
  for file in "/sys/fs/cgroup/$2" "/sys/fs/cgroup/$3"; do
    if [ -r "$file" ]; then read -r value rest < "$file" && echo "$1 $value"; return; fi
  done
}
limit memory memory.max memory/memory.limit_in_bytes
limit processes pids.max pids/pids.max
limit CPU cpu.max cpu/cpu.cfs_quota_us`;

export const READ_LIMITS: ExecOrder = { command: SCRIPT, timeoutSeconds: 10, streamBytesMax: 4096 };

/**
 * Returns the limit that is missing in the output of `READ_LIMITS`, if any. Some engines claim to limit memory and do not: rootless
 * Podman with control groups of version 1. An unreadable limit counts as missing.
 */
export function findUnlimited(printed: string, memoryGib: number): string | undefined {
  const isSet = (name: string, value: string) => {
    const limit = Number(value);
    if (!(limit > 0)) return false; // "max", or -1 in version 1.
    return name !== 'memory' || limit <= Math.ceil(memoryGib * GIB);
  };
  const read = new Map(
    [...printed.matchAll(/^(memory|processes|CPU) (\S+)$/gm)].map(([, name = '', value = '']) => [name, value]),
  );
  const missing = ['memory', 'processes', 'CPU'].filter((name) => !isSet(name, read.get(name) ?? ''));
  if (!missing.length) return undefined;
  return `inside it nothing limits its ${missing.join(' and ')}, whatever the engine says: enable these cgroup controllers for the engine's user (cgroup v2 where it is rootless)`;
}
