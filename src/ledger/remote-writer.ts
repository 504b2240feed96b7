import type { Worker } from 'node:worker_threads';
import type { Write } from '../db/write.ts';
import { openWorker } from '../files/worker.ts';
import type { WriterOptions } from './batches.ts';
import { errorOf, pack, unpack } from './crossing.ts';
import type { Result, WorkerSettings, WriteOrder, WriteReport } from './writer-worker.ts';

/**
 * A message waits for at most this many turns of the event loop, until it has GATHER_COUNT_MAX writes, and only while each turn
 * brings more: a single write does not wait. Under load this makes fewer and larger commits; but were all requests in one message,
 * the writing and the answering thread would wait for each other in turn.
 */
const GATHER_TURNS_MAX = 8;
const GATHER_COUNT_MAX = 20;

type PendingWrite = { isPaid: boolean; resolve(value: unknown): void; reject(error: unknown): void };

/** The writer in its thread, as the other threads see it. */
type RemoteWriter = {
  write<D, R>(write: Write<D, R>, data: NoInfer<D>): Promise<R>;
  commitCount(): number;
  changeCount(): number;
  failure(): string | undefined;
  /** Resolves when all requested writes have ended. Nothing may be written afterwards. */
  drain(): Promise<void>;
  /** Closes the database and ends the thread. */
  close(): Promise<void>;
};

type RemoteOptions = Omit<WriterOptions, 'told'>;

/**
 * Starts the thread that writes to this file. The writes of one turn of the event loop go to it as one message, which waits a few
 * turns while each brings more. The end of the thread, and an exception in the messages between the two, ends the process by
 * `fatal`.
 */
export function startWriter(file: string, options: RemoteOptions): RemoteWriter {
  const { diskReserve, outbox } = options;
  const reserve = diskReserve ? new SharedArrayBuffer(8) : undefined;
  const worker = openWorker('write', { file, reserve } satisfies WorkerSettings);
  const pending = createPending(worker);
  const settings = createSettings(options);
  const gathering = createGathering(() => orFail(send, fail));
  const ended = Promise.withResolvers<void>();
  let [commits, failure]: [number, string | undefined] = [0, undefined];
  let changes = 0;
  let isClosed = false;
  let isEnding = false; // On its own or on request.
  let isClosing = false;

  worker.on('message', (bytes: Uint8Array) => orFail(() => take(unpack<WriteReport>(bytes)), fail));
  worker.on('error', (error) => {
    if (isClosing) ended.reject(error);
    fail(error);
  });
  worker.on('exit', () => {
    ended.resolve();
    if (!isEnding) fail(new Error('the thread that writes has ended'));
  });

  function fail(error: unknown): void {
    if (isEnding) return;
    isClosed = true;
    isEnding = true;
    pending.giveUp();
    options.fatal(error);
  }

  function send(): void {
    const changed = settings(); // Before the writes are taken: it may request one itself.
    worker.postMessage(pack({ writes: gathering.take(), ...changed } satisfies WriteOrder));
  }

  function take(report: WriteReport): void {
    if (report.kind === 'fatal') fail(errorOf(report.why));
    else if (report.kind === 'full') answerReserve(reserve as SharedArrayBuffer, diskReserve?.release() ?? false);
    else takeEnded(report);
  }

  function takeEnded(report: WriteReport & { kind: 'ended' }): void {
    if (pending.hasUnpaid(report.results)) changes++; // Must happen before the callers resume.
    const hasCommitted = report.commits > commits;
    ({ commits, failure } = report);
    if (hasCommitted) options.committed?.(report.mark, report.milliseconds);
    if (report.isRecorded) outbox?.recorded();
    pending.end(report.results);
  }

  return {
    write(write, data) {
      if (isClosed) return Promise.reject(new Error('the ledger is closed'));
      return new Promise((resolve, reject) => {
        const id = pending.add({ isPaid: write.isPaid, resolve, reject } as PendingWrite);
        gathering.add([id, write.name, data]);
      });
    },
    commitCount: () => commits,
    changeCount: () => changes,
    failure: () => failure,
    async drain() {
      while (!isEnding && pending.count()) await pending.idle();
      isClosed = true;
    },
    async close() {
      isEnding = true;
      isClosing = true;
      worker.ref();
      worker.postMessage(pack('close'));
      await ended.promise;
    },
  };
}

