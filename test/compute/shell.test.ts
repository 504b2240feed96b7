import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { readdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { constants } from 'node:os';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { IS_MARKED, KILL_MARKED, LIMITED } from '../../src/compute/machine/shell.ts';
import { length } from '../helper/random.ts';
import { temporaryDirectory } from '../ledger/books.ts';
import { startProcesses } from './engines/crowd.ts';

const CROWD_COUNT = length(300, 3000);

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
  const left = sleepers(seconds);
  return { status, left };
}

/** The processes that are `sleep SECONDS`. */
const sleepers = (seconds: string) =>
  readdirSync('/proc').filter((pid) => {
    try {
      const isOne =
        /^\d+$/.test(pid) && readFileSync(join('/proc', pid, 'cmdline'), 'latin1') === `sleep\0${seconds}\0`;
      return isOne && !isKilled(pid);
    } catch {
      return false; // It has ended.
    }
  });

/** Whether SIGKILL waits for a process, which ends once it has a processor: on a busy machine that is later than `kill` returns. */
function isKilled(pid: string): boolean {
  const [, pending] = /^ShdPnd:\s*([0-9a-f]+)$/m.exec(readFileSync(join('/proc', pid, 'status'), 'latin1')) ?? [];
  return (BigInt(`0x${pending}`) & (1n << BigInt(constants.signals.SIGKILL - 1))) !== 0n;
}

test(`a limit takes the same few forks for ${CROWD_COUNT} processes as for ten`, async (t) => {
  const count = join(temporaryDirectory(t), 'count');
  const bin = programs(t, `echo >> ${count}; exec /bin/grep "$@"`);
  await startProcesses(t, CROWD_COUNT);
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

test('a command that ends leaves nothing of its guard, whichever step the guard has come to', async () => {
  const lines = LIMITED.split('\n');
  const [begin, limit] = [lines.indexOf('('), lines.findIndex((line) => line.includes('wait "$nap"'))];
  assert.ok(begin > 0 && limit > begin);
  for (let at = begin + 1; at <= limit; at++) {
    // The guard is stopped before this line and goes no further until the signal is there.
    const script = lines.toSpliced(at, 0, `sh -c 'kill -TERM "$PPID"'`).join('\n');
    const seconds = `7${randomBytes(3).readUIntBE(0, 3)}`;
    const child = spawn('/bin/sh', ['-c', script, 'purser', randomBytes(12).toString('hex'), seconds, 'exit 7']);
    assert.deepEqual(await once(child, 'exit'), [7, null]);
    const left = sleepers(seconds);
    for (const pid of left) process.kill(Number(pid));
    assert.deepEqual(left, [], `stopped before ${lines[at]}`);
  }
});

test('a program that gets its mark only after the killing has begun is killed, too', async () => {
  const marker = randomBytes(12).toString('hex');
  const killer = spawn('/bin/sh', ['-c', KILL_MARKED, 'purser', marker]);
  const ended = once(killer, 'exit');
  const late = spawn('/bin/sh', ['-c', `sleep 1.5; exec env PURSER_EXEC=${marker} sleep 60`]);
  assert.deepEqual(await once(late, 'exit'), [null, 'SIGKILL']);
  assert.deepEqual(await ended, [0, null]);
});
