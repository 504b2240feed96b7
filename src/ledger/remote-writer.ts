import type { Write } from '../db/write.ts';
import { openWorker } from '../files/worker.ts';
import type { WriterOptions } from './batches.ts';
import { errorOf, pack, unpack } from './crossing.ts';
import type { Order, Report, WorkerSettings } from './writer-worker.ts';

/**
 * A message waits for at most this many turns of the event loop, until it has GATHER_COUNT_MAX writes, and only while each turn
 * brings more: a single write does not wait. Under load this makes fewer and larger commits; but were all requests in one message,
 * the thread that writes and the one that answers would wait for each other in turn.
 */
const GATHER_TURNS_MAX = 8;
const GATHER_COUNT_MAX = 20;

type Waiting = { isPaid: boolean; resolve(value: unknown): void; reject(error: unknown): void };

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
 * turns while each brings more. The end of the thread, and an exception in the messages between the two, ends the process: it calls
 * `fatal`.
 */
export function startWriter(file: string, options: RemoteOptions): RemoteWriter {
  const { diskReserve, outbox } = options;
  const reserve = diskReserve ? new SharedArrayBuffer(8) : undefined;
  const worker = openWorker('write', { file, reserve } satisfies WorkerSettings);
  const waiting = new Map<number, Waiting>();
  const ended = Promise.withResolvers<void>();
  let idle = Promise.withResolvers<void>();
  let queued: Order['writes'][number][] = [];
  let sent: Order['outbox'];
  let count = 0;
  let [commits, failure]: [number, string | undefined] = [0, undefined];
  let changes = 0;
  let isClosed = false;
  let isEnding = false; // On its own or on request.
  let isClosing = false;

  worker.unref(); // Waiting callers keep the process alive.
  worker.on('message', (bytes: Uint8Array) => orFail(() => take(unpack<Report>(bytes))));
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
    idle.resolve();
    options.fatal(error);
  }

  /** Runs a step between the threads. After one that throws, it is unknown which callers have their results. */
  function orFail(step: () => void): void {
    try {
      step();
    } catch (error) {
      fail(error);
    }
  }

  function take(report: Report): void {
    if (report.kind === 'fatal') fail(errorOf(report.why));
    else if (report.kind === 'full') release();
    else takeEnded(report);
  }

  function takeEnded(report: Report & { kind: 'ended' }): void {
    if (report.results.some(([id]) => !waiting.get(id)?.isPaid)) changes++; // Must happen before the callers resume.
    const hasCommitted = report.commits > commits;
    ({ commits, failure } = report);
    if (hasCommitted) options.committed?.(report.mark);
    if (report.isRecorded) outbox?.recorded();
    for (const [id, value, thrown] of report.results) {
      const it = waiting.get(id) as Waiting;
      waiting.delete(id);
      if (thrown) it.reject(errorOf(thrown));
      else it.resolve(value);
    }
    if (waiting.size) return;
    worker.unref();
    idle.resolve();
  }

  /** Answers the thread, which waits with the rest of its batch. */
  function release(): void {
    const answer = new Int32Array(reserve as SharedArrayBuffer);
    Atomics.store(answer, 1, diskReserve?.release() ? 1 : 0);
    Atomics.store(answer, 0, 1);
    Atomics.notify(answer, 0);
  }

  /**
   * Sends the queue once a turn of the event loop brings nothing more. The thread does not see these turns, so it could not wait
   * for their writes.
   */
  function gather(seen: number, turnsLeft: number): void {
    const hasMore = queued.length > seen && queued.length < GATHER_COUNT_MAX;
    if (hasMore && turnsLeft > 1) setImmediate(gather, queued.length, turnsLeft - 1);
    else orFail(send);
  }

  function send(): void {
    const shortage = diskReserve?.shortage(); // It may request a write itself.
    const writes = queued;
    queued = [];
    worker.postMessage(pack({ writes, shortage, outbox: changedOutbox() } satisfies Order));
  }

  /** Returns the settings of the outbox; undefined if they are those of the message before. */
  function changedOutbox(): Order['outbox'] {
    if (!outbox) return undefined;
    const { receivers, account_low_cents } = outbox;
    if (receivers === sent?.receivers && account_low_cents === sent.account_low_cents) return undefined;
    sent = { receivers, account_low_cents };
    return sent;
  }

  return {
    write(write, data) {
      if (isClosed) return Promise.reject(new Error('the ledger is closed'));
      const id = count++;
      if (!waiting.size) {
        worker.ref();
        idle = Promise.withResolvers();
      }
      if (queued.push([id, write.name, data]) === 1) setImmediate(gather, 1, GATHER_TURNS_MAX);
      return new Promise((resolve, reject) => waiting.set(id, { isPaid: write.isPaid, resolve, reject } as Waiting));
    },
    commitCount: () => commits,
    changeCount: () => changes,
    failure: () => failure,
    async drain() {
      while (waiting.size && !isEnding) await idle.promise;
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
