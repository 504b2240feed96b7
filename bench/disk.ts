import { closeSync, fdatasyncSync, openSync, rmSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { median } from './rounds.ts';

const FRAME_BYTES = 4096 + 24; // One page in SQLite's write-ahead log.
const FRAMES_MAX = 256;
const SYNC_COUNT = 400;

/** Returns the median milliseconds that the disk under `directory` takes to overwrite one frame and make it durable. */
export function fdatasyncMilliseconds(directory: string): number {
  const file = join(directory, 'fdatasync.probe');
  const frame = Buffer.alloc(FRAME_BYTES, 7);
  const probe = openSync(file, 'w');
  try {
    for (let i = 0; i < FRAMES_MAX; i++) writeSync(probe, frame);
    fdatasyncSync(probe);
    const times: number[] = [];
    for (let i = 0; i < SYNC_COUNT; i++) {
      const from = performance.now();
      writeSync(probe, frame, 0, FRAME_BYTES, (i % FRAMES_MAX) * FRAME_BYTES);
      fdatasyncSync(probe);
      times.push(performance.now() - from);
    }
    return median(times);
  } finally {
    closeSync(probe);
    rmSync(file);
  }
}
