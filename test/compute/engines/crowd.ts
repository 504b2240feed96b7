import { spawn } from 'node:child_process';
import { once } from 'node:events';
import type { TestContext } from 'node:test';
import { hasComponent, hasProgram } from '../../helper/component.ts';

const SLEEPERS = 'i=0; while [ $i -lt "$1" ]; do busybox sleep 3600 & i=$((i + 1)); done; echo made; wait';

/** Starts `count` idle processes on this machine, in one process group, which is killed when the test ends. */
export async function startProcesses(t: TestContext, count: number): Promise<void> {
  if (!hasComponent(t, 'busybox', () => hasProgram('busybox'))) return;
  const shell = spawn('/bin/sh', ['-c', SLEEPERS, 'crowd', String(count)], {
    detached: true,
    stdio: ['ignore', 'pipe', 'ignore'],
  });
  const ended = once(shell, 'exit');
  t.after(async () => {
    process.kill(-(shell.pid as number), 'SIGKILL');
    await ended;
  });
  await once(shell.stdout, 'data');
}
