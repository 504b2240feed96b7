import { readdirSync, readFileSync } from 'node:fs';
import { childrenOf } from './children.ts';

const LOOK_MILLISECONDS = 10_000;
/** What a file has left, after its limit, to undo its changes. */
const UNDO_MINUTES_MAX = 3;

/**
 * The limit of a test file (loading.mjs) is a timer of its own process: it cannot end one whose main thread waits outside of JavaScript, as
 * in Node's deadlock at exit (nodejs/node#54918). From now on, such children of this process are killed, after what their threads wait for
 * has been printed.
 */
export function endStuck(minutesMax: number): void {
  const since = new Map<number, number>();
  const look = () => {
    const children = childrenOf('self');
    for (const pid of since.keys()) if (!children.includes(pid)) since.delete(pid); // Another file may get its number.
    for (const pid of children) {
      const begun = since.get(pid) ?? performance.now();
      since.set(pid, begun);
      if (performance.now() - begun < (minutesMax + UNDO_MINUTES_MAX) * 60_000) continue;
      console.log(`${pid} is stuck, after its limit of ${minutesMax} minutes, and is killed:\n${threadsOf(pid)}`);
      try {
        process.kill(pid, 'SIGKILL');
      } catch {} // It has ended in the meantime.
    }
  };
  setInterval(look, LOOK_MILLISECONDS).unref();
}

/** Returns, for a process and those below it, its arguments and what each thread of it waits for, as the kernel says it. */
function threadsOf(pid: number): string {
  const tasks = tasksOf(pid).map((it) => {
    const say = (name: string) => read(`/proc/${pid}/task/${it}/${name}`).trim();
    const state = /^State:\t(.*)$/m.exec(say('status'))?.[1];
    const frames = say('stack').match(/(?<=\] )\w+/g) ?? [say('wchan')];
    return `  ${say('comm')}: ${state}, call ${say('syscall')}, in ${frames.join(' < ')}`;
  });
  const below = childrenOf(pid).map(threadsOf);
  return [`${pid}: ${read(`/proc/${pid}/cmdline`).replaceAll('\0', ' ')}`, ...tasks, ...below].join('\n');
}

function tasksOf(pid: number): string[] {
  try {
    return readdirSync(`/proc/${pid}/task`);
  } catch {
    return []; // It has ended in the meantime.
  }
}

/** Returns the text of a file of /proc; nothing where its process has ended, or may not be read. */
function read(file: string): string {
  try {
    return readFileSync(file, 'utf8');
  } catch {
    return '';
  }
}
