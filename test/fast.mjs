// `npm run test:fast`: runs every test file that needs no root, no engine and no build. Those are the files that import,
// directly or not, nothing of NEEDS_MORE. Arguments that are files run those alone; other arguments go to Node
// (`npm run test:fast -- --watch`).
import { spawnSync } from 'node:child_process';
import { globSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';

/** The helpers that start the executable, and the one that asks for programs or root. */
const NEEDS_MORE = new Set(['test/helper/executable.ts', 'test/helper/component.ts']);

/** The longest random walks are shorter than usual. */
const SHORT_WALKS = { PURSER_TEST_STEPS: '400', PURSER_TEST_FUZZ: '40', PURSER_TEST_KEYS: '40' };

const needsMore = new Map();
function needs(file) {
  if (NEEDS_MORE.has(file)) return true;
  if (!needsMore.has(file)) {
    needsMore.set(file, false); // A circle adds nothing.
    const imports = readFileSync(file, 'utf8').matchAll(/(?:from|import\()\s*'(\.[^']+)'/g);
    needsMore.set(
      file,
      [...imports].map(([, it]) => join(dirname(file), it)).some((it) => it.startsWith('test/') && needs(it)),
    );
  }
  return needsMore.get(file);
}

const given = process.argv.slice(2);
const named = given.filter((it) => !it.startsWith('-'));
const files = named.length ? named : globSync('test/**/*.test.ts').filter((it) => !needs(it));
const options = given.filter((it) => it.startsWith('-'));
// A run that watches has no last lines, and few enough tests to name each.
const reporters = options.includes('--watch') ? ['spec'] : ['dot', './test/helper/closing-reporter.mjs'];
const { status } = spawnSync(
  process.execPath,
  [
    '--import=./test/helper/loading.mjs',
    '--test',
    '--test-concurrency=3', // For two cores: a third of the time of a file is waiting.
    ...reporters.flatMap((it) => [`--test-reporter=${it}`, '--test-reporter-destination=stdout']),
    ...options,
    ...files.sort(),
  ],
  { stdio: 'inherit', env: { ...SHORT_WALKS, ...process.env } },
);
process.exitCode = status ?? 1;
