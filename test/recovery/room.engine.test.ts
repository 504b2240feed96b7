import assert from 'node:assert/strict';
import { cpSync, mkdirSync, readdirSync, statSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { openDatabase } from '../../src/db/open.ts';
import { backUp } from '../../src/recovery/backup.ts';
import { layFixture } from '../fixtures/dump.ts';
import { openTestServer } from '../helper/server.ts';
import { openSmallDisk } from '../helper/small-disk.ts';
import { FOLDER } from './upgrade-shared.ts';

const MIB = 1024 * 1024;

test('no backup takes the space on the disk of the books that new work needs', async (t) => {
  const disk = openSmallDisk(t, 40);
  if (!disk) return;
  const purser = await openTestServer(t);
  await purser.openWallet();
  await purser.close();
  const directory = join(disk.directory, 'data');
  cpSync(purser.directory, directory, { recursive: true });
  const { size } = statSync(join(directory, 'purser.db'));
  disk.fill(size + MIB); // Enough for the copy, and a quarter of the reserve of 5 MiB is more.
  const before = readdirSync(disk.directory);
  const file = join(disk.directory, 'backup.db');
  const refused = { message: `Nothing was backed up: there is no room for it in ${disk.directory}.` };
  await assert.rejects(backUp(directory, file, '1.2.3', 1_790_000_000), refused);
  assert.deepEqual(readdirSync(disk.directory), before);
  disk.free();
  assert.equal((await backUp(directory, file, '1.2.3', 1_790_000_000)).file, file);
});

test('a migration without room for its copy leaves nothing of that: the earlier version has the space that it had', async (t) => {
  const disk = openSmallDisk(t, 40);
  if (!disk) return;
  const directory = join(disk.directory, 'data');
  mkdirSync(directory, { mode: 0o700 });
  layFixture(join(FOLDER, '0005_seals.sql'), directory);
  const file = join(directory, 'purser.db');
  const { size } = statSync(file);
  disk.fill(size - 64 * 1024);
  const [before, free] = [readdirSync(directory), disk.freeBytes()];
  assert.throws(() => openDatabase(file, { migrate: true }), { code: 'SQLITE_FULL' });
  assert.deepEqual(readdirSync(directory), before);
  assert.equal(disk.freeBytes(), free);
  disk.free();
  openDatabase(file, { migrate: true }).client.close();
});
