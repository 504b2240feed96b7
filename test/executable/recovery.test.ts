import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { copyFileSync, cpSync, mkdirSync, mkdtempSync, readdirSync, rmSync, statfsSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import Database from 'better-sqlite3';
import { hasComponent, hasProgram } from '../helper/component.ts';
import { EXECUTABLE, installation } from '../helper/executable.ts';

const AT_ONCE_COUNT = 3;
const ROUND_COUNT = 3;

/** Books that nobody serves, a place for backups, and a backup there. */
async function openBackedUp(t: TestContext) {
  const purser = installation(t);
  await (await purser.serve()).stop();
  const { accounts } = await purser.json('account', 'list');
  await purser.json('account', 'credit', accounts[0].id, '1000');
  const place = mkdtempSync(join(tmpdir(), 'purser-backups-'));
  t.after(() => rmSync(place, { recursive: true, force: true }));
  const backup = join(place, 'backup.db');
  await purser.json('backup', backup);
  return { purser, place, backup };
}

/** A memory disk of four MiB, gone with the test. */
function smallDisk(t: TestContext): string | undefined {
  if (!hasComponent(t, 'root', () => process.getuid?.() === 0 && hasProgram('mount'))) return undefined;
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

test('of backups to one name at once, one is made and the others say that it is there', async (t) => {
  const { purser, place } = await openBackedUp(t);
  for (let round = 0; round < ROUND_COUNT; round++) {
    const file = join(place, `${round}.db`);
    const said = await Promise.all(Array.from({ length: AT_ONCE_COUNT }, () => purser.cli('backup', file)));
    const codes = said.map(({ code }) => code).sort();
    assert.deepEqual(codes, [0, 4, 4], JSON.stringify(said.map((it) => it.stderr)));
    const database = new Database(file, { readonly: true });
    assert.equal(database.prepare('select count(*) from purser_backup').pluck().get(), 1);
    database.close();
  }
  assert.deepEqual(readdirSync(place).sort(), ['0.db', '1.db', '2.db', 'backup.db']);
});

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
  assert.deepEqual([made.code, made.stderr], [1, `Nothing was backed up: there is no room for it in ${disk}.\n`]);
  const before = await small.cli('restore', backup);
  assert.equal(before.code, 1);
  assert.match(before.stderr, /^Nothing was restored: .*data has no room for a copy of .*backup\.db \(\d+ bytes\)\./m);
  rmSync(join(disk, 'filler'));
  assert.deepEqual(readdirSync(disk), ['data']);
  assert.equal((await small.json('ledger', 'verify')).ok, true);
});

test('what is no file is not restored, and what is no directory takes no backup', async (t) => {
  const { purser, place, backup } = await openBackedUp(t);
  const fifo = join(place, 'fifo');
  execFileSync('mkfifo', [fifo]);
  for (const it of [fifo, place]) {
    const said = await purser.cli('restore', it);
    assert.deepEqual([said.code, said.stderr], [4, `${it} is not restored: it is not a file.\n`]);
  }
  const said = await purser.cli('backup', join(backup, 'in-a-file.db'));
  assert.deepEqual([said.code, said.stderr], [3, `There is no directory ${backup}. Make it, or mount it, first.\n`]);
});

test('a backup that somebody put a trigger into is not restored', async (t) => {
  const { purser, backup } = await openBackedUp(t);
  const database = new Database(backup);
  database.exec('create trigger gift after insert on epoch begin update account set available_cents = 999999; end');
  database.close();
  const said = await purser.cli('restore', backup);
  assert.equal(said.code, 4);
  assert.match(
    said.stderr,
    /is not restored: the books are damaged \(1 faults\): the trigger gift on epoch is not ours/,
  );
  assert.equal((await purser.json('ledger', 'verify')).ok, true);
});

test('another user is told whose the data directory is, not that there is nothing in it', async (t) => {
  if (!hasComponent(t, 'root', () => process.getuid?.() === 0 && hasProgram('setpriv'))) return;
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
