import assert from 'node:assert/strict';
import { existsSync, mkdtempSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { suite, type TestContext, test } from 'node:test';
import Client from 'better-sqlite3';
import { createDiskReserve, type DiskReserveEvents } from '../../src/db/disk-reserve.ts';
import { openDatabase } from '../../src/db/open.ts';
import { openSmallDisk } from '../helper/small-disk.ts';

const MIB = 1024 * 1024;

/** A room on a small disk; on one of 32 MiB its reserve is 4 MiB. `told` resolves when an event has been told so often. */
function openRoom(t: TestContext, inFlight = () => 0, mebibytes = 32) {
  const disk = openSmallDisk(t, mebibytes);
  if (!disk) return undefined;
  const said: string[] = [];
  const waiting = new Set<() => void>();
  const say = (event: string) => {
    said.push(event);
    for (const check of [...waiting]) check();
  };
  const events: DiskReserveEvents = {
    diskLow: () => say('low'),
    diskEnough: () => say('enough'),
    reserveMade: () => say('made'),
    reserveUsed: () => say('used'),
    failed: (where) => say(`${where} failed`),
  };
  const file = join(disk.directory, 'reserve');
  const open = () => {
    const room = createDiskReserve(file, inFlight, events);
    t.after(() => room.stop());
    return room;
  };
  const told = (event: string, count = 1) =>
    new Promise<void>((resolve) => {
      const check = () => {
        if (said.filter((it) => it === event).length < count) return;
        waiting.delete(check);
        resolve();
      };
      waiting.add(check);
      check();
    });
  return { disk, file, open, said, told, blocks: () => statSync(file).blocks * 512 };
}

/** A look at the disk is believed for a moment. */
const later = () => new Promise((resolve) => setTimeout(resolve, 150));

test('the log may grow only where the reserve is whole', (t) => {
  const disk = openSmallDisk(t, 32);
  if (!disk) return;
  const whole = mkdtempSync(join(tmpdir(), 'purser-log-'));
  t.after(() => rmSync(whole, { recursive: true }));
  for (const [directory, mebibytes] of [
    [disk.directory, 4],
    [whole, 16],
  ] as const)
    for (const pageBytes of [2048, 4096]) {
      const file = join(directory, `of-${pageBytes}.db`);
      const made = new Client(file);
      made.exec(`pragma page_size = ${pageBytes}; vacuum`);
      made.close();
      const { client } = openDatabase(file, { migrate: true });
      assert.equal(client.pragma('page_size', { simple: true }), BigInt(pageBytes));
      const pages = client.pragma('wal_autocheckpoint', { simple: true });
      assert.equal(Number(pages) * pageBytes, mebibytes * 1024 * 1024);
      client.close();
    }
});

// The reserve is made two seconds after the start: the tests wait together.
suite('room on a small disk', { concurrency: true }, () => {
  test('the reserve is made of real blocks, and is there again at the next start', async (t) => {
    const it = openRoom(t);
    if (!it) return;
    const room = it.open();
    room.start();
    await it.told('made');
    assert.equal(it.blocks(), 4 * MIB);
    await room.stop();
    const before = statSync(it.file).ino;
    const again = it.open();
    again.start();
    assert.equal(again.shortage(), undefined);
    await again.stop();
    assert.equal(statSync(it.file).ino, before);
  });

  test('what is new needs a quarter as much beside the reserve, and something for each request in flight', async (t) => {
    let inFlight = 0;
    const it = openRoom(t, () => inFlight);
    if (!it) return;
    const room = it.open();
    room.start();
    await it.told('made');
    it.disk.fill(MIB);
    await later();
    assert.equal(room.shortage(), undefined);
    inFlight = 1;
    await later();
    assert.match(room.shortage() ?? '', /^the disk has 1.0 MiB free and needs 1.1 for requests in flight$/);
    inFlight = 0;
    await later();
    assert.equal(room.shortage(), undefined);
    assert.deepEqual(it.said, ['made', 'low', 'enough']);
  });

  test('without its reserve, a disk needs the space for that, too', async (t) => {
    const it = openRoom(t);
    if (!it) return;
    const room = it.open(); // Not started: nothing makes the reserve.
    it.disk.fill(3 * MIB);
    assert.equal(room.shortSeconds(), undefined);
    const before = performance.now();
    assert.match(room.shortage() ?? '', /has 3.0 MiB free and needs 5.0/);
    assert.equal(room.shortSeconds(), 0);
    await later();
    await new Promise((resolve) => setTimeout(resolve, 1000));
    assert.ok(room.shortage());
    const seconds = room.shortSeconds() ?? 0;
    assert(seconds >= 1 && seconds <= (performance.now() - before) / 1000, `counted from the first time: ${seconds} s`);
    it.disk.free();
    await later();
    assert.equal(room.shortage(), undefined);
    assert.equal(room.shortSeconds(), undefined);
  });

  test('the reserve is given once, at once, and made again when there is room', async (t) => {
    const it = openRoom(t);
    if (!it) return;
    const room = it.open();
    room.start();
    await it.told('made');
    it.disk.fill();
    assert.equal(it.disk.freeBytes(), 0);
    assert.equal(room.release(), true);
    assert.equal(it.disk.freeBytes(), 4 * MIB);
    assert.equal(room.release(), false, 'there is no more');
    assert(room.shortage());
    it.disk.free();
    await it.told('made', 2);
    assert.equal(room.shortage(), undefined);
    assert.equal(it.blocks(), 4 * MIB);
  });

  test('a shortage is told once while writes go on failing without a reserve, and so is its end', async (t) => {
    const it = openRoom(t);
    if (!it) return;
    const room = it.open(); // Not started: nothing makes the reserve.
    it.disk.fill();
    for (let write = 0; write < 5; write++) {
      assert(room.shortage());
      assert.equal(room.release(), false);
    }
    it.disk.free();
    assert.equal(room.shortage(), undefined);
    assert.deepEqual(it.said, ['low', 'enough']);
  });

  test('a reserve that is being made is given, too', async (t) => {
    const it = openRoom(t, () => 0, 128); // 16 MiB of reserve: making it takes a while.
    if (!it) return;
    const free = it.disk.freeBytes();
    const room = it.open();
    room.start();
    while (!existsSync(it.file) || statSync(it.file).size < 2 * MIB)
      await new Promise((resolve) => setImmediate(resolve));
    assert.equal(room.release(), true);
    await room.stop();
    assert.deepEqual(it.said, ['used'], 'it was not made yet');
    assert(!existsSync(it.file));
    assert.equal(it.disk.freeBytes(), free);
  });

  test('a database on a full disk is opened by means of the reserve', async (t) => {
    const it = openRoom(t);
    if (!it) return;
    const room = it.open();
    room.start();
    await it.told('made');
    await room.stop();
    it.disk.fill();
    assert(it.open().shortage());
    assert.equal(it.disk.freeBytes(), 4 * MIB);
  });

  test('stopping before the start, twice, and in the middle of making leaves nothing half', async (t) => {
    const it = openRoom(t);
    if (!it) return;
    const room = it.open();
    await room.stop();
    room.start();
    await room.stop();
    await room.stop();
    assert(!existsSync(it.file));
  });
});
