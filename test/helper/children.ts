import { readdirSync, readFileSync } from 'node:fs';

/** Returns the processes that a process has started and that have not been waited for; none where it has ended. */
export function childrenOf(pid: number | 'self'): number[] {
  try {
    return readdirSync(`/proc/${pid}/task`)
      .map((it) => readFileSync(`/proc/${pid}/task/${it}/children`, 'utf8'))
      .flatMap((it) => it.split(' ').filter(Boolean).map(Number));
  } catch {
    return []; // It, or the thread, has ended in the meantime.
  }
}
