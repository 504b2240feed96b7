import assert from 'node:assert/strict';
import type { Database as Client } from 'better-sqlite3';
import { Refusal } from '../base/refusal.ts';
import type { Tx } from './handle.ts';

/** Rejects a promise at compile time: a write is a synchronous closure (docs/decisions/0002). */
export type NotPromise<T> = T extends PromiseLike<unknown> ? never : T;

/** Limits of one commit: this many closures, or this many milliseconds of them. */
const BATCH_COUNT_MAX = 128;
const BATCH_MILLISECONDS_MAX = 5;

/**
 * SQLite errors that certainly leave the database as it was before the batch; after any other error at COMMIT the
 * outcome is unknown.
 */
const CLEAN_FAILURES = ['SQLITE_FULL', 'SQLITE_BUSY'];

/** Rolls back the whole batch so that it runs again: there is space now. */
const AGAIN = new Error('there is space now');

/** Rolls back the whole batch so that it runs again with a savepoint around each closure. */
const WITH_SAVEPOINTS = new Error('a closure threw after it had written');

const DISK_FAULT = /^SQLITE_(IOERR|CORRUPT|NOTADB|READONLY)/;
const codeOf = (error: unknown) => (error as { code?: string }).code ?? '';

function isClean(error: unknown): boolean {
  const code = codeOf(error);
  return CLEAN_FAILURES.some((clean) => code === clean || code.startsWith(`${clean}_`));
}

const isFull = (error: unknown) => codeOf(error).startsWith('SQLITE_FULL');

function refuseForNow(error: unknown): Refusal {
  const message = `Nothing can be written at the moment (${codeOf(error)}). Retry later.`;
  return new Refusal('read_only', message, { retryAfterSeconds: 5, cause: error });
}

type WriteJob = {
  run: (tx: Tx) => unknown;
  resolve: (value: unknown) => void;
  reject: (error: unknown) => void;
};

export type Writer = {
  /**
   * Runs `change` entirely or not at all. Resolves with its result once it is on disk. Rejects with what `change`
   * throws, or with `read_only`.
   */
  write<T>(change: (tx: Tx) => NotPromise<T>): Promise<T>;
  /** Runs a job as `write` does, for callers that do without a promise. */
  queue(job: WriteJob): void;
  /** Resolves when all queued writes are on disk. Nothing may be written afterwards. */
  close(): Promise<void>;
  /** Returns why the last batch could not be written; undefined once one can be again. */
  failure(): string | undefined;
  /** Returns the number of commits so far: each is one fsync of the write-ahead log. */
  commitCount(): number;
};

export type WriterEvents = {
  /** Called when a batch begins, inside its transaction. */
  begun?: () => void;
  /** Called when rows have been undone: of a closure, or of a whole batch. */
  undone?: () => void;
  /** Called at the end of a batch that wrote something, inside its transaction. */
  committing?: () => void;
  /** Called when the disk is full. Returns true when there is space now; the same batch is then tried again. */
  releaseReserve?: () => boolean;
  /** Called after a commit with the time that it took, before its promises resolve. */
  committed?: (milliseconds: number) => void;
  /** Called when the callers of a batch's writes have their results. */
  answered?: () => void;
  /**
   * Called when a COMMIT or fsync failed, so that the state on disk is unknown. The process must stop without
   * answering.
   */
  fatal: (error: unknown) => void;
};

/**
 * Creates the one writer, with group commit (design, section 6): closures wait in a queue; once per turn of the event loop they run
 * in one BEGIN IMMEDIATE … COMMIT with a single fsync. A closure that throws undoes only itself. Nearly all of them throw before
 * they write, so a savepoint around each would be wasted: if one throws after it has written, the batch is rolled back and runs
 * again with savepoints. So a closure may run more than once, and must change rows and nothing else.
 */
