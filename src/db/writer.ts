import type { Database as Client } from 'better-sqlite3';
import { READ_ONLY } from '../files/data-directory.ts';
import { Refusal } from '../refusal.ts';
import type { Tx } from './handle.ts';

/** Refuses a promise at compile time: a write is a synchronous closure (docs/decisions/0002). */
export type NotPromise<T> = T extends PromiseLike<unknown> ? never : T;

/** So many closures, or so many milliseconds of them, go into one commit. */
const BATCH_COUNT_MAX = 128;
const BATCH_MILLISECONDS_MAX = 5;

/** These leave the database as it was before the batch, for certain; anything else at COMMIT is an unknown outcome. */
const CLEAN_FAILURES = ['SQLITE_FULL', 'SQLITE_BUSY', 'SQLITE_READONLY'];

/**
 * A write into the log failed. The commit mark is the last that is written before the fsync, so where the file system says
 * that it takes no writes, the batch is not there, for certain (docs/decisions/0017). From anything else it is a bad disk.
 */
const WRITE_FAILURE = 'SQLITE_IOERR_WRITE';

/** The whole batch is undone, and runs again. */
const AGAIN = new Error('there is room now');

const DISK_FAULT = /^SQLITE_(IOERR|CORRUPT|NOTADB)/;
const codeOf = (error: unknown) => (error as { code?: string }).code ?? '';

function leavesNothing(error: unknown, isReadOnly = () => false): boolean {
  const code = codeOf(error);
  if (code === WRITE_FAILURE) return isReadOnly();
  return CLEAN_FAILURES.some((clean) => code === clean || code.startsWith(`${clean}_`));
}

const isFull = (error: unknown) => codeOf(error).startsWith('SQLITE_FULL');

function notNow(error: unknown): Refusal {
  const why = codeOf(error) === WRITE_FAILURE ? READ_ONLY : codeOf(error);
  const message = `Nothing can be written at the moment (${why}). Retry later.`;
  return new Refusal('read_only', message, { retryAfterSeconds: 5, cause: error });
}

type Job = { run: (tx: Tx) => unknown; resolve: (value: never) => void; reject: (error: unknown) => void };

export type Writer = {
  /** Runs `change` whole or not at all. Resolves when it is on disk, with what `change` answered. */
  write<T>(change: (tx: Tx) => NotPromise<T>): Promise<T>;
  /** Resolves when everything that was waiting is on disk. Nothing may be written afterwards. */
  close(): Promise<void>;
  /** Why the last batch could not be written, until one can be again. */
  failure(): string | undefined;
  /** Commits so far: each is one fsync of the write-ahead log. */
  commitCount(): number;
};

export type WriterEvents = {
  /** At the end of a batch that wrote something, inside its transaction. */
  committing?: () => void;
  /** The disk is full. True when there is room now: the same batch is tried again. */
  makeRoom?: () => boolean;
  /** Whether the file system takes no writes any more. */
  isReadOnly?: () => boolean;
  /** After a commit, before its promises resolve. */
  committed?: () => void;
  /** A COMMIT or fsync failed: nobody knows what is on disk. The process has to stop and answer nothing. */
  fatal: (error: unknown) => void;
};

/**
 * The one writer, with group commit (design, section 6): closures wait in a queue; once per turn of the event loop they
 * run in savepoints of one BEGIN IMMEDIATE … COMMIT with a single fsync. A closure that throws undoes only itself. One may run
 * more than once, where the first attempt found the disk full: it changes rows and nothing else.
 */
export function createWriter(client: Client, tx: Tx, events: WriterEvents): Writer {
  let queue: Job[] = [];
  let scheduled = false;
  let closed = false;
  let commits = 0;
  let failure: string | undefined;
  let alone = 0; // So many of those that wait are tried one by one: together they were too much for a full disk.
  let undone: string | undefined; // Why a closure of this batch found no room, though the batch was committed.
  const idle: (() => void)[] = [];
  const isClean = (error: unknown) => leavesNothing(error, events.isReadOnly);

  // better-sqlite3's transaction() nests as a savepoint, keeps its statements, and refuses a promise at run time too.
  const savepoint = client.transaction((run: Job['run']) => run(tx));
  const changes = client.prepare('select total_changes()').pluck();
  const batch = client.transaction((jobs: Job[], settle: (() => void)[]) => {
    const deadline = performance.now() + BATCH_MILLISECONDS_MAX;
    const most = alone ? 1 : BATCH_COUNT_MAX;
    let done = 0;
    let wrote = false;
    for (const job of jobs) {
      if (done >= most || (done > 0 && performance.now() > deadline)) break;
      done++;
      const before: unknown = wrote || changes.get();
      try {
        const value = savepoint(job.run) as never;
        wrote ||= changes.get() !== before;
        settle.push(() => job.resolve(value));
      } catch (error) {
        // SQLite ended the whole batch, or the disk lies: everybody's closure is undone.
        if (!client.inTransaction || DISK_FAULT.test(codeOf(error))) throw error;
        if (isFull(error) && events.makeRoom?.()) throw AGAIN;
        // A full disk may undo the one statement only; for whoever asked it is the same full disk.
        const full = isClean(error) ? notNow(error) : undefined;
        undone = full?.message ?? undone;
        settle.push(() => job.reject(full ?? error));
      }
    }
    if (wrote) events.committing?.();
    return done;
  }).immediate;

  function flush() {
    scheduled = false;
    const settle: (() => void)[] = [];
    let done: number;
    undone = undefined;
    try {
      done = batch(queue, settle);
    } catch (error) {
      if (error === AGAIN || (isFull(error) && events.makeRoom?.())) return schedule();
      if (!isClean(error)) {
        closed = true;
        events.fatal(error); // Nothing is answered: recovery and the idempotency keys decide.
        return;
      }
      if (isFull(error) && !alone && queue.length > 1) {
        alone = queue.length; // A large one must not take the small ones with it.
        return schedule();
      }
      const failed = alone ? queue.splice(0, 1) : queue.splice(0);
      alone = Math.max(0, alone - 1);
      const refusal = notNow(error);
      failure = refusal.message;
      for (const job of failed) job.reject(refusal);
      if (queue.length) schedule();
      wakeIdle();
      return;
    }
    queue = queue.slice(done);
    alone = Math.max(0, alone - 1);
    commits++;
    failure = undone;
    events.committed?.();
    if (queue.length) schedule();
    for (const tell of settle) tell();
    wakeIdle();
  }

  function wakeIdle() {
    if (!queue.length) for (const tell of idle.splice(0)) tell();
  }

  function schedule() {
    if (scheduled) return;
    scheduled = true;
    setImmediate(flush);
  }

  return {
    write(run) {
      if (closed) return Promise.reject(new Error('the ledger is closed'));
      return new Promise((resolve, reject) => {
        queue.push({ run, resolve, reject } as Job);
        schedule();
      });
    },
    async close() {
      if (queue.length && !closed) await new Promise<void>((resolve) => idle.push(resolve));
      closed = true;
    },
    failure: () => failure,
    commitCount: () => commits,
  };
}
