import type { Database as Client } from 'better-sqlite3';
import type { DiskReserve } from '../db/disk-reserve.ts';
import type { Reader } from '../db/handle.ts';
import { type Database, openDatabase, openReader } from '../db/open.ts';
import type { Write } from '../db/write.ts';
import type { NotPromise } from '../db/writer.ts';
import { openWriter } from './batches.ts';
import { type CommitMark, headOf } from './head.ts';
import type { Outbox } from './outbox.ts';
import { startWriter } from './remote-writer.ts';

/** The open database: read anywhere, written by the thread that owns the writing connection. */
export type Ledger = {
  read: Reader;
  /** A connection that only reads, for `verify` and for statistics. */
  client: Client;
  /**
   * Runs a write entirely or not at all. Resolves with its result once it is on disk. Rejects with the write's error, or with
   * `read_only`.
   */
  write<D, R>(write: Write<D, R>, data: NoInfer<D>): Promise<R>;
  /** Returns why the last batch could not be written; undefined once one can be again. */
  failure(): string | undefined;
  /** Returns the number of commits so far: each is one fsync of the write-ahead log. */
  commitCount(): number;
  /**
   * Returns a number that grows with every write except those of paid requests. As long as it is the same, no credential has
   * changed.
   */
  changeCount(): number;
  close(): Promise<void>;
};

export type LedgerOptions = {
  /** Creates the file when it is missing and brings an older one up to date. */
  migrate: boolean;
  /** Called after a database was brought up to date, with the migrations and the path of the copy from before. */
  migrated?: (names: string[], copy: string) => void;
  /** Disk space reserved for settlements; starting new work requires more than that. */
  diskReserve?: DiskReserve;
  /** Receivers of events. Without it no events are written. */
  outbox?: Outbox | undefined;
  /** Called after each commit, before its promises resolve. `newest` returns the current content of the head file. */
  committed?: (newest: () => CommitMark, milliseconds: number) => void;
  /** Called when a COMMIT or fsync failed: must stop the process without answering. */
  fatal: (error: unknown) => void;
  /**
   * Writes in this thread, over the one connection that also reads: for commands that write once, and for tests, with failures of
   * the writing connection and functions in place of data.
   */
  writesHere?: boolean | undefined;
};

/** Opens the database file and its one writer. Throws as `openDatabase` does. */
export function openLedger(file: string, options: LedgerOptions): Ledger {
  const opened = openDatabase(file, options);
  return options.writesHere ? writtenHere(opened, options) : writtenApart(opened, file, options);
}

function writtenApart({ client: migrated }: Database, file: string, options: LedgerOptions): Ledger {
  const { client, read, renew } = openReader(file);
  migrated.close(); // Closed after the other is open: closing the last connection would write the whole log into the file.
  const { drain, close, ...writer } = startWriter(file, {
    ...options,
    committed(newest, milliseconds) {
      renew();
      options.committed?.(() => newest ?? headOf(read), milliseconds);
    },
  });
  return {
    ...writer,
    read,
    client,
    async close() {
      await drain();
      client.close(); // Closed before the writing connection, so that the latter empties the log.
      await close();
    },
  };
}

function writtenHere(database: Database, options: LedgerOptions): Ledger {
  const { client, read } = database;
  const committed = (newest: CommitMark | undefined, milliseconds: number) =>
    options.committed?.(() => newest ?? headOf(read), milliseconds);
  const writer = openWriter(database, { ...options, committed });
  return {
    read,
    client,
    write: ({ run }, data) => writer.write((tx) => run(tx, data) as NotPromise<ReturnType<typeof run>>),
    commitCount: writer.commitCount,
    changeCount: writer.commitCount,
    failure: writer.failure,
    async close() {
      await writer.close();
      client.close();
    },
  };
}
