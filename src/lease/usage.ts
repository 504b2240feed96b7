import type { Backend, Ref, Usage } from '../compute/backend.ts';
import { readCpuTime } from '../compute/cpu-time.ts';
import { createRecent, type Recent } from '../compute/kit/recent.ts';
import type { Resource } from '../ledger/resource.ts';
import type { LeaseApp } from './create.ts';

/** The last readings of machines, by lease; those of ended leases are forgotten. */
export type Usages = Map<string, Recent<Usage>>;

/** The time that an answer waits for a reading: an engine that does not answer must not keep the state of a lease from its tenant. */
const WAIT_MILLISECONDS = 1000;
/** A command inside a machine costs more than a question to an engine: a process, and on Slurm a step of the job. */
const KEPT_INSIDE_MILLISECONDS = 15_000;

/**
 * Returns what the machine of a running lease uses, as of a few seconds ago. There is one reading of a lease at a time, however many
 * ask for it. Undefined for a lease that does not run, and where nothing has answered within a second. Never throws.
 */
export async function usageOf(app: LeaseApp, row: Resource): Promise<Usage | undefined> {
  const { id, ref, status, endWanted } = row;
  const backend = app.slots.backendOf(row);
  if (!backend || ref === null || status !== 'running' || endWanted !== null) return undefined;
  let recent = app.usages.get(id);
  if (!recent) {
    // The backend of the moment: a change of the configuration opens another.
    const read = async () => readUsage(app.slots.backendOf(row) ?? backend, ref);
    recent = createRecent(read, backend.guest.usage ? undefined : KEPT_INSIDE_MILLISECONDS);
    app.usages.set(id, recent);
  }
  return recent.get(WAIT_MILLISECONDS);
}

/** Asks the engine, or else a command inside the machine, whose answer its tenant can falsify. */
async function readUsage(backend: Backend, ref: Ref): Promise<Usage> {
  if (backend.guest.usage) return backend.guest.usage(ref);
  const cpu = await readCpuTime(backend, ref);
  return cpu.source === 'none' ? {} : { cpuSeconds: cpu.usedSeconds };
}

/** Begins to read what a lease uses, for metrics, where the engine itself tells it. */
export function noteUsage(app: LeaseApp, row: Resource): void {
  if (app.slots.backendOf(row)?.guest.usage) void usageOf(app, row);
}
