import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { memoryDirectory } from './helper/run-directory.ts';
import { allFiles, grouped, isFast } from './layers.ts';

export function runFast(given: readonly string[]): void {
  const named = given.filter((it) => !it.startsWith('-'));
  const options = given.filter((it) => it.startsWith('-'));
  const isWatched = options.includes('--watch');
  const directory = mkdtempSync(join(memoryDirectory(), 'pt-'));
  const fast = () => allFiles().filter(isFast);
  const files = named.length ? named : isWatched ? fast() : grouped(fast(), 'fast', directory);
  const { status } = spawnSync(
    process.execPath,
    [
      '--import=./test/helper/loading.mjs',
      '--test',
      '--test-concurrency=5', // Suits two cores: a file spends half of its time waiting.
      `--test-reporter=${isWatched ? 'spec' : 'dot'}`, // When watching, few enough tests run to name each.
      '--test-reporter-destination=stdout',
      ...options,
      ...files,
    ],
    {
      stdio: 'inherit',
      env: { ...process.env, TMPDIR: memoryDirectory(), PURSER_TEST_DISK: tmpdir(), PURSER_TEST_LAYER: 'gate' },
    },
  );
  rmSync(directory, { recursive: true, force: true });
  process.exitCode = status ?? 1;
}
