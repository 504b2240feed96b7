import type { MessagePort } from 'node:worker_threads';
import { openDatabase } from '../db/open.ts';
import { writeOf } from '../db/write.ts';
import { openWriter } from './batches.ts';
import { pack, type Thrown, thrownFrom, unpack } from './crossing.ts';
import type { CommitMark } from './head.ts';
import type { Outbox, OutboxSettings } from './outbox.ts';

/** Settings of the thread that writes, from its start on. */
export type WorkerSettings = {
  file: string;
  /** Undefined where there is none. Its two numbers are whether the question has been answered, and the answer. */
  reserve: SharedArrayBuffer | undefined;
};

/** Writes to run, in this order. */
export type WriteOrder = {
  writes: readonly (readonly [id: number, name: string, data: unknown])[];
  /** The reason why no new work may be started. */
  shortage: string | undefined;
  /** The receivers of events: in the first order, and where a reload has changed them since the last one. */
  outbox: OutboxSettings | undefined;
};
export type Result = readonly [id: number, value: unknown, thrown?: Thrown];
export type WriteReport =
  /** The outcome of writes: they are on disk, or undone. */
  | {
      kind: 'ended';
      results: Result[];
      /** The newest commit, if there was one. */
      mark: CommitMark | undefined;
      commits: number;
      /** The time that this commit took, in this thread: the main one may have been waiting for the same disk. */
      milliseconds: number;
      failure: string | undefined;
      /** Events for receivers were written. */
      isRecorded: boolean;
    }
  /** The disk is full: asks for the reserve and waits for the answer in shared memory. */
  | { kind: 'full' }
  /** A commit failed. Nothing is written any more. */
  | { kind: 'fatal'; why: Thrown };

/**
 * Runs the writes that come through `port`, in the one thread that owns the writing connection, until 'close' comes. It
 * sends one report for each batch.
 */
export function serveWrites(port: MessagePort, { file, reserve }: WorkerSettings): void {
  const database = openDatabase(file, { migrate: false });
  let shortage: string | undefined;
  let results: Result[] = [];
  let mark: CommitMark | undefined;
  let isRecorded = false;
  let milliseconds = 0;
  const send = (report: WriteReport) => port.postMessage(pack(report));

  function release(answer: Int32Array): boolean {
    Atomics.store(answer, 0, 0);
    send({ kind: 'full' });
    Atomics.wait(answer, 0, 0);
    return Atomics.load(answer, 1) === 1;
  }
  const answer = reserve && new Int32Array(reserve);
  const outbox: Outbox = {
    receivers: [],
    account_low_cents: undefined,
    recorded() {
      isRecorded = true;
    },
  };
  const writer = openWriter(database, {
    ...(answer
      ? {
          diskReserve: {
            shortage: () => shortage,
            release: () => release(answer),
          },
        }
      : {}),
    outbox,
    committed(newest, took) {
      mark = newest;
      milliseconds = took;
    },
    answered() {
      const [commits, failure] = [writer.commitCount(), writer.failure()];
      send({ kind: 'ended', results, mark, commits, milliseconds, failure, isRecorded });
      [results, mark, isRecorded] = [[], undefined, false];
    },
    fatal: (error) => send({ kind: 'fatal', why: thrownFrom(error) }),
  });

  port.on('message', async (bytes: Uint8Array) => {
    const order = unpack<WriteOrder | 'close'>(bytes);
    if (order === 'close') {
      await writer.close();
      database.client.close();
      port.close();
      return;
    }
    ({ shortage } = order);
    Object.assign(outbox, order.outbox);
    for (const [id, name, data] of order.writes)
      writer.queue({
        run: (tx) => writeOf(name).run(tx, data),
        resolve: (value) => results.push([id, value]),
        reject: (error) => results.push([id, undefined, thrownFrom(error)]),
      });
  });
}
