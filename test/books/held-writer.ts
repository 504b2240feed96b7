import assert from 'node:assert/strict';
import type { TestContext } from 'node:test';
import type { Worker } from 'node:worker_threads';
import { unpack } from '../../src/ledger/crossing.ts';
import type { WriteOrder } from '../../src/ledger/writer-worker.ts';

/** The thread that writes, in a test's hand: while it is held, no order reaches it, as on a disk that does not answer. */
export type HeldWriter = {
  hold(): void;
  /** Hands over what was held. */
  release(): void;
  /** The names of the writes that are held. */
  held(): string[];
};

/**
 * Holds the thread that the next server opens (`writesHere: false`). Call it before the server is opened: at the end of a test, also
 * of one that fails, what is held is released first, and the server can close.
 */
export function holdWriter(t: Pick<TestContext, 'after'>): HeldWriter {
  let post: ((message: unknown) => void) | undefined;
  let isHeld = false;
  const orders: Uint8Array[] = [];
  process.once('worker', (thread: Worker) => {
    post = thread.postMessage.bind(thread);
    thread.postMessage = (message: Uint8Array) => {
      if (isHeld) orders.push(message);
      else post?.(message);
    };
  });
  const release = () => {
    isHeld = false;
    for (const it of orders.splice(0)) post?.(it);
  };
  t.after(release);
  return {
    hold() {
      assert(post, 'the server has a thread that writes');
      isHeld = true;
    },
    release,
    held: () => orders.flatMap((it) => unpack<WriteOrder>(it).writes.map(([, name]) => name)),
  };
}
