import sea from 'node:sea';
import { Worker } from 'node:worker_threads';
import { assetText } from './asset.ts';

/** The threads beside the main one: the module that each begins with, from `src`. Each is a bundle in the executable. */
const MODULES = {
  'read-bodies': 'http/model-request-worker.ts',
  write: 'writer-thread.ts',
  audit: 'ledger/audit-worker.ts',
} as const;

/** Starts a thread: from its bundle in the executable (src/files/start.ts), or from the source tree. It gets no environment. */
export function openWorker(name: keyof typeof MODULES, workerData?: unknown): Worker {
  const options = { env: {}, name, workerData };
  return sea.isSea()
    ? new Worker(assetText('start.cjs'), { ...options, eval: true })
    : new Worker(new URL(`../${MODULES[name]}`, import.meta.url), options);
}
