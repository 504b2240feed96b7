import type { Reader, Tx } from '../db/handle.ts';
import { plain } from '../db/plain.ts';

/** The most rows that are remembered: about a kilobyte each. */
const ROW_COUNT_MAX = 4000;

const reads = plain({
  changes: 'select total_changes()',
  others: 'pragma data_version',
});

/**
 * Rows that the writer remembers between holds and settlements instead of reading them again. They equal the rows in the file:
 * holds and settlements note each row that they change, and any other change makes the writer forget all.
 */
export type RowMemory = {
  /** Returns a remembered row, or remembers the one that `find` reads. */
  recall<Row extends object | undefined>(id: string, find: () => Row): Row;
  /** Notes a row as it is after a statement that has changed this one row. */
  changed(id: string, row: object): void;
  /** Notes that a statement has added rows that are never recalled. */
  added(rows: number): void;
  /** Forgets a row that a statement has changed for the last time. */
  ended(id: string): void;
};

/** Reads every row each time. */
const NONE: RowMemory = { recall: (_, find) => find(), changed() {}, added() {}, ended() {} };

type ConnectionMemory = RowMemory & {
  /** Forgets all rows if any but those that were noted have been changed over this connection. */
  begin(): void;
};
const memories = new WeakMap<object, ConnectionMemory>();

/**
 * Returns the memory of a handle, to be used before the caller's first change. SQLite counts the rows that a connection has changed: a
 * number that is not the expected one means that something else has been written.
 */
export function memoryOf(handle: Reader): RowMemory {
  const memory = memories.get(handle);
  memory?.begin();
  return memory ?? NONE;
}

/**
 * Gives a handle a memory. `forget` must be called when rows have been undone. `wasOvertaken` must be called in each transaction
 * before its first change: it returns whether another connection has written since, and then forgets all rows.
 */
export function attachMemory(tx: Tx): { forget(): void; wasOvertaken(): boolean } {
  const rows = new Map<string, object>();
  const changes = () => Number(reads(tx).changes.get<[bigint]>()?.[0]);
  let expected = changes();
  let others: bigint | undefined;

  function remember(id: string, row: object): void {
    rows.delete(id); // Becomes the newest.
    rows.set(id, row);
    if (rows.size > ROW_COUNT_MAX) rows.delete(rows.keys().next().value as string);
  }
  memories.set(tx, {
    begin() {
      const now = changes();
      if (now === expected) return;
      rows.clear();
      expected = now;
    },
    recall<Row extends object | undefined>(id: string, find: () => Row): Row {
      const known = rows.get(id) as Row | undefined;
      if (known) return known;
      const row = find();
      if (row) remember(id, row);
      return row;
    },
    changed(id, row) {
      expected++;
      remember(id, row);
    },
    added(count) {
      expected += count;
    },
    ended(id) {
      expected++;
      rows.delete(id);
    },
  });
  return {
    forget: () => rows.clear(),
    wasOvertaken() {
      const version = reads(tx).others.get<[bigint]>()?.[0];
      if (version === others) return false;
      others = version;
      rows.clear();
      return true;
    },
  };
}
