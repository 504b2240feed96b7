import { spawn } from 'node:child_process';
import { once } from 'node:events';
import type { TestContext } from 'node:test';
import { hasComponent, hasProgram } from '../../helper/component.ts';

const SLEEPERS = 'i=0; while [ $i -lt "$1" ]; do busybox sleep 3600 & i=$((i + 1)); done; echo made; wait';

/** Starts so many idle processes on this machine, in one group, which is killed when the test ends. */
export async function startCrowd(t: TestContext, count: number): Promise<void> {
  if (!hasComponent(t, 'busybox', () => hasProgram('busybox'))) return;
  const crowd = spawn('/bin/sh', ['-c', SLEEPERS, 'crowd', String(count)], {
    detached: true,
    stdio: ['ignore', 'pipe', 'ignore'],
  });
  const ended = once(crowd, 'exit');
  t.after(async () => {
    process.kill(-(crowd.pid as number), 'SIGKILL');
    await ended;
  });
  await once(crowd.stdout, 'data');
}
