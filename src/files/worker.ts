import { getPriority, setPriority } from 'node:os';
import sea from 'node:sea';
import { setFlagsFromString } from 'node:v8';
import { Worker } from 'node:worker_threads';
import { assetText } from './asset.ts';

/**
 * The threads beside the main one. `module` is the entry point of each, below `src`: a bundle in the executable.
 * `youngMegabytes` is V8's semi-space. The writer's objects are dead after its batch, so it needs little
 * (docs/decisions/0062).
 */
const THREADS = {
  'read-bodies': { module: 'http/model-request-worker.ts', youngMegabytes: 8 },
  write: { module: 'main/writer-thread.ts', youngMegabytes: 2 },
  audit: { module: 'ledger/audit-worker.ts', youngMegabytes: 8 },
} as const;

/** Starts a thread from its bundle in the executable (src/files/start.ts), or from the source tree. It gets no environment. */
export function openWorker(name: keyof typeof THREADS, workerData?: unknown): Worker {
  const { module, youngMegabytes } = THREADS[name];
  // The flag of the process (build.mjs) overrides a worker's resourceLimits. The new thread reads it when it creates its heap:
  // of two kinds that are opened at the same moment, both get the size of the second.
  setFlagsFromString(`--max-semi-space-size=${youngMegabytes}`);
  const options = { env: {}, name, workerData };
  return sea.isSea()
    ? new Worker(assetText('start.cjs'), { ...options, eval: true })
    : new Worker(new URL(`../${module}`, import.meta.url), options);
}

/** Added to the nice value of the thread: the others get nine tenths of a processor that both want. */
const NICER = 10;
const NICE_MAX = 19;

/**
 * Gives the other threads precedence where processors are short, by lowering the priority of the calling thread. Does nothing
 * except on Linux, as elsewhere a thread has no priority of its own.
 */
export function lowerPriority(): void {
  if (process.platform !== 'linux') return; // Elsewhere 0 means the process.
  try {
    setPriority(0, Math.min(getPriority(0) + NICER, NICE_MAX));
  } catch {} // It then keeps the priority of the others.
}
