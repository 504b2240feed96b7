import type { ServerHealth } from '../base/health.ts';
import type { StorageWatch } from '../books/storage-watch.ts';
import type { Reader } from '../db/handle.ts';
import { findBreak } from '../ledger/head.ts';
import { currentEpoch } from '../ledger/installation.ts';
import type { Events } from '../telemetry/events.ts';

/**
 * A slice takes less than a millisecond and a pause twenty times as long: requests do not notice, and a million entries
 * take about a minute.
 */
const SLICE_COUNT = 250;
const PAUSE_MILLISECONDS = 15;

/**
 * Checks the whole hash chain once in the background, from the epoch's first entry; at the start only the newest
 * entries were checked. A break turns `readyz` red and stops service.
 */
export function watchChain(
  read: Reader,
  health: ServerHealth,
  storage: Pick<StorageWatch, 'failedRead'>,
  events: Pick<Events, 'failed'>,
): { start(): void; stop(): void } {
  let next = 0;
  let timer: NodeJS.Timeout | undefined;
  let stopped = false;

  function slice() {
    timer = undefined;
    try {
      const slice = findBreak(read, next, SLICE_COUNT);
      next = slice.next;
      if (slice.fault) {
        health.fault ??= slice.fault;
        events.failed('chain', new Error(slice.fault));
      } else if (!slice.done) pause();
    } catch (error) {
      if (storage.failedRead(error)) return;
      health.fault ??= `the journal cannot be read: ${(error as Error).message}`;
      events.failed('chain', error);
    }
  }
  function pause() {
    if (stopped) return;
    timer = setTimeout(slice, PAUSE_MILLISECONDS);
    timer.unref();
  }
  return {
    start() {
      next = currentEpoch(read).afterSeq + 1;
      pause();
    },
    stop() {
      stopped = true;
      clearTimeout(timer);
    },
  };
}