/** Runs a step between the threads. After one that throws, it is unknown which callers have their results. */
function orFail(step: () => void, fail: (error: unknown) => void): void {
  try {
    step();
  } catch (error) {
    fail(error);
  }
}

/** Creates the list of requested writes, empty. The thread keeps the process alive while callers wait for one. */
function createPending(worker: Worker) {
  const waiting = new Map<number, PendingWrite>();
  let idle = Promise.withResolvers<void>();
  let count = 0;
  worker.unref();
  return {
    /** Returns the id of the write. */
    add(write: PendingWrite): number {
      if (!waiting.size) {
        worker.ref();
        idle = Promise.withResolvers();
      }
      waiting.set(count, write);
      return count++;
    },
    /** Returns whether one of the results is that of a write that is no part of a paid request. */
    hasUnpaid: (results: readonly Result[]): boolean => results.some(([id]) => !waiting.get(id)?.isPaid),
    /** Gives the callers their results. */
    end(results: readonly Result[]): void {
      for (const [id, value, thrown] of results) {
        const it = waiting.get(id) as PendingWrite;
        waiting.delete(id);
        if (thrown) it.reject(errorOf(thrown));
        else it.resolve(value);
      }
      if (waiting.size) return;
      worker.unref();
      idle.resolve();
    },
    count: () => waiting.size,
    /** Resolves when no caller waits any more, or none will get a result. */
    idle: () => idle.promise,
    giveUp: () => idle.resolve(),
  };
}

/** Informs the thread, which waits with the rest of its batch, whether there is space now. */
function answerReserve(reserve: SharedArrayBuffer, isReleased: boolean): void {
  const answer = new Int32Array(reserve);
  Atomics.store(answer, 1, isReleased ? 1 : 0);
  Atomics.store(answer, 0, 1);
  Atomics.notify(answer, 0);
}

type QueuedWrites = WriteOrder['writes'];

/**
 * Gathers writes, and calls `send` once a turn of the event loop brings nothing more. The thread does not see these turns, so
 * it could not wait for their writes.
 */
function createGathering(send: () => void) {
  let queued: QueuedWrites[number][] = [];

  function gather(seen: number, turnsLeft: number): void {
    const hasMore = queued.length > seen && queued.length < GATHER_COUNT_MAX;
    if (hasMore && turnsLeft > 1) setImmediate(gather, queued.length, turnsLeft - 1);
    else send();
  }
  return {
    add(write: QueuedWrites[number]): void {
      if (queued.push(write) === 1) setImmediate(gather, 1, GATHER_TURNS_MAX);
    },
    /** Returns the gathered writes; later ones are gathered separately. */
    take(): QueuedWrites {
      const writes = queued;
      queued = [];
      return writes;
    },
  };
}

/**
 * Returns the function that returns the settings for the next message: why no new work may be started, and the outbox if it
 * has changed since the message before.
 */
function createSettings({ diskReserve, outbox }: RemoteOptions): () => Omit<WriteOrder, 'writes'> {
  let sent: WriteOrder['outbox'];

  function changedOutbox(): WriteOrder['outbox'] {
    if (!outbox) return undefined;
    const { receivers, account_low_cents } = outbox;
    if (receivers === sent?.receivers && account_low_cents === sent.account_low_cents) return undefined;
    sent = { receivers, account_low_cents };
    return sent;
  }
  return () => ({ shortage: diskReserve?.shortage(), outbox: changedOutbox() });
}
