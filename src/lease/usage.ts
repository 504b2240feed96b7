import { parseJson } from '../base/parse-json.ts';
import type { Backend, Ref, Spec, Usage } from '../compute/backend.ts';
import { GUEST_USAGE_SECONDS, readGuestUsage } from '../compute/guest-usage.ts';
import { createRecent, type Recent } from '../compute/kit/recent.ts';
import type { Resource } from '../ledger/resource.ts';
import type { LeaseApp } from './create.ts';
import { isMeasured } from './keep-moments.ts';

/**
 * The last readings of a machine. They are kept apart: a tenant can delay the command inside and falsify its answer, but not the
 * engine's.
 */
type Readings = {
  engine: Recent<Usage>;
  guest: Recent<Usage>;
  /** When the latter was last read for metrics, by `performance.now()`. */
  notedAt: number;
};
/** The last readings of machines, by lease; those of ended leases are forgotten. */
export type Usages = Map<string, Readings>;

/** The time that an answer waits for a reading: an engine that does not answer must not keep the state of a lease from its tenant. */
const WAIT_MILLISECONDS = 1000;
/** A command inside a machine costs more than a question to an engine: a process, and on Slurm a step of the job. */
const KEPT_GUEST_MILLISECONDS = 15_000;
/** Slurm counts the steps of a job, and refuses more than 40,000 of them (MaxStepCount). */
const NOTED_MILLISECONDS = 5 * 60_000;
/** A driver that hangs keeps its tool, which then cannot be killed: so it is left alone for a while. */
const HUNG_MILLISECONDS = 10 * 60_000;

/**
 * Returns what the machine of a running lease uses, as of a few seconds ago; undefined for one that does not run. Leaves out what
 * takes longer than a second. Each source of a lease is read once at a time, for all callers. Never throws.
 */
export async function usageOf(app: LeaseApp, row: Resource): Promise<Usage | undefined> {
  const readings = readingsOf(app, row);
  if (!readings) return undefined;
  const [engine, guest] = await Promise.all([
    readings.engine.get(WAIT_MILLISECONDS),
    readings.guest.get(WAIT_MILLISECONDS),
  ]);
  return { ...engine, ...guest };
}

/** Begins to read what a lease uses, for metrics: where the engine itself reports it, and the use of GPUs now and then. */
export function noteUsage(app: LeaseApp, row: Resource): void {
  const readings = readingsOf(app, row);
  if (!readings) return;
  void readings.engine.get(WAIT_MILLISECONDS);
  if (performance.now() - readings.notedAt < NOTED_MILLISECONDS || gpusOf(app, row) === 0) return;
  readings.notedAt = performance.now();
  void readings.guest.get(WAIT_MILLISECONDS);
}

function readingsOf(app: LeaseApp, row: Resource): Readings | undefined {
  const { id, ref, status, endWanted } = row;
  const backend = app.slots.backendOf(row);
  if (!backend || ref === null || status !== 'running' || endWanted !== null) return undefined;
  const known = app.usages.get(id);
  if (known) return known;
  // The backend of the moment: a change of the configuration opens another.
  const ofTheMoment = () => app.slots.backendOf(row) ?? backend;
  const readGuest = createGuestReading(ref);
  const readings = {
    engine: createRecent(async () => (await ofTheMoment().guest.usage?.(ref)) ?? {}),
    guest: createRecent(() => readGuest(ofTheMoment(), gpusOf(app, row)), KEPT_GUEST_MILLISECONDS),
    notedAt: Number.NEGATIVE_INFINITY,
  };
  app.usages.set(id, readings);
  return readings;
}

/**
 * Returns the number of GPUs to read: those that a lease was sold with; 0 where the configuration no longer has its offer. None
 * while its keep measures: where no process holds the driver, nvidia-smi starts it first, and its seconds of processor time would
 * make an idle machine busy, and buy a step.
 */
function gpusOf({ slots, clock, ledger }: LeaseApp, row: Resource): number {
  try {
    const gpus = slots.backendOf(row)?.guest.gpus?.(row.ref as Ref, parseJson(row.spec) as Spec) ?? 0;
    return gpus > 0 && isMeasured(ledger.read, row.id, { now: clock.now(), seconds: GUEST_USAGE_SECONDS }) ? 0 : gpus;
  } catch {
    return 0;
  }
}

/** Creates the reading by a command inside a machine: of its processor time, where its engine does not report it, and its GPUs. */
function createGuestReading(ref: Ref) {
  let quietUntil = 0;
  return async (backend: Backend, sold: number): Promise<Usage> => {
    const begunAt = performance.now();
    const gpus = begunAt < quietUntil ? 0 : sold;
    try {
      return await readGuestUsage(backend, ref, { cpu: !backend.guest.usage, gpus });
    } finally {
      const now = performance.now();
      if (gpus > 0 && now - begunAt >= GUEST_USAGE_SECONDS * 1000) quietUntil = now + HUNG_MILLISECONDS;
    }
  };
}
