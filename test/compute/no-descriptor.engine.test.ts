import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'node:test';
import { promisify } from 'node:util';
import { hasComponent } from '../helper/component.ts';

const source = (path: string) => JSON.stringify(new URL(`../../src/${path}`, import.meta.url).href);

/** Whatever Purser starts, in a process that has no descriptor left. An event that nobody listens for would end that process. */
const SCRIPT = `
import { openSync } from 'node:fs';
import { setTimeout } from 'node:timers/promises';
import { createSlurmCommands, NeverStarted } from ${source('compute/engines/slurm/command.ts')};
import { beginIn } from ${source('compute/engines/local/process.ts')};
import { createLeases } from ${source('compute/engines/local/lease.ts')};
import { watchBooks } from ${source('reaper/books-watch.ts')};

const [directory] = process.argv.slice(2);
const slurm = createSlurmCommands(undefined);
const user = { name: 'nobody', uid: process.getuid(), gid: process.getgid() };
const events = { booksExamined() {}, failed() {} };
const starts = {
  'a command of Slurm': () => slurm.run(['true']),
  'a program in a job': async () => slurm.start(['true'], user),
  'a command on this machine': async () => beginIn({ home: '/', env: {} }, { purpose: 'exec', script: 'true', args: [] }),
  'the keeper of a lease': async () => createLeases(directory).keep('purser-inst-x-res-y'),
  'an examination of the books': () => watchBooks(directory, {}, {}, {}, events).runOnce(),
};
try {
  for (;;) openSync('/dev/null');
} catch {}
for (const [what, start] of Object.entries(starts)) {
  const said = await start().then(() => 'it was started', (error) => (error instanceof NeverStarted ? 'never started: ' : '') + error.message);
  process.stdout.write(what + ': ' + said + '\\n');
}
await setTimeout(200); // Their events come later.
`;

test('where no descriptor is left a program is not started, says so, and the server goes on', async (t) => {
  if (!hasComponent(t, 'prlimit')) return;
  const directory = mkdtempSync(join(tmpdir(), 'purser-descriptors-'));
  t.after(() => rmSync(directory, { recursive: true, force: true }));
  const file = join(directory, 'script.mjs');
  writeFileSync(file, SCRIPT);
  const loading = new URL('../helper/loading.mjs', import.meta.url).href;
  const args = ['--nofile=256:256', process.execPath, `--import=${loading}`, file, directory];
  // What loading.mjs notes for a run at the end of a process needs a descriptor.
  const env = { ...process.env, PURSER_TEST_RUN: undefined };
  const { stdout } = await promisify(execFile)('prlimit', args, { env });
  assert.deepEqual(stdout.trim().split('\n'), [
    'a command of Slurm: never started: true cannot be started: too many files are open (EMFILE)',
    'a program in a job: never started: true cannot be started: too many files are open (EMFILE)',
    'a command on this machine: /bin/sh cannot be started: too many files are open (EMFILE)',
    'the keeper of a lease: /bin/sh cannot be started: too many files are open (EMFILE)',
    `an examination of the books: ${process.execPath} cannot be started: too many files are open (EMFILE)`,
  ]);
});
