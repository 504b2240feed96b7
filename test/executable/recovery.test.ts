import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import Database from 'better-sqlite3';
import { length } from '../helper/random.ts';
import { openBackedUp } from './recovery-shared.ts';

const AT_ONCE_COUNT = 3;

const ROUND_COUNT = length(1, 3);

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
  assert.equal(readdirSync(place).length, ROUND_COUNT + 1, 'and nothing half made');
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
  assert.match(said.stderr, /is not restored: the trigger gift is not ours/);
  assert.equal((await purser.json('ledger', 'verify')).ok, true);
});
