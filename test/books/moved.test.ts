import assert from 'node:assert/strict';
import { copyFileSync, renameSync, rmSync } from 'node:fs';
import { hostname } from 'node:os';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { tagPrefix } from '../../src/compute/backend.ts';
import { files } from '../../src/files/data-directory.ts';
import { fileMark } from '../../src/files/file-mark.ts';
import { LONG, openMemoryServer } from '../lease/leases.ts';

const MACHINE = '0123456789abcdef0123456789abcdef';
const OTHER = 'fedcba9876543210fedcba9876543210';

/** A purser with a lease on an engine that tells its identity, about to start on another machine. */
async function openBefore(t: TestContext) {
  const machine: { id: string | undefined } = { id: MACHINE };
  const purser = await openMemoryServer(t, { machine });
  purser.memory.identity = 'engine a';
  const { token } = await purser.openWallet(LONG);
  const { id } = (await purser.rent(token)).body;
  const moved = async () => (await purser.run('status', {})).moved;
  const events = async () => (await purser.run('events.list', {})).events.filter((it) => it.type === 'books.moved');
  const readyz = async () => (await purser.ask('GET', '/readyz')).body;
  const { database } = files(purser.directory);
  return { purser, machine, token, id, moved, events, readyz, database };
}

/** Puts a copy in the place of a file. */
function copyInPlace(file: string): void {
  copyFileSync(file, `${file}.copy`);
  renameSync(`${file}.copy`, file);
}

test('a disk that moved with its books is served as ever: an event, the log and status say from where, and when it was written', async (t) => {
  const { purser, machine, token, id, moved, events, readyz } = await openBefore(t);
  assert.equal(await moved(), null);
  const writtenAt = Math.floor(purser.clock.wall() / 1000);
  purser.clock.advance(90);
  machine.id = OTHER;
  await purser.reopen();
  const { now } = (await purser.run('status', {})).clock;
  const move = { from: hostname(), host: hostname(), at: now, last_written_at: (await moved())?.last_written_at };
  assert.deepEqual(await moved(), move);
  assert.ok(Number(move.last_written_at) >= writtenAt && Number(move.last_written_at) < now + 1);
  assert.deepEqual(
    (await events()).map((it) => it.data),
    [{ from: hostname(), host: hostname(), last_written_at: move.last_written_at }],
  );
  const line = purser.log.find((it) => it.includes('"event":"books.moved"')) ?? '';
  assert.deepEqual((JSON.parse(line) as { missing: string[] }).missing, []);
  assert.deepEqual(await readyz(), { ready: true });
  assert.equal((await purser.stop(token, id)).body.status, 'stopped', 'its engine is the same');
  await purser.reopen();
  assert.equal((await events()).length, 1, 'that machine is known now');
  assert.deepEqual(await moved(), move);
  assert.deepEqual(purser.problems(), []);
});

test('a copy on another machine only reports: the same books may have been served elsewhere since', async (t) => {
  const { purser, machine, token, id, events, readyz, database } = await openBefore(t);
  const before = fileMark(database);
  machine.id = OTHER;
  await purser.reopen(() => {
    copyInPlace(database);
    rmSync(join(purser.directory, 'ssh_host_key'));
  });
  assert.notEqual(fileMark(database), before);
  assert.match(
    (await readyz()).report_only,
    /another machine than at the last start, and the database is another file/,
  );
  assert.equal((await events()).length, 1);
  const line = purser.log.find((it) => it.includes('"event":"books.moved"')) ?? '';
  assert.match(line, /missing here: .*ssh_host_key/);
  await purser.stop(token, id);
  assert.equal(purser.memory.machines.size, 1);
});

test('a copy on the same machine is known by its new file from then on', async (t) => {
  const { purser, machine, events, readyz, database } = await openBefore(t);
  await purser.reopen(() => copyInPlace(database));
  assert.deepEqual([await readyz(), await events()], [{ ready: true }, []]);
  machine.id = OTHER;
  await purser.reopen();
  assert.deepEqual([await readyz(), (await events()).length], [{ ready: true }, 1]);
});

test('an accepted loss only reports, also where the disk moved', async (t) => {
  const { purser, machine, events, readyz } = await openBefore(t);
  machine.id = OTHER;
  await purser.reopen(() => rmSync(join(purser.directory, 'ledger.head')), { acceptLoss: true });
  assert.match((await readyz()).report_only, /the loss of entries was accepted/);
  assert.equal((await events()).length, 1);
});

test('a copy of the disk itself is found by the machines that the original made since: then nothing is ended, until the operator has looked', async (t) => {
  const { purser, machine, readyz } = await openBefore(t);
  purser.clock.advance(700); // The lease is over here; the original has extended it.
  const { machines } = purser.memory;
  for (const it of machines.values()) it.deadline += 86_400;
  const of = (tag: string) => ({ tag, state: 'running' as const, deadline: Number.MAX_SAFE_INTEGER });
  const prefix = tagPrefix(purser.app.installationId);
  const at = Math.floor(purser.clock.wall() / 1000);
  machines.set('trial', { ref: 'trial', ...of(`${prefix}trial-1`), createdAt: at });
  machine.id = OTHER;
  await purser.reopen();
  await purser.app.reaper.runOnce();
  assert.deepEqual([await readyz(), machines.has('engine am1')], [{ ready: true }, false], 'a trial is none of them');

  await purser.rent((await purser.openWallet(LONG)).token);
  for (const it of machines.values()) it.deadline += 86_400;
  purser.clock.advance(700);
  machines.set('theirs', { ref: 'theirs', ...of(`${prefix}res-theirs`), createdAt: at + 700 });
  await purser.reopen();
  await purser.app.reaper.runOnce();
  assert.match((await readyz()).report_only, /another server writes a copy of these books: it made .*res-theirs/);
  assert.deepEqual(
    [...machines.keys()].sort(),
    ['engine am2', 'theirs', 'trial'],
    'the first sweep comes before any end',
  );
  const applied = await purser.run('resource.reconcile', { apply: true });
  assert.ok(applied.orphans.some((it) => it.ref === 'theirs'));
  purser.clock.advance(400);
  await purser.app.reaper.runOnce();
  assert.deepEqual(
    [[...machines.keys()], await readyz()],
    [[], { ready: true }],
    'the operator has said which books count',
  );
  assert.deepEqual(purser.problems(), []);
});

test('so is it by a snapshot that the original has taken since', async (t) => {
  const { purser, machine, readyz } = await openBefore(t);
  const { machines, snapshots } = purser.memory;
  const tag = `${tagPrefix(purser.app.installationId)}snap-theirs`;
  machine.id = OTHER;
  for (const it of machines.values()) it.deadline += 86_400;
  await purser.reopen();
  purser.clock.advance(700);
  snapshots.set(tag, { bytes: 1, createdAt: Math.floor(purser.clock.wall() / 1000) });
  await purser.reopen();
  await purser.app.reaper.runOnce();
  assert.match((await readyz()).report_only, /another server writes a copy of these books: it made .*snap-theirs/);
  assert.deepEqual([[...snapshots.keys()], machines.size], [[tag], 1], 'nothing was removed');
  await purser.run('resource.reconcile', { apply: true });
  purser.clock.advance(400);
  await purser.app.reaper.runOnce();
  assert.equal(snapshots.size, 0);
});
