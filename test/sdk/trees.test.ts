import assert from 'node:assert/strict';
import test from 'node:test';
import { assertDottedNames, assertNewDirectories, openClient } from './trees-shared.ts';

test('names that begin with two dots stay in their tree', (t) => assertDottedNames(t, 'js', process.execPath));

test('a tree is fetched into directories that are not there yet', (t) =>
  assertNewDirectories(t, 'js', process.execPath));

test('what cannot be read here is told as it is, and is no lost answer', async (t) => {
  const { here, runs } = await openClient(t, 'js', process.execPath);
  // A name that is no UTF-8, a file that cannot be read, and one that is not there.
  here('mkdir tree; touch "tree/$(printf \'\\377\')"; ln -s /proc/self/mem file');
  const told = await runs(`
for (const local of ['tree', 'file', 'none']) {
  const error = await m.copy(local, 'copied').catch((it) => it);
  console.log(local, error instanceof purser.PurserError, error.code);
}`);
  assert.equal(told, 'tree false ENOENT\nfile false EIO\nnone false ENOENT\n');
});

test('a file of several parts, and one of a tree, are whole', async (t) => {
  const { there, here, runs } = await openClient(t, 'js', process.execPath);
  await there('mkdir tree; seq 1400000 | tee tree/file > file');
  await runs(`await m.fetch('file', 'file'); await m.fetch('tree', 'tree');`);
  assert.equal(here('cksum < file; cksum < tree/file'), await there('cksum < file; cksum < tree/file'));
});
