import { parseJson } from '../../base/parse-json.ts';
import type { Backend } from '../../compute/backend.ts';
import type { Resource } from '../../ledger/resource.ts';
import type { HttpApp } from '../endpoint.ts';
import { callGuest } from '../routes/guest-call.ts';

/** What a sandbox uses at the moment, as its own kernel tells. */

const SECONDS = 10;
const OUTPUT_BYTES_MAX = 4096;
const KIB = 1024;

/**
 * Prints the microseconds of processor time that the control group has used, twice, half a second apart; its bytes of memory, those
 * of its cache, and its limit; then the line of `df` of the root.
 */
const MEASURE = `used() { while read -r name value; do [ "$name" != usage_usec ] || echo "cpu $value"; done </sys/fs/cgroup/cpu.stat; }
used
sleep 0.5 || sleep 1
used
echo "cores $(nproc)"
echo "memory $(cat /sys/fs/cgroup/memory.current) $(cat /sys/fs/cgroup/memory.max)"
while read -r name value; do [ "$name" != file ] || echo "cache $value"; done </sys/fs/cgroup/memory.stat
df -Pk / | tail -n 1`;

type Metric = {
  timestamp: string;
  timestampUnix: number;
  cpuCount: number;
  cpuUsedPct: number;
  memUsed: number;
  memTotal: number;
  memCache: number;
  diskUsed: number;
  diskTotal: number;
};

/** Measures a running machine; undefined where its kernel does not tell. */
export async function readMetrics(
  app: HttpApp,
  resource: Resource,
  backend: Backend,
  ref: string,
): Promise<Metric | undefined> {
  const began = performance.now();
  const order = { command: MEASURE, timeoutSeconds: SECONDS, streamBytesMax: OUTPUT_BYTES_MAX };
  const { stdout } = await callGuest(app, resource, SECONDS, () => backend.guest.exec(ref, order));
  return metricOf(stdout.toString(), app.clock.now(), (performance.now() - began) * 1000, resource);
}

/** Reads the output of `MEASURE`, which took `microseconds`. */
function metricOf(
  output: string,
  now: number,
  microseconds: number,
  { spec }: Pick<Resource, 'spec'>,
): Metric | undefined {
  const size = parseJson(spec) as { cpus?: number; memory_gib?: number };
  const [first, second] = [...output.matchAll(/^cpu (\d+)$/gm)].map(([, it]) => Number(it));
  const memory = /^memory (\d+) (\d+|max)$/m.exec(output);
  const disk = /^\S+\s+(\d+)\s+(\d+)\s+\d+\s+\d+%/m.exec(output);
  if (first === undefined || second === undefined || !memory || !disk) return undefined;
  const cores = Number(/^cores (\d+)$/m.exec(output)?.[1] ?? 1);
  const limit = memory[2] === 'max' ? 0 : Number(memory[2]);
  return {
    timestamp: new Date(now * 1000).toISOString(),
    timestampUnix: now,
    cpuCount: Math.max(1, Math.round(size.cpus ?? cores)),
    cpuUsedPct: Math.round(((second - first) / microseconds) * 1e4) / 100,
    memUsed: Number(memory[1]),
    memTotal: size.memory_gib === undefined ? limit : Math.round(size.memory_gib * KIB ** 3),
    memCache: Number(/^cache (\d+)$/m.exec(output)?.[1] ?? 0),
    diskUsed: Number(disk[2]) * KIB,
    diskTotal: Number(disk[1]) * KIB,
  };
}
