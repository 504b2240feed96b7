import { spawn } from 'node:child_process';
import { once } from 'node:events';
import type { Readable } from 'node:stream';
import type { TestContext } from 'node:test';

const SLEEPERS = 'i=0; while [ $i -lt "$1" ]; do read _ <&3 & i=$((i + 1)); done; echo made; wait';

/** Starts `count` idle processes, which are shells and no programs of their own, on this machine, in one process group, which is killed when the test ends. */
export async function startProcesses(t: TestContext, count: number): Promise<void> {
  const shell = spawn('/bin/sh', ['-c', SLEEPERS, 'crowd', String(count)], {
    detached: true,
    stdio: ['ignore', 'pipe', 'ignore', 'pipe'], // The fourth is what they read, and never ends.
  });
  const ended = once(shell, 'exit');
  t.after(async () => {
    process.kill(-(shell.pid as number), 'SIGKILL');
    await ended;
  });
  await once(shell.stdout as Readable, 'data');
}
