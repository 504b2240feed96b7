import { spawnSync } from 'node:child_process';
import { accessSync, constants, mkdtempSync, rmSync, statfsSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { allFiles, grouped, isFast } from './layers.ts';

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

export function runFast(given: readonly string[]): void {
  const named = given.filter((it) => !it.startsWith('-'));
  const options = given.filter((it) => it.startsWith('-'));
  const isWatched = options.includes('--watch');
  const directory = mkdtempSync(join(tmpdir(), 'pt-'));
  const fast = () => allFiles().filter(isFast);
  const files = named.length ? named : isWatched ? fast() : grouped(fast(), directory);
  const { status } = spawnSync(
    process.execPath,
    [
      '--import=./test/helper/loading.mjs',
      '--test',
      '--test-concurrency=5', // For two cores: half of the time of a file is waiting.
      `--test-reporter=${isWatched ? 'spec' : 'dot'}`, // A run that watches has few enough tests to name each.
      '--test-reporter-destination=stdout',
      ...options,
      ...files,
    ],
    { stdio: 'inherit', env: { ...inMemory(), PURSER_TEST_LAYER: 'gate', ...process.env } },
  );
  rmSync(directory, { recursive: true, force: true });
  process.exitCode = status ?? 1;
}
