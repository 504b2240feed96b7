import type { Ref, Usage } from '../../backend.ts';
import type { Engine } from './engine.ts';

/** The parts of the answer to `GET /containers/ID/stats` that are read. Without a control group an engine leaves them empty. */
type Statistics = {
  /** The time of the reading. */
  read?: string;
  pids_stats?: { current?: number; limit?: number } | null;
  cpu_stats?: { cpu_usage?: { total_usage?: number } | null } | null;
  memory_stats?: { usage?: number; limit?: number; stats?: Record<string, number> | null } | null;
  networks?: Record<string, { rx_bytes?: number; tx_bytes?: number }> | null;
};

const MILLISECONDS = 10_000;

async function askFor({ ask, docker }: Engine, ref: Ref): Promise<Statistics> {
  // Without `one-shot`, Docker waits a second for a second reading.
  const answer = await ask(
    'stats',
    (abortSignal) => {
      const options = { stream: false, 'one-shot': true, abortSignal } as const;
      return docker.getContainer(ref).stats(options as { stream: false });
    },
    MILLISECONDS,
  );
  return answer as Statistics;
}

/**
 * Reads what the kernel of the engine's machine counts of a container, and by what limits: seconds, bytes, processes. 0 where it
 * counts or limits nothing.
 */
export async function readCounters(engine: Engine, ref: Ref) {
  const { read = '', cpu_stats, memory_stats, pids_stats } = await askFor(engine, ref);
  return {
    at: Date.parse(read) / 1000,
    cpuSeconds: (cpu_stats?.cpu_usage?.total_usage ?? 0) / 1e9,
    memoryMaxBytes: memory_stats?.limit ?? 0,
    processes: pids_stats?.current ?? 0,
    processesMax: pids_stats?.limit ?? 0,
  };
}

/** Asks the engine what a container uses. One without a network has no interfaces to count. */
export async function readStatistics(engine: Engine, ref: Ref): Promise<Usage> {
  const { cpu_stats, memory_stats, networks } = await askFor(engine, ref);
  const nanoseconds = cpu_stats?.cpu_usage?.total_usage;
  const { usage: memory, stats } = memory_stats ?? {};
  // The names of control groups of version 1 and of version 2.
  const droppable = stats?.total_inactive_file ?? stats?.inactive_file ?? 0;
  const interfaces = Object.values(networks ?? {});
  return {
    cpuSeconds: nanoseconds ? nanoseconds / 1e9 : undefined,
    memoryBytes: memory ? Math.max(0, memory - droppable) : undefined,
    networkBytes: interfaces.length
      ? interfaces.reduce((sum, { rx_bytes = 0, tx_bytes = 0 }) => sum + rx_bytes + tx_bytes, 0)
      : undefined,
  };
}