export function createWriter(client: Client, tx: Tx, events: WriterEvents): Writer {
  let waiting: WriteJob[] = [];
  let scheduled = false;
  let closed = false;
  let commits = 0;
  let failure: string | undefined;
  let alone = 0; // The number of queued closures that are tried one by one: together they were too much for a full disk.
  let savepoints = false; // Whether each closure of the next batch runs in a savepoint.
  const idle: (() => void)[] = [];

  const batch = createBatch(client, tx, events);

  function flush() {
    scheduled = false;
    let ran: RanBatch;
    const began = performance.now();
    try {
      ran = batch(waiting, { max: alone ? 1 : BATCH_COUNT_MAX, savepoints });
    } catch (error) {
      events.undone?.();
      if (error === WITH_SAVEPOINTS) {
        savepoints = true;
        return flush();
      }
      if (error === AGAIN || (isFull(error) && events.releaseReserve?.())) return schedule();
      if (!isClean(error)) {
        closed = true;
        events.fatal(error); // Nothing is answered: recovery and the idempotency keys resolve it.
        return;
      }
      if (isFull(error) && !alone && waiting.length > 1) {
        alone = waiting.length; // A large closure must not take the small ones down with it.
        return schedule();
      }
      const refusal = refuseForNow(error);
      const results = waiting.slice(0, alone ? 1 : waiting.length).map((job) => () => job.reject(refusal));
      return conclude({ count: results.length, results, undone: refusal.message });
    }
    savepoints = false;
    commits++;
    events.committed?.(performance.now() - began);
    conclude(ran);
  }

  /** Gives the callers of a batch their results, and continues with the queue. */
  function conclude({ count, results, undone }: RanBatch): void {
    waiting = waiting.slice(count);
    alone = Math.max(0, alone - 1);
    failure = undone;
    if (waiting.length) schedule();
    for (const tell of results) tell();
    events.answered?.();
    if (!waiting.length) for (const tell of idle.splice(0)) tell();
  }

  function schedule() {
    if (scheduled) return;
    scheduled = true;
    setImmediate(flush);
  }

  function queue(job: WriteJob) {
    if (closed) return job.reject(new Error('the ledger is closed'));
    waiting.push(job);
    schedule();
  }

  return {
    write(run) {
      return new Promise((resolve, reject) => queue({ run, resolve, reject } as WriteJob));
    },
    queue,
    async close() {
      if (waiting.length && !closed) await new Promise<void>((resolve) => idle.push(resolve));
      closed = true;
    },
    failure: () => failure,
    commitCount: () => commits,
  };
}

/** The outcome of a batch. */
type RanBatch = {
  /** The number of closures that have their result. */
  count: number;
  /** Gives each of them its result. */
  results: (() => void)[];
  /** The reason why closures could not be written, though others may have been committed. */
  undone: string | undefined;
};

/**
 * Returns the function that runs the first closures of a queue in one transaction, at most `max`; with `savepoints`, each in
 * its own. Throws what undoes all of them.
 */
function createBatch(client: Client, tx: Tx, events: WriterEvents) {
  const changes = client.prepare('select total_changes()').pluck();
  const runAlone = client.transaction((run: WriteJob['run']) => runJob(run)); // Nested in the batch, it is a savepoint.

  function runJob(run: WriteJob['run']): unknown {
    const value = run(tx);
    if (value instanceof Object && 'then' in value)
      throw new TypeError('a write is a synchronous closure: it must not return a promise');
    assert(client.inTransaction, 'a write must not end the transaction'); // Otherwise later statements would be committed one by one.
    return value;
  }

  return client.transaction((jobs: WriteJob[], { max, savepoints }: { max: number; savepoints: boolean }): RanBatch => {
    const deadline = performance.now() + BATCH_MILLISECONDS_MAX;
    const results: (() => void)[] = [];
    let undone: string | undefined;
    let count = 0;
    let wrote = false;
    let changed: unknown = changes.get();
    events.begun?.();
    for (const job of jobs) {
      if (count >= max || (count > 0 && performance.now() > deadline)) break;
      count++;
      const before = changed;
      try {
        const value = savepoints ? runAlone(job.run) : runJob(job.run);
        changed = changes.get();
        wrote ||= changed !== before;
        results.push(() => job.resolve(value));
      } catch (error) {
        // SQLite ended the whole batch, or the disk is faulty: undo every closure.
        if (!client.inTransaction || DISK_FAULT.test(codeOf(error))) throw error;
        if (isFull(error) && events.releaseReserve?.()) throw AGAIN;
        changed = changes.get();
        if (changed !== before) {
          if (!savepoints) throw WITH_SAVEPOINTS;
          events.undone?.();
        }
        // On a full disk SQLite may undo only the one statement; the caller gets the same refusal.
        const full = isClean(error) ? refuseForNow(error) : undefined;
        undone = full?.message ?? undone;
        results.push(() => job.reject(full ?? error));
      }
    }
    if (wrote) events.committing?.();
    return { count, results, undone };
  }).immediate;
}
