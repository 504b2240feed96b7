// `npm run test:fast`: runs the fast test files (test/groups.mjs), several in a process. Arguments that are files run those
// alone, each by itself; other arguments go to Node (`npm run test:fast -- --watch`).
import { spawnSync } from 'node:child_process';
import { accessSync, constants, statfsSync } from 'node:fs';
import { allFiles, grouped, isFast } from './groups.mjs';

/** The longest random walks are shorter than usual, and a long list. */
const SHORT_WALKS = {
  PURSER_TEST_STEPS: '300',
  PURSER_TEST_FUZZ: '40',
  PURSER_TEST_KEYS: '20',
  PURSER_TEST_FLIPS: '20',
  PURSER_TEST_STREAMS: '60',
  PURSER_TEST_DAYS: '50',
  PURSER_TEST_LEASE_WALKS: '3',
  PURSER_TEST_WALLETS: '1500',
};

/**
 * Temporary files are kept in memory where there is room: no test of this run cuts the power, and none has to wait for a
 * disk. `npm test` runs the same files on the disk.
 */
const MEMORY = '/dev/shm';
const MEMORY_BYTES_MIN = 2 * 1024 ** 3;
function inMemory() {
  try {
    const { bavail, bsize } = statfsSync(MEMORY);
    accessSync(MEMORY, constants.W_OK);
    return bavail * bsize >= MEMORY_BYTES_MIN ? { TMPDIR: MEMORY } : {};
  } catch {
    return {};
  }
}

const given = process.argv.slice(2);
const named = given.filter((it) => !it.startsWith('-'));
const options = given.filter((it) => it.startsWith('-'));
const fast = () => allFiles().filter(isFast);
const files = named.length ? named : options.includes('--watch') ? fast() : grouped(fast());
// A run that watches has no last lines, and few enough tests to name each.
const reporters = options.includes('--watch') ? ['spec'] : ['dot', './test/helper/closing-reporter.mjs'];
const { status } = spawnSync(
  process.execPath,
  [
    '--import=./test/helper/loading.mjs',
    '--test',
    '--test-concurrency=5', // For two cores: half of the time of a file is waiting.
    ...reporters.flatMap((it) => [`--test-reporter=${it}`, '--test-reporter-destination=stdout']),
    ...options,
    ...files,
  ],
  { stdio: 'inherit', env: { ...inMemory(), ...SHORT_WALKS, ...process.env } },
);
process.exitCode = status ?? 1;
