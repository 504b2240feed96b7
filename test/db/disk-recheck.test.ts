import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { followFaults } from '../../src/base/fault.ts';
import { createDiskReserve, growthAhead } from '../../src/db/disk-reserve.ts';
import { openDatabase } from '../../src/db/open.ts';
import { waitFor } from '../helper/waiting.ts';
import { temporaryDirectory } from '../ledger/books.ts';

const INTERVAL_MILLISECONDS = 2000;

test('a recheck of the disk that throws is reported, and the next one comes', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  const faults: unknown[] = [];
  using _ = followFaults((where, error) => void faults.push([where, (error as Error).message]));
  const made = Promise.withResolvers<number>();
  const events = { diskLow() {}, diskEnough() {}, reserveUsed() {}, reserveMade: made.resolve, failed() {} };
  let isBroken = true;
  const inFlight = () => {
    if (isBroken) throw new Error('nobody can say');
    return 0;
  };
  const file = join(temporaryDirectory(t), 'reserve');
  const reserve = createDiskReserve(file, inFlight, events);
  t.after(() => reserve.stop());
  reserve.start();
  for (const times of [1, 2]) {
    t.mock.timers.tick(INTERVAL_MILLISECONDS);
    await nextTurn();
    assert.deepEqual(faults, Array(times).fill(['timer', 'nobody can say']));
  }
  isBroken = false;
  t.mock.timers.tick(INTERVAL_MILLISECONDS);
  t.mock.timers.reset();
  await waitFor('the reserve is made', made.promise);
  assert(existsSync(file));
});

test('what the log will bring into the database needs room, until it is there', (t) => {
  const directory = temporaryDirectory(t);
  const file = join(directory, 'books.db');
  const { client, read } = openDatabase(file, { migrate: true });
  t.after(() => client.close());
  client.pragma('wal_checkpoint(TRUNCATE)');
  assert.equal(growthAhead(read, file), 0);
  client.exec('create table filled (bytes blob); insert into filled values (zeroblob(1000000))');
  assert.ok(growthAhead(read, file) > 1_000_000);
  client.pragma('wal_checkpoint(TRUNCATE)');
  assert.equal(growthAhead(read, file), 0);
  assert.equal(growthAhead(read, `${file}-that-is-gone`), 0);

  const events = { diskLow() {}, diskEnough() {}, reserveUsed() {}, reserveMade() {}, failed() {} };
  const all = () => Number.MAX_SAFE_INTEGER;
  assert.match(createDiskReserve(join(directory, 'one'), () => 0, events, all).shortage() ?? '', /^the disk has /);
});
