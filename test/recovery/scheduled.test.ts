import assert from 'node:assert/strict';
import { cpSync, existsSync, mkdirSync, readdirSync, renameSync, writeFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import test from 'node:test';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { followFaults } from '../../src/base/fault.ts';
import { beginNewEpoch, endReportOnly } from '../../src/lease/report-only.ts';
import { backUp } from '../../src/recovery/backup.ts';
import { createBackups, runBackup } from '../../src/recovery/scheduled.ts';
import { openTestServer } from '../helper/server.ts';
import { waitFor } from '../helper/waiting.ts';
import { temporaryDirectory } from '../ledger/books.ts';

const DAY = 86_400;

test('backups are made when they are due, over restarts, and only those of this installation are removed', async (t) => {
  const directory = temporaryDirectory(t);
  const purser = await openTestServer(t);
  const config = { backup: { every: DAY, keep: 2, directory } };
  const app = { ...purser.app, config };
  const events = { ...purser.app.events, gauge() {} };
  let made = 0;
  const make = async (file: string) => {
    made++;
    await backUp(purser.directory, file, '1.2.3', purser.clock.wall() / 1000);
  };
  const backups = createBackups({ ...app, events }, make);
  await Promise.all([backups.runOnce(), backups.runOnce()]); // One at a time.
  await backups.runOnce();
  assert.equal(made, 1);
  const [first] = readdirSync(directory) as [string];
  assert.match(first, new RegExp(`^purser-${purser.app.installationId}-\\d{8}T\\d{6}Z\\.db$`));

  // Like ours by name alone, of another installation, and of no kind.
  const claimed = first.replace(/\d{8}T/, '20010101T');
  const foreign = first.replace(purser.app.installationId, 'another');
  for (const name of ['precious.db', claimed]) writeFileSync(join(directory, name), 'not a database');
  cpSync(join(directory, first), join(directory, foreign));
  const left = `${first.replace(/\d{8}T/, '20020202T')}.part`;
  writeFileSync(join(directory, left), '');

  const again = createBackups({ ...app, events }, make); // As after a restart.
  await again.runOnce();
  assert.equal(made, 1);
  for (let day = 1; day <= 2; day++) {
    purser.clock.advance(DAY);
    await again.runOnce();
  }
  assert.equal(made, 3);
  const names = readdirSync(directory);
  for (const name of ['precious.db', claimed, foreign]) assert(names.includes(name), `${name} is not ours`);
  assert(!names.includes(first) && !names.includes(left));
  assert.equal(names.length, 5);
  assert.deepEqual(purser.problems(), []);
});

test('a backup that is asked for is made apart from the planned ones: it postpones none and pushes none out', async (t) => {
  const directory = temporaryDirectory(t);
  const purser = await openTestServer(t);
  const config = { backup: { every: DAY, keep: 2, directory } };
  const events = { ...purser.app.events, gauge() {} };
  const going: string[] = [];
  let together = 0;
  const make = async (file: string) => {
    together = Math.max(together, going.push(file));
    await backUp(purser.directory, file, '1.2.3', purser.clock.wall() / 1000);
    going.pop();
  };
  const backups = createBackups({ ...purser.app, config, events }, make);
  const [, ...asked] = await Promise.all([backups.runOnce(), backups.makeNow(), backups.makeNow(), backups.makeNow()]);
  assert.equal(together, 1, 'one at a time');
  const names = () => readdirSync(directory).sort();
  const [first, ...manual] = names().toSorted((a, b) => a.length - b.length) as [string, ...string[]];
  assert.deepEqual(asked.map((it) => basename(it)).sort(), manual.toSorted());
  assert.deepEqual(
    manual.map((it) => it.slice(first.length - 3)),
    ['-manual.db', '-manual-2.db', '-manual-3.db'],
  );
  purser.clock.advance(DAY - 1);
  await backups.makeNow();
  await backups.runOnce();
  assert.equal(names().length, 5, 'no planned one is due yet');
  const killed = join(directory, `${manual[0]?.replace('.db', '-9.db')}.part`);
  writeFileSync(killed, '');
  for (let day = 0; day < 2; day++) {
    purser.clock.advance(day === 0 ? 1 : DAY);
    await backups.runOnce();
  }
  assert.equal(names().filter((it) => it.includes('-manual')).length, 4, 'each stays, and what was not finished goes');
  assert.deepEqual([names().includes(first), names().length, existsSync(killed)], [false, 6, false]);
  await backups.stop();
  await assert.rejects(backups.makeNow(), /the server is stopping/);
  assert.equal(names().length, 6);
});

test('what a killed backup left does not keep the next from its room', async (t) => {
  const directory = temporaryDirectory(t);
  const purser = await openTestServer(t);
  const events = { ...purser.app.events, gauge() {} };
  /** A disk with room for one more file. */
  const make = async (file: string) => {
    if (readdirSync(directory).some((it) => it.endsWith('.part'))) throw new Error('there is no room for it');
    writeFileSync(file, '');
  };
  const config = { backup: { every: DAY, keep: 1, directory } };
  const backups = createBackups({ ...purser.app, config, events }, make);
  const left = join(directory, `purser-${purser.app.installationId}-20020202T020202Z.db.part`);
  for (const again of [() => backups.runOnce(), () => backups.makeNow()]) {
    for (const ending of ['', '-journal']) writeFileSync(left + ending, '');
    const before = readdirSync(directory).length;
    await again();
    assert.equal(readdirSync(directory).length, before - 2 + 1);
  }
  assert.deepEqual(purser.problems(), []);
});

test('a server that only reports removes no backup: another one of its installation may have made it', async (t) => {
  const directory = temporaryDirectory(t);
  const purser = await openTestServer(t);
  const config = { backup: { every: DAY, keep: 1, directory } };
  const events = { ...purser.app.events, gauge() {} };
  const make = async (file: string) => {
    await backUp(purser.directory, file, '1.2.3', purser.clock.wall() / 1000);
  };
  const backups = createBackups({ ...purser.app, config, events }, make);
  await backups.runOnce();
  const [first] = readdirSync(directory) as [string];
  const left = `${first.replace(/\d{8}T/, '20020202T')}.part`; // The other's, which it is making.
  writeFileSync(join(directory, left), '');
  const unreadable = first.replace(/\d{8}T/, '20010101T');
  mkdirSync(join(directory, unreadable));
  const now = purser.app.clock.now();
  await purser.app.ledger.write(beginNewEpoch, {
    reason: 'a test',
    acceptedFaults: 0,
    above: 0,
    because: 'a test',
    now,
  });
  purser.clock.advance(DAY);
  await backups.runOnce();
  assert.deepEqual(readdirSync(directory).length, 4);

  await purser.app.ledger.write(endReportOnly, { now });
  purser.clock.advance(DAY);
  await backups.runOnce();
  assert.deepEqual(readdirSync(directory).length, 2, 'the newest, and what is not ours to remove');
  assert(existsSync(join(directory, unreadable)));
  assert.deepEqual(purser.problems(), []);
});

test('after the clock went back a backup of the time to come is not the newest, and the first to be removed', async (t) => {
  const directory = temporaryDirectory(t);
  const purser = await openTestServer(t);
  const gauges: Record<string, () => number | undefined> = {};
  const config = { backup: { every: DAY, keep: 2, directory } };
  const events = {
    ...purser.app.events,
    gauge(name: string, _: string, read: () => number | undefined) {
      gauges[name] = read;
    },
  };
  let now = purser.app.clock.now();
  const make = async (file: string) => {
    await backUp(purser.directory, file, '1.2.3', now);
  };
  const open = () => createBackups({ ...purser.app, clock: { now: () => now }, config, events }, make);
  const age = () => gauges.backup_age_seconds?.();
  const made = () => readdirSync(directory).sort();

  now += 10 * DAY;
  let backups = open();
  await backups.runOnce();
  const [ahead] = made() as [string];
  now -= 10 * DAY;
  assert.equal(age(), Number.POSITIVE_INFINITY);
  backups = open(); // The clock goes back by a restart.
  assert.equal(age(), Number.POSITIVE_INFINITY);
  await backups.runOnce();
  assert.deepEqual([made().length, age()], [2, 0]);
  backups = open();
  now += 60;
  await backups.runOnce();
  assert.deepEqual([made().length, age()], [2, 60], 'it is not due at each start');
  now += DAY;
  await backups.runOnce();
  assert.deepEqual([made().length, made().includes(ahead), age()], [2, false, 0]);
});

test('a backup that fails is logged once and retried; the age says since when there is none', async (t) => {
  const directory = join(temporaryDirectory(t), 'unmounted');
  const purser = await openTestServer(t);
  const logged = (event: string) => purser.log.filter((line) => line.includes(`"event":"${event}"`));
  const gauges: Record<string, () => number | undefined> = {};
  const config = { backup: { every: 6 * 3600, keep: 1, directory } };
  const events = {
    ...purser.app.events,
    gauge(name: string, _: string, read: () => number | undefined) {
      gauges[name] = read;
    },
  };
  const backups = createBackups({ ...purser.app, config, events }, runBackup(purser.directory));
  t.after(() => backups.stop());
  const before = () => logged('backup.failed').length;
  await backups.runOnce();
  assert.equal(before(), 1);
  assert.match(String(logged('backup.failed').at(-1)), /There is no directory .*unmounted/);
  await backups.runOnce(); // Not yet again.
  purser.clock.advance(301);
  await backups.runOnce();
  assert.equal(before(), 1);
  assert.deepEqual(
    [gauges.backup_age_seconds?.(), gauges.backup_every_seconds?.()],
    [Number.POSITIVE_INFINITY, 21_600],
  );

  mkdirSync(directory);
  purser.clock.advance(301);
  await backups.runOnce(); // By `purser backup`, in a process of its own.
  assert.equal(readdirSync(directory).length, 1);
  assert.equal(logged('backup.made').length, 1);
  renameSync(directory, `${directory}.gone`);
  purser.clock.advance(6 * 3600);
  await backups.runOnce();
  assert.equal(before(), 2, 'a new failure is news again');
  assert(existsSync(`${directory}.gone`));
});

test('a turn of the backups that throws is reported, and the next one makes the backup', async (t) => {
  const directory = temporaryDirectory(t);
  const purser = await openTestServer(t);
  const faults: unknown[] = [];
  using _ = followFaults((where, error) => void faults.push([where, (error as Error).message]));
  t.mock.timers.enable({ apis: ['setInterval'] });
  const made = Promise.withResolvers<string>();
  const broken = ['the clock is gone', 'the log is gone'];
  const clock = {
    ...purser.app.clock,
    now() {
      if (broken.length === 2) throw new Error(broken.shift());
      return purser.app.clock.now();
    },
  };
  const backupFailed = () => {
    throw new Error(broken.shift());
  };
  const make = async (file: string) => {
    if (broken.length) throw new Error('the disk is gone');
    made.resolve(file);
  };
  const config = { backup: { every: DAY, keep: 2, directory } };
  const events = { ...purser.app.events, gauge() {}, backupFailed };
  const backups = createBackups({ ...purser.app, clock, config, events }, make);
  t.after(() => backups.stop());
  backups.start();
  await nextTurn();
  for (let turn = 0; turn < 2; turn++) {
    t.mock.timers.tick(10_000);
    await nextTurn();
  }
  assert.deepEqual(faults, [
    ['timer', 'the clock is gone'],
    ['timer', 'the log is gone'],
  ]);
  await waitFor('a backup is made', made.promise);
});
