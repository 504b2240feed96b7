import type { Ref, Usage } from '../../backend.ts';
import type { LxdApi } from './api.ts';

/** The parts of the answer to `GET /1.0/instances/NAME/state` that are read. 0 or -1 where LXD does not know. */
type InstanceState = {
  cpu?: { usage?: number } | null;
  memory?: { usage?: number } | null;
  /** Of storage pools that count what an instance uses. */
  disk?: Record<string, { usage?: number }> | null;
  network?: Record<string, { type?: string; counters?: { bytes_received?: number; bytes_sent?: number } }> | null;
};

const MILLISECONDS = 10_000;
/** Maximum size of an answer, which the agent in a virtual machine writes: its tenant may be root there. */
const BYTES_MAX = 1024 * 1024;

const known = (value: number | undefined) => (value !== undefined && value > 0 ? value : undefined);

/** Asks the server what an instance uses. Its memory includes its whole file cache: LXD does not report the parts. */
export async function readUsage(lxd: LxdApi, ref: Ref): Promise<Usage> {
  const options = { milliseconds: MILLISECONDS, bytesMax: BYTES_MAX };
  const state = await lxd.ask<InstanceState>('GET', `/1.0/instances/${ref}/state`, undefined, options);
  const nanoseconds = known(state.cpu?.usage);
  const interfaces = Object.values(state.network ?? {}).filter(({ type }) => type !== 'loopback');
  return {
    cpuSeconds: nanoseconds && nanoseconds / 1e9,
    memoryBytes: known(state.memory?.usage),
    diskBytes: known(state.disk?.root?.usage),
    networkBytes: interfaces.length
      ? interfaces.reduce(
          (sum, { counters: it }) => sum + (known(it?.bytes_received) ?? 0) + (known(it?.bytes_sent) ?? 0),
          0,
        )
      : undefined,
  };
}
