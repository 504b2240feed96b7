import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { copyFileSync, cpSync, mkdirSync, mkdtempSync, readdirSync, rmSync, statfsSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { hasComponent } from '../helper/component.ts';
import { EXECUTABLE, installation } from '../helper/executable.ts';
import { openBackedUp } from './recovery-shared.ts';

/** A memory disk of four MiB, gone with the test. */
function smallDisk(t: TestContext): string | undefined {
  if (!hasComponent(t, 'root')) return undefined;
  const directory = mkdtempSync(join(tmpdir(), 'purser-small-'));
  execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=4m,mode=755', 'tmpfs', directory]);
  t.after(() => {
    execFileSync('umount', ['--lazy', directory]);
    rmSync(directory, { recursive: true, force: true });
  });
  return directory;
}

function fill(directory: string): void {
  const { bavail, bsize } = statfsSync(directory);
  writeFileSync(join(directory, 'filler'), Buffer.alloc((bavail - 8) * bsize));
}

test('a full disk under the backup, or under the restored books, is said as that, and nothing is left or changed', async (t) => {
  const disk = smallDisk(t);
  if (!disk) return;
  const { purser, backup } = await openBackedUp(t);
  const data = join(disk, 'data');
  mkdirSync(data, { mode: 0o700 });
  const small = installation(t, { directory: data, settings: null });
  copyFileSync(join(purser.directory, 'master.key'), join(data, 'master.key'));
  assert.equal((await small.cli('restore', backup)).code, 0);
  fill(disk);

  const file = join(disk, 'backup.db');
  const made = await purser.cli('backup', file);
  assert.deepEqual([made.code, made.stderr], [5, `Nothing was backed up: there is no room for it in ${disk}.\n`]);
  const before = await small.cli('restore', backup);
  assert.equal(before.code, 5);
  assert.match(before.stderr, /^Nothing was restored: .*data has no room for a copy of .*backup\.db \(\d+ bytes\)\./m);
  rmSync(join(disk, 'filler'));
  assert.deepEqual(readdirSync(disk), ['data']);
  assert.equal((await small.json('ledger', 'verify')).ok, true);
});

test('another user is told whose the data directory is, not that there is nothing in it', async (t) => {
  if (!hasComponent(t, 'root')) return;
  const { purser } = await openBackedUp(t);
  // The executable is in a place of its own: where it was built, nobody else may look.
  const place = mkdtempSync(join(tmpdir(), 'purser-public-'));
  t.after(() => rmSync(place, { recursive: true, force: true }));
  execFileSync('chmod', ['755', place]);
  const executable = join(place, 'purser');
  cpSync(EXECUTABLE, executable);
  const nobody = installation(
    { after() {} },
    {
      directory: purser.directory,
      settings: null,
      command: ['setpriv', '--reuid', '65534', '--clear-groups', executable],
    },
  );
  for (const command of [
    ['ledger', 'verify'],
    ['backup', join(place, 'it.db')],
  ]) {
    const said = await nobody.cli(...command);
    assert.match(said.stderr, /belongs to user 0, this is user 65534\. Run Purser as the owner/, command.join(' '));
  }
});
