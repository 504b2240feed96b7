// A Purser that counts what its main thread allocates: `node bench/sampled.ts <data directory>`. From source: the executable has
// no inspector. The first SIGUSR2 begins, the second prints the bytes, of which V8 takes samples, on a line of its own.
import { Session } from 'node:inspector/promises';
import { createLog } from '../src/base/log.ts';
import { readConfig } from '../src/config/config.ts';
import { serve } from '../src/main/serve.ts';

const SAMPLE_BYTES = 16 * 1024;

const config = readConfig({ data: process.argv[2] }, {});
const fatal = (error: unknown) => {
  throw error;
};
const app = await serve(config, { log: createLog(config.log_level), who: 'the bench', create: true, fatal });
process.once('SIGTERM', () => void app[Symbol.asyncDispose]());

const session = new Session();
session.connect();
process.once('SIGUSR2', async () => {
  const collected = { includeObjectsCollectedByMajorGC: true, includeObjectsCollectedByMinorGC: true };
  await session.post('HeapProfiler.startSampling', { samplingInterval: SAMPLE_BYTES, ...collected });
  process.once('SIGUSR2', async () => {
    const { profile } = await session.post('HeapProfiler.stopSampling');
    const bytes = (node: typeof profile.head): number =>
      node.children.reduce((sum, it) => sum + bytes(it), node.selfSize);
    process.stdout.write(`allocated ${bytes(profile.head)}\n`);
  });
});
