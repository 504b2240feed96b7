import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import Database from 'better-sqlite3';
import { randomFrom, SEED } from '../helper/random.ts';
import { hasEnded, pause, until } from '../helper/waiting.ts';
import { CUTS, type Mirror, openMirror } from './mirror.ts';

// The mirror itself, with a plain SQLite writer in Purser's place: what is lost or damaged here is the mirror's fault.

const WRITER = join(import.meta.dirname, 'writer.mjs');
const WRITE_MILLISECONDS_MAX = 300;
const FILE = 'rows.db';

/** Starts a writer in a directory. `last` returns the number of the last row whose commit has returned. */
function startWriter(t: TestContext, directory: string) {
  const child = spawn(process.execPath, [WRITER, join(directory, FILE)], { stdio: ['ignore', 'pipe', 'pipe'] });
  t.after(() => void child.kill('SIGKILL'));
  const said = { stdout: '', stderr: '' };
  for (const name of ['stdout', 'stderr'] as const)
    child[name].setEncoding('utf8').on('data', (text: string) => {
      said[name] += text;
    });
  const closed = once(child, 'close');
  const last = () => Number(said.stdout.split('\n').at(-2) ?? 0);
  return { child, said, closed, last };
}

/** Returns the number of the last row on a disk. Fails if the database is damaged or a row is missing. */
function lastRow(directory: string): number {
  const database = new Database(join(directory, FILE));
  try {
    assert.equal(database.pragma('integrity_check', { simple: true }), 'ok');
    const { rows, last } = database.prepare('select count(*) rows, max(number) last from row').get() as never;
    assert.equal(rows, last);
    return last;
  } finally {
    database.close();
  }
}

/** Writes on the first box until `until` rows are confirmed. */
async function write(t: TestContext, mirror: Mirror, rows: number) {
  const writer = startWriter(t, mirror.directoryOf(0));
  await until('rows are written', () => {
    assert(!hasEnded(writer.child), writer.said.stderr);
    return writer.last() >= rows;
  });
  return writer;
}

for (const cut of ['process', ...CUTS] as const)
  test(`the mirror: after a cut of the ${cut}, every confirmed row is on the other disk (seed ${SEED})`, async (t) => {
    const mirror = await openMirror(t);
    if (!mirror) return;
    const random = randomFrom(SEED);
    await mirror.open(0);
    const { child, said, closed, last } = await write(t, mirror, 20);
    await pause(random() * WRITE_MILLISECONDS_MAX);
    if (cut === 'process') child.kill('SIGKILL');
    else await mirror.cut(cut);
    await closed;
    if (cut !== 'process') assert.match(said.stderr, /SQLITE_IOERR|SQLITE_READONLY|SQLITE_CORRUPT/);
    await mirror.retire(0);
    await mirror.retire(1);

    await mirror.openAlone(1);
    assert(lastRow(mirror.directoryOf(1)) >= last());
  });

test('the mirror: a frozen disk confirms nothing, and goes on when it is thawed', async (t) => {
  const mirror = await openMirror(t);
  if (!mirror) return;
  await mirror.open(0);
  const { child, closed, last } = await write(t, mirror, 20);
  mirror.freeze();
  await pause(200); // What was confirmed before has been printed, and read here.
  const frozenAt = last();
  await pause(500);
  assert.equal(last(), frozenAt);
  mirror.thaw(0);
  await until('it goes on', () => last() > frozenAt);
  child.kill('SIGKILL');
  await closed;
});

test('the mirror: a box that goes on alone leaves the other behind, which lacks what was confirmed until it has caught up', async (t) => {
  const mirror = await openMirror(t, { votes: 1 });
  if (!mirror) return;
  await mirror.open(0);
  const { child, closed, last } = await write(t, mirror, 20);
  await mirror.cut('peer');
  const cutAt = last();
  await until('it goes on alone', () => last() > cutAt + 100);
  child.kill('SIGKILL');
  await closed;
  await mirror.retire(0);
  await mirror.retire(1);

  await mirror.openAlone(1);
  assert(lastRow(mirror.directoryOf(1)) < last(), 'a loss is seen');
  await mirror.retire(1);
  mirror.synchronise(0);
  await mirror.openAlone(1);
  assert(lastRow(mirror.directoryOf(1)) >= last());
});
