import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { builtFiles } from '../helper/executable.ts';

const ROOT = join(import.meta.dirname, '../..');
const SOURCES = [
  'src',
  'cli',
  'migrations',
  'sdk',
  'build.mjs',
  'build-notices.mjs',
  'package.json',
  'package-lock.json',
  'LICENSE',
];

/** Builds the sources as they are here in a directory of its own. Its packages are hard links: a symlink would lead back. */
function buildIn(t: TestContext, name: string): string {
  const place = mkdtempSync(join(ROOT, 'dist', 'two-builds-'));
  t.after(() => rmSync(place, { recursive: true, force: true }));
  const directory = join(place, name);
  mkdirSync(directory, { recursive: true });
  execFileSync('cp', ['-a', ...SOURCES.map((source) => join(ROOT, source)), directory]);
  execFileSync('cp', ['-al', join(ROOT, 'node_modules'), directory]);
  execFileSync(process.execPath, ['build.mjs'], { cwd: directory, stdio: ['ignore', 'ignore', 'inherit'] });
  return join(directory, 'dist');
}

test('two builds of the same sources at two paths are the same but for what V8 compiled', (t) => {
  const [one, two] = [buildIn(t, 'a'), buildIn(t, 'another/place')] as [string, string];
  const sums = (dist: string) => readFileSync(join(dist, 'purser.sha256'), 'utf8');
  assert.equal(sums(one), sums(two));
  for (const { name, text } of builtFiles(/\.cjs(\.map)?$/, one))
    assert(readFileSync(join(two, name), 'latin1') === text, name);
  const digest = (dist: string) =>
    JSON.parse(execFileSync(join(dist, 'purser'), ['version', '--json'], { encoding: 'utf8' })).bundle_sha256;
  assert.equal(digest(one), digest(two));
});
