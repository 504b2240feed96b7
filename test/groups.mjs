// Which test files are fast, and how they share processes: loading Purser for each of them would take a quarter of their time.
// `npm run test:fast` (test/fast.mjs) runs these alone, `npm test` (test/all.mjs) beside all others.
import { globSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { pathToFileURL } from 'node:url';

/** The helpers that start the executable, ask for programs or root, and load the vocabularies of five real models. */
const NEEDS_MORE = new Set(['test/helper/executable.ts', 'test/helper/component.ts', 'test/helper/tokenizers.ts']);

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

/** Every test file, by name. */
export const allFiles = () => globSync('test/**/*.test.ts', { exclude: ['**/node_modules'] }).sort();

/**
 * Returns whether a test file needs no root, no engine, no build and no seconds before it starts: it imports, directly or not,
 * nothing of NEEDS_MORE.
 */
export const isFast = (file) => !needs(file);

/** More groups than processes at a time, so that none of these is left to run alone for long. */
const GROUP_COUNT = 20;

/** Writes the files that import the tests of a group each. Neighbours, which are alike, go to different groups. */
export function grouped(files) {
  const directory = mkdtempSync(join(tmpdir(), 'purser-test-groups-'));
  process.on('exit', () => rmSync(directory, { recursive: true, force: true }));
  const groups = Array.from({ length: Math.min(GROUP_COUNT, files.length) }, () => []);
  for (const [i, file] of files.entries()) groups[i % groups.length].push(`import '${pathToFileURL(file)}';\n`);
  return groups.map((imports, i) => {
    const group = join(directory, `${String(i + 1).padStart(2, '0')}.mjs`);
    writeFileSync(group, imports.join(''));
    return group;
  });
}
