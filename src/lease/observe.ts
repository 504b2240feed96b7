import type { Backend, Machine } from '../compute/backend.ts';
import { operationOf } from '../ledger/operation.ts';
import type { Resource } from '../ledger/resource.ts';
import type { LeaseApp } from './create.ts';
import { elsewhere, lookAt, recentEngineOf } from './engine.ts';
import { isPaused } from './pausing.ts';
import { noteUsage } from './usage.ts';

// The backend's view of a lease's machine. step.ts decides what follows from it.

/**
 * The states of a lease that has not ended, derived from its row by `stateOf`:
 * - `searching`: the reference of its machine is not known, even if it has to end;
 * - `starting`: the machine is known and its price is not captured yet;
 * - `running`: its price is captured;
 * - `paused`: it is paused, or on the way there or back;
 * - `ending`: its machine is known, it has to end, and the backend has not confirmed yet that the machine is gone.
 */
export type LeaseState = 'searching' | 'starting' | 'running' | 'paused' | 'ending';

/**
 * The backend's report on a lease's machine. `missing` is an absence that is not proven yet (see `Backend.absence`), `absent` a
 * proven one; an `ended` machine still has to be destroyed; `unreachable` covers every failure to find out; `elsewhere` is an
 * absence at another engine than the one that was asked for the machine.
 */
export type Finding = 'unreachable' | 'elsewhere' | 'missing' | 'absent' | 'starting' | 'running' | 'ended';

/** Returns the state of a lease that has not ended, from its row. */
export function stateOf(row: Resource): LeaseState {
  if (row.ref === null) return 'searching';
  if (row.endWanted !== null) return 'ending';
  if (isPaused(row)) return 'paused';
  return row.readyAt === null ? 'starting' : 'running';
}

/**
 * The input of an action: the row, what the backend reported about its machines, and the error if it could not be
 * asked.
 */
export type Observed = {
  app: LeaseApp;
  backend: Backend;
  row: Resource;
  finding: Finding;
  /** The machines that were found, the furthest along first. */
  machines: Machine[];
  /** The error, if the finding is `unreachable` or `elsewhere`. */
  error?: Error;
  /** The engine that has the machine, if it is not the one in the row; null where it reports none. */
  engine?: string | null;
  /** The empty lists so far, this one included, if it was searched for by its tag. */
  absence?: Absence;
};
type Absence = Pick<Resource, 'absentSince' | 'absentCount'>;

/**
 * Observes the machine, at the engine that was asked for it: only that one proves an absence, and no other is asked to
 * destroy anything. A machine that another engine has exists, wherever its row locates it. Throws when an engine cannot be asked.
 */
export async function observe(app: LeaseApp, backend: Backend, row: Resource): Promise<Observed> {
  const state = stateOf(row);
  const isWatched = state === 'starting' || state === 'running' || state === 'paused';
  if (row.engine === null || isWatched) {
    const observed = await OBSERVE[state](app, backend, row);
    const isThere = observed.machines.length > 0;
    if (isThere && (state === 'running' || state === 'paused') && (await isOfAnother(app, backend, row))) {
      const { engine, seen } = await lookAt(backend, () => inspect(app, backend, row));
      const isMoved = seen.machines.length > 0 && engine !== undefined && engine !== row.engine;
      return isMoved ? { ...seen, engine } : observed;
    }
    if (row.engine === null || isThere) return observed;
  }
  const look = (engine: string | undefined) => {
    if (engine === row.engine) return OBSERVE[state](app, backend, row);
    return row.ref === null ? OBSERVE.searching(app, backend, row) : inspect(app, backend, row);
  };
  const { engine, seen } = await lookAt(backend, look);
  // Another backend of the slot may have it, whose engine `adopt` notes.
  if (engine === row.engine || seen.backend !== backend) return seen;
  if (seen.machines.length) return { ...seen, engine: engine ?? null };
  if (engine === undefined) throw new Error(`the engine does not tell whether it is ${row.engine}`);
  return { ...seen, finding: 'elsewhere', error: new Error(elsewhere(row, engine)) };
}

