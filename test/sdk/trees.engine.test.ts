import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { hasComponent } from '../helper/component.ts';
import { openSmallDisk } from '../helper/small-disk.ts';
import { assertDottedNames, assertNewDirectories, type Language, openClient } from './trees-shared.ts';

test('names that begin with two dots stay in their tree, in Python', async (t) => {
  if (hasComponent(t, 'python3')) await assertDottedNames(t, 'python', 'python3');
});

test('a tree is fetched into directories that are not there yet, in Python', async (t) => {
  if (hasComponent(t, 'python3')) await assertNewDirectories(t, 'python', 'python3');
});

/** Fetches what the disk has no room for: a tree, whose archive is kept elsewhere, and a file. */
async function assertNoRoom(t: TestContext, language: Language, program: string) {
  const disk = openSmallDisk(t, 2);
  if (!disk) return;
  const { there, runs } = await openClient(t, language, program);
  await there('mkdir tree; head -c 300000 /dev/zero | tee tree/file > file');
  disk.fill(100_000);
  for (const name of ['tree', 'file']) {
    const [remote, local] = [name, join(disk.directory, name)].map((it) => JSON.stringify(it));
    const told = await runs(
      language === 'js'
        ? `console.log(await m.fetch(${remote}, ${local}).then(() => 'done', (error) => error.code))`
        : `import errno
try:
    m.fetch(${remote}, ${local}); print("done")
except OSError as error:
    print(errno.errorcode[error.errno])`,
    );
    assert.equal(told, 'ENOSPC\n', name);
  }
  assert.equal(existsSync(join(disk.directory, 'file')), false);
}

test('what a disk has no room for is not taken for whole, in JavaScript', (t) =>
  assertNoRoom(t, 'js', process.execPath));
test('what a disk has no room for is not taken for whole, in Python', async (t) => {
  if (hasComponent(t, 'python3')) await assertNoRoom(t, 'python', 'python3');
});
