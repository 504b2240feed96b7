import { parseJson } from '../../base/parse-json.ts';
import type { Backend } from '../../compute/backend.ts';
import type { Resource } from '../../ledger/resource.ts';
import type { HttpApp } from '../endpoint.ts';
import { callGuest } from '../routes/guest-call.ts';

/** Returns what a sandbox uses now, by its own kernel. */

const SECONDS = 10;
const OUTPUT_BYTES_MAX = 4096;
const KIB = 1024;

/**
 * Prints the microseconds of processor time of the control group, twice, half a second apart; then its bytes of memory, its limit
 * and its cache; then the line of `df` of the root. Reads control groups of both versions.
 */
const MEASURE = `at=/sys/fs/cgroup
if [ -r $at/memory.current ]; then
  used() { while read -r name value; do [ "$name" != usage_usec ] || echo "cpu $value"; done <$at/cpu.stat; }
  memory="$at/memory.current $at/memory.max"
  statistics=$at/memory.stat cache=file
else
  used() { read -r value <$at/cpuacct/cpuacct.usage && echo "cpu $((value / 1000))"; }
  memory="$at/memory/memory.usage_in_bytes $at/memory/memory.limit_in_bytes"
  statistics=$at/memory/memory.stat cache=total_cache
fi
used
sleep 0.5 || sleep 1
used
echo "cores $(nproc)"
echo memory $(cat $memory)
while read -r name value; do [ "$name" != "$cache" ] || echo "cache $value"; done <$statistics
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

/** Measures a running machine; undefined where its kernel does not report it. */
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
