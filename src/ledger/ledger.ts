import type { Database as Client } from 'better-sqlite3';
import { attachReserve, type DiskReserve } from '../db/disk-reserve.ts';
import type { Reader } from '../db/handle.ts';
import { openDatabase } from '../db/open.ts';
import { createWriter, type Writer } from '../db/writer.ts';
import { countQuietCommit } from './installation.ts';
import { journalHead } from './journal.ts';

/** The open database: read anywhere, write through the one queue. */
export type Ledger = Pick<Writer, 'write' | 'commitCount' | 'failure'> & {
  read: Reader;
  /** The database connection, for `verify` and for statistics. */
  client: Client;
  close(): Promise<void>;
};

export type LedgerOptions = {
  /** Creates the file when it is missing and brings an older one up to date. */
  migrate: boolean;
  /** Disk space reserved for settlements; starting new work requires more than that. */
  room?: DiskReserve;
  /** Called after each commit, before its promises resolve. */
  committed?: () => void;
  /** Called when a COMMIT or fsync failed: must stop the process without answering. */
  fatal: (error: unknown) => void;
};

/** Opens the database file and its one writer. Throws as `openDatabase` does. */
export function openLedger(file: string, options: LedgerOptions): Ledger {
  const { client, read, tx } = openDatabase(file, options);
  const { room } = options;
  if (room) attachReserve(tx, room);
  let newest = journalHead(read).seq;
  let next = newest;
  const writer = createWriter(client, tx, {
    fatal: options.fatal,
    ...(room ? { makeRoom: room.release, isReadOnly: room.isReadOnly } : {}),
    committing() {
      next = journalHead(tx).seq;
      if (next === newest) countQuietCommit(tx);
    },
    committed() {
      newest = next;
      options.committed?.();
    },
  });
  return {
    read,
    client,
    write: writer.write,
    commitCount: writer.commitCount,
    failure: writer.failure,
    async close() {
      await writer.close();
      client.close();
    },
  };
}
