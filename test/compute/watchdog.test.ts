import assert from 'node:assert/strict';
import { type ChildProcess, execFileSync, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { hasComponent, hasProgram } from '../helper/component.ts';
import { until } from './conformance.ts';

const FOLDER = join(import.meta.dirname, '../../src/compute/backends/container/watchdog');
const now = () => Math.floor(Date.now() / 1000);
const ARGV_PROBLEMS = [[], ['abc'], ['-1'], ['12x'], [''], ['12345678901'], ['1', '2']];

/** Starts a program as process 1 of a process namespace of its own. */
function startFirst(t: TestContext, ...argv: string[]): { child: ChildProcess; ended: Promise<number | null> } {
  const child = spawn('unshare', ['--pid', '--fork', '--kill-child', '--mount-proc', ...argv], { stdio: 'ignore' });
  t.after(() => child.kill('SIGKILL'));
  return { child, ended: once(child, 'exit').then(([code]) => code) };
}

/** The process in the namespace that `unshare` made. */
const firstOf = ({ pid }: ChildProcess) =>
  until('it has begun', async () => readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').trim() || undefined);

async function behaves(t: TestContext, ...program: string[]): Promise<void> {
  for (const argv of ARGV_PROBLEMS)
    assert.equal(await startFirst(t, ...program, ...argv).ended, 64, `process 1 with ${JSON.stringify(argv)}`);
  assert.equal(await startFirst(t, ...program, String(now() - 1)).ended, 0, 'a deadline that has passed');

  const deadline = now() + 2;
  assert.equal(await startFirst(t, ...program, String(deadline)).ended, 0);
  assert.ok(Date.now() / 1000 >= deadline, 'not before its deadline');

  const { child, ended } = startFirst(t, ...program, String(now() + 600));
  const first = await firstOf(child);
  const tell = (...argv: string[]) => {
    const { status, stdout } = spawnSync('nsenter', ['--target', first, '--pid', '--mount', ...program, ...argv]);
    return [status, stdout.toString()];
  };
  await until('it has its deadline', async () => tell()[0] === 0);
  const moved = String(now() + 900);
  assert.deepEqual(tell(moved), [0, `${moved}\n`]);
  assert.deepEqual(tell(), [0, `${moved}\n`], 'it is told without being moved');
  assert.equal(tell('later')[0], 64);
  const soon = now() + 2;
  assert.deepEqual(tell(String(soon)), [0, `${soon}\n`]);
  assert.equal(await ended, 0);
  assert.ok(Date.now() / 1000 >= soon && Date.now() / 1000 < soon + 3);

  const stopped = startFirst(t, ...program, String(now() + 600));
  process.kill(Number(await firstOf(stopped.child)), 'SIGTERM');
  assert.ok([143, 137].includes((await stopped.ended) ?? 137), 'an engine that stops it does not wait');
}

test('the watchdogs are those that SHA256SUMS names', () => {
  execFileSync('sha256sum', ['--check', '--strict', '--quiet', 'SHA256SUMS'], { cwd: FOLDER });
});

for (const [architecture, prefix] of [
  ['amd64', process.arch === 'x64' ? [] : ['qemu-x86_64-static']],
  ['arm64', process.arch === 'arm64' ? [] : ['qemu-aarch64-static']],
] as const)
  test(`the watchdog of ${architecture} ends at its deadline, and moves it`, async (t) => {
    if (!hasComponent(t, 'root', () => process.getuid?.() === 0)) return;
    // Of the foreign one only a machine with an emulator can tell.
    const [emulator] = prefix;
    if (emulator !== undefined && !hasComponent(t, emulator, () => hasProgram(emulator))) return;
    await behaves(t, ...prefix, join(FOLDER, `watchdog-${architecture}`));
  });

test('what its source makes today behaves the same', async (t) => {
  if (!hasComponent(t, 'root', () => process.getuid?.() === 0)) return;
  if (!hasComponent(t, 'gcc', () => process.arch !== 'x64' || hasProgram('x86_64-linux-gnu-gcc'))) return;
  if (process.arch !== 'x64') return t.diagnostic('its build is tried on amd64 alone');
  const directory = mkdtempSync(join(tmpdir(), 'purser-watchdog-'));
  t.after(() => rmSync(directory, { recursive: true }));
  execFileSync(join(FOLDER, 'build.sh'), [directory, 'amd64']);
  await behaves(t, join(directory, 'watchdog-amd64'));
});
