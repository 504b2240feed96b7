import type { Ref, Usage } from '../../backend.ts';
import type { Engine } from './engine.ts';

/** The parts of the answer to `GET /containers/ID/stats` that are read. Without a control group an engine leaves them empty. */
type Statistics = {
  cpu_stats?: { cpu_usage?: { total_usage?: number } | null } | null;
  memory_stats?: { usage?: number; stats?: Record<string, number> | null } | null;
  networks?: Record<string, { rx_bytes?: number; tx_bytes?: number }> | null;
};

const MILLISECONDS = 10_000;

/** Asks the engine what a container uses. One without a network has no interfaces to count. */
export async function readStatistics({ ask, docker }: Engine, ref: Ref): Promise<Usage> {
  // Without `one-shot`, Docker waits a second for a second reading.
  const answer = await ask(
    'stats',
    (abortSignal) => {
      const options = { stream: false, 'one-shot': true, abortSignal } as const;
      return docker.getContainer(ref).stats(options as { stream: false });
    },
    MILLISECONDS,
  );
  const { cpu_stats, memory_stats, networks } = answer as Statistics;
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
