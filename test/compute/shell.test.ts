import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { existsSync, mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { IS_MARKED, judgeUpload, LIMITED, RECEIVE } from '../../src/compute/backends/shell.ts';
import { hasComponent, hasProgram } from '../helper/component.ts';
import { temporaryDirectory } from '../ledger/books.ts';
import { startProcesses } from './engines/crowd.ts';

const SHELLS = [['dash'], ['bash'], ['busybox', 'sh']] as const;

/** What the guard needs besides a shell, each in its place of this machine. */
const PROGRAMS = ['sh', 'sleep', 'setsid', 'env'];

/** A directory of programs that is the whole PATH of a machine; `grep`, if it is given, is a script. */
function programs(t: TestContext, grep?: string): string {
  const bin = temporaryDirectory(t);
  for (const name of PROGRAMS) {
    const path = spawnSync('sh', ['-c', `command -v ${name}`], { encoding: 'utf8' }).stdout.trim();
    symlinkSync(path, join(bin, name));
  }
  if (grep) writeFileSync(join(bin, 'grep'), `#!/bin/sh\n${grep}\n`, { mode: 0o755 });
  return bin;
}

/** Runs a command past its limit. Answers its exit code and which of its processes are left. */
function runTooLong(PATH: string) {
  const seconds = `7${randomBytes(3).readUIntBE(0, 3)}`;
  // The one in the background has closed what it inherited, so only its environment tells whose it is.
  const command = `setsid sleep ${seconds} 8<&- & sleep ${seconds}`;
  const { status } = spawnSync('/bin/sh', ['-c', LIMITED, 'purser', randomBytes(12).toString('hex'), '1', command], {
    env: { PATH },
    stdio: ['ignore', 'ignore', 'inherit'],
  });
  const left = readdirSync('/proc').filter((pid) => {
    try {
      return /^\d+$/.test(pid) && readFileSync(join('/proc', pid, 'cmdline'), 'latin1') === `sleep\0${seconds}\0`;
    } catch {
      return false; // It has ended.
    }
  });
  return { status, left };
}

test('a limit takes the same few forks for 3,000 processes as for ten', async (t) => {
  const count = join(temporaryDirectory(t), 'count');
  const bin = programs(t, `echo >> ${count}; exec /bin/grep "$@"`);
  await startProcesses(t, 3000);
  writeFileSync(count, '');
  assert.deepEqual(runTooLong(bin), { status: 137, left: [] });
  const greps = readFileSync(count, 'utf8').length;
  assert.ok(greps >= 1 && greps <= 6, `${greps} greps: at most two in each of three rounds`);
});

for (const [what, grep] of [
  ['has no grep', undefined],
  ['has a grep that does not know -z', 'case "$1" in *z*) exit 2 ;; esac; exec /bin/grep "$@"'],
  // As the shell answers where the kernel refuses the list: here one with two first digits.
  [
    'has more processes than a list of arguments takes',
    'case "$*" in *" 1"*" 2"*) exit 126 ;; esac; exec /bin/grep "$@"',
  ],
] as const)
  test(`a limit holds, and a marked process is found, where the machine ${what}`, (t) => {
    const PATH = programs(t, grep);
    assert.deepEqual(runTooLong(PATH), { status: 137, left: [] });
    const marker = randomBytes(12).toString('hex');
    const look = (env: object) =>
      spawnSync('/bin/sh', ['-c', IS_MARKED, 'purser', marker], { env: { PATH, ...env } }).status;
    assert.deepEqual([look({}), look({ PURSER_EXEC: marker })], [1, 0]);
  });

test('an upload says in every shell what became of it', (t) => {
  if (!hasComponent(t, 'busybox', () => hasProgram('busybox'))) return;
  for (const [shell, ...words] of SHELLS) {
    const home = temporaryDirectory(t);
    mkdirSync(join(home, 'folder'));
    writeFileSync(join(home, 'file'), 'old', { mode: 0o600 });
    const receive = (path: string, content = 'hello', length = content.length) => {
      const argv = [...words, '-c', RECEIVE, 'purser', path, String(length)];
      const { status, stderr } = spawnSync(shell, argv, { input: content, cwd: home });
      judgeUpload(status ?? 255, stderr);
    };
    for (const path of ['new/x', '-n', '-d/x', 'file', `${home}/there`, 'it\'s "$HOME"']) {
      receive(path);
      assert.equal(readFileSync(path.startsWith('/') ? path : join(home, path), 'utf8'), 'hello', `${shell}: ${path}`);
    }
    for (const [path, message] of [
      ['folder', /is a directory/],
      ['file/x', /cannot be written there: .*(exists|Not a directory)/],
      ['/proc/x', /must not lie in/],
      ['/dev/x', /must not lie in/],
    ] as const)
      assert.throws(() => receive(path), { code: 'invalid_request', message }, `${shell}: ${path}`);
    assert.throws(() => receive('short', 'hello', 6), /connection was lost/);
    assert.equal(existsSync(join(home, 'short')), false);
    assert.deepEqual(
      readdirSync(home).filter((it) => it.includes('.purser-')),
      [],
      'nothing unfinished is left',
    );
  }
});
