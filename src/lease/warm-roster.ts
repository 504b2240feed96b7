import { readFileSync, rmSync } from 'node:fs';
import { parseJson } from '../base/parse-json.ts';
import { type Backend, type Ref, type Slot, type Spec, tagOf } from '../compute/backend.ts';
import type { ConfiguredBackend } from '../compute/slots.ts';
import { writeDurably } from '../files/durable-file.ts';

/** The list of warm machines (src/lease/warm.ts) and of those that have to end, with the file that outlives the process. */

export type Warm = {
  id: string;
  configured: ConfiguredBackend;
  /** The machine, as `machineOf` names it. */
  machine: string;
  spec: Spec;
  /** The identity of its engine; null where that reports none. */
  engine: string | null;
  ref: Ref | undefined;
  /** Unix seconds. */
  deadline: number;
  /** `busy` while a call about it is under way; `taken` from the quote of a lease until that is held for or refused. */
  state: 'busy' | 'starting' | 'ready' | 'taken';
  /** Resolves when it is no longer busy. */
  settled: Promise<unknown>;
};
/** A machine that has to end, and may not have been made yet. It is searched for until `until`, Unix seconds. */
type Leftover = { slot: Slot; backend: string; until: number };

/** Returns the text that is the same for equal machines, whatever the time they are leased for. */
export function machineOf({ max_seconds: _, ...machine }: Spec): string {
  return JSON.stringify(Object.entries(machine).sort(([a], [b]) => (a < b ? -1 : 1)));
}

export type WarmRoster = ReturnType<typeof openWarmRoster>;

/**
 * Opens the list in `file`: the machines in it have to end, and are searched for until `until`. `tags` are those that backends count
 * as free, and is kept up to date.
 */
export function openWarmRoster(file: string, installationId: string, tags: Set<string>, until: number) {
  const pool = new Map<string, Warm>();
  const leftovers = new Map<string, Leftover>(readLeftovers(file, until));
  const tagFor = (id: string) => tagOf(installationId, id);
  let lastRecord = Promise.resolve();

  function forget(id: string): void {
    pool.delete(id);
    leftovers.delete(id);
    tags.delete(tagFor(id));
  }
  return {
    pool: pool as ReadonlyMap<string, Warm>,
    leftovers: leftovers as ReadonlyMap<string, Leftover>,
    tagFor,
    of: (backend: Backend) => [...pool.values()].filter((it) => it.configured.backend === backend),
    add(it: Warm): void {
      pool.set(it.id, it);
      tags.add(tagFor(it.id));
    },
    forget,
    /** Notes that a machine has to end: it may still be there, or come. */
    leave({ id, configured: { slot, backend } }: Warm, until: number): void {
      forget(id);
      leftovers.set(id, { slot, backend: backend.name, until });
    },
    /** Writes the ids of all machines that may exist and have no row. */
    record(): Promise<void> {
      const write = async () => {
        const listed = [
          ...[...pool.values()].map(({ id, configured: { slot, backend } }) => ({ id, slot, backend: backend.name })),
          ...[...leftovers].map(([id, { slot, backend }]) => ({ id, slot, backend })),
        ];
        if (listed.length) await writeDurably(file, JSON.stringify(listed));
        else rmSync(file, { force: true });
      };
      const mine = lastRecord.then(write);
      lastRecord = mine.catch(() => {});
      return mine;
    },
  };
}

/** Reads which machines an earlier process left. */
function* readLeftovers(file: string, until: number): Iterable<[string, Leftover]> {
  try {
    const listed = parseJson(readFileSync(file, 'utf8')) as { id: string; slot: Slot; backend: string }[];
    for (const { id, slot, backend } of listed) yield [id, { slot, backend, until }];
  } catch {
    // There is none, or it is damaged: the sweep finds the machines.
  }
}
