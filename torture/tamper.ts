import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdirSync, readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';

const POLL_MILLISECONDS = 10;

/**
 * Makes some system calls of a running process fail or come late, until `end`. Returns undefined if strace could not attach:
 * the process may have ended.
 */
export async function tamper(pid: number, calls: string, what: string): Promise<{ end(): Promise<void> } | undefined> {
  const inject = ['-e', `trace=${calls}`, '-e', `inject=${calls}:${what}`];
  const strace = spawn('strace', ['-f', '-qq', '-o', '/dev/null', ...inject, '-p', String(pid)], { stdio: 'ignore' });
  let isOver = false;
  const ended = once(strace, 'close')
    .catch(() => {}) // It is not installed.
    .then(() => {
      isOver = true;
    });
  while (!isOver && !isTraced(pid)) await sleep(POLL_MILLISECONDS);
  if (isOver) return undefined;
  return {
    async end() {
      strace.kill('SIGTERM'); // It detaches from the process first.
      // A strace (6.1) that misses the end of the process's last thread waits for it for ever, and keeps the process a zombie.
      while (!isOver) {
        if (hasEnded(pid)) strace.kill('SIGKILL');
        await Promise.race([ended, sleep(POLL_MILLISECONDS)]);
      }
    },
  };
}

function isTraced(pid: number): boolean {
  try {
    return !/^TracerPid:\t0$/m.test(readFileSync(`/proc/${pid}/status`, 'utf8'));
  } catch {
    return false;
  }
}

/** Says whether no thread of a process runs any more, though it may not have been waited for. */
function hasEnded(pid: number): boolean {
  try {
    const threads = readdirSync(`/proc/${pid}/task`);
    return threads.every((it) => /^State:\tZ/m.test(readFileSync(`/proc/${pid}/task/${it}/status`, 'utf8')));
  } catch {
    return true;
  }
}