/** Returns whether a running machine seems to be on another engine than its row names. False where that is not known. */
async function isOfAnother({ clock }: LeaseApp, backend: Backend, { engine }: Resource): Promise<boolean> {
  const recent = await recentEngineOf(backend, clock.now()).catch(() => undefined);
  return recent !== undefined && recent !== engine;
}

/** Observes the machine, by the state of its lease. Throws when the backend cannot be asked. */
const OBSERVE: Record<LeaseState, (app: LeaseApp, backend: Backend, row: Resource) => Promise<Observed>> = {
  /**
   * Queries by tag: an uncertain create may have left one machine, several, or none. The row names the backend that was asked last,
   * whose answers prove an absence. The slot's others are asked as well: a row from a backup may name one that refused.
   */
  async searching(app, backend, row) {
    const askedAt = app.clock.now();
    const found = await findByTag(app, backend, row);
    const machines = found.machines.toSorted(
      (a, b) => FURTHEST_FIRST.indexOf(a.state) - FURTHEST_FIRST.indexOf(b.state),
    );
    const absence = countedAbsence(row, backend, askedAt, app.clock.now());
    const isProven = absence.absentCount >= backend.absence.lists;
    const finding = machines[0] ? findingOf(machines[0]) : isProven ? 'absent' : 'missing';
    return { app, backend: found.backend, row, finding, machines, absence };
  },
  starting: inspect,
  paused: inspect,
  running: (app, backend, row) => {
    noteUsage(app, row);
    return inspect(app, backend, row);
  },
  /**
   * Destroys the machine, then checks that it is gone. If the create was ever uncertain, a second machine may exist, so
   * the tag is queried too; otherwise the reference is all there ever was.
   */
  async ending(app, backend, row) {
    const ref = row.ref as string;
    await backend.destroy(ref);
    const machine = await backend.inspect(ref);
    const wasUncertain = operationOf(app.ledger.read, row.operationId).uncertainAt !== null;
    const others = wasUncertain ? (await backend.find(row.tag)).filter((it) => it.ref !== ref) : [];
    for (const other of others) await backend.destroy(other.ref);
    const machines = machine ? [machine, ...others] : others;
    return { app, backend, row, finding: machines[0] ? findingOf(machines[0]) : 'absent', machines };
  },
};

type MachineFinding = { backend: Backend; machines: Machine[] };
/**
 * Returns the machines with the tag of a lease without a known reference: those of the backend that its row names, or else of
 * another of its slot. Throws when the former cannot be asked; ignores failures of the others.
 */
export async function findByTag(app: LeaseApp, named: Backend, { slot, tag }: Resource): Promise<MachineFinding> {
  const own: MachineFinding = { backend: named, machines: await named.find(tag) };
  if (own.machines.length) return own;
  const others = app.slots.list.filter((it) => it.slot === slot && it.backend !== named);
  const elsewhere = await Promise.all(
    others.map(async ({ backend }) => ({ backend, machines: await backend.find(tag).catch(() => []) })),
  );
  return elsewhere.find(({ machines }) => machines.length > 0) ?? own;
}

async function inspect(app: LeaseApp, backend: Backend, row: Resource): Promise<Observed> {
  const machine = await backend.inspect(row.ref as string);
  return { app, backend, row, finding: machine ? findingOf(machine) : 'absent', machines: machine ? [machine] : [] };
}

const FURTHEST_FIRST: Machine['state'][] = ['running', 'provisioning', 'ended'];
const findingOf = ({ state }: Machine): 'starting' | 'running' | 'ended' =>
  state === 'provisioning' ? 'starting' : state;

/**
 * Counts the empty lists that prove an absence, including the one that was requested at `askedAt` and answered `now`. List n + 1
 * counts if it was requested n × `apartSeconds` or more after the answer to the first: a late answer may be old.
 */
function countedAbsence(row: Resource, { absence }: Backend, askedAt: number, now: number): Absence {
  const absentSince = row.absentSince ?? now;
  const isApart = row.absentCount === 0 || askedAt - absentSince >= absence.apartSeconds * row.absentCount;
  return { absentSince, absentCount: row.absentCount + (isApart ? 1 : 0) };
}
