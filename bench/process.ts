import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, openSync, readdirSync, readFileSync } from 'node:fs';
import http from 'node:http';

/** Pids of the processes that the bench has started and that have not ended. They are killed however the bench ends. */
const started = new Set<number>();
process.on('exit', () => {
  for (const pid of started) kill(pid, 'SIGKILL');
});

const STOP_MILLISECONDS = 15_000;
const TRY_MILLISECONDS = 2;

export type Child = {
  pid: number;
  process: ChildProcess;
  ended: Promise<unknown>;
  stop(signal?: NodeJS.Signals): Promise<void>;
};

/** Starts a program with its output going to the file `log`. */
export function start(command: string, args: readonly string[], log: string, env: Record<string, string> = {}): Child {
  const out = openSync(log, 'a');
  const child = spawn(command, args, { stdio: ['ignore', out, out], env: { ...plainEnvironment(), ...env } });
  closeSync(out);
  return adopt(child);
}

/** Runs a program and returns its stdout. Throws with its stderr if it fails. */
export async function run(
  command: string,
  args: readonly string[],
  { input, ...options }: { cwd?: string; input?: string; env?: NodeJS.ProcessEnv } = {},
): Promise<string> {
  const child = spawn(command, args, { env: plainEnvironment(), ...options, stdio: ['pipe', 'pipe', 'pipe'] });
  const { ended } = adopt(child);
  child.stdin.on('error', () => {}); // The exit code tells why a program ended early.
  child.stdin.end(input ?? '');
  const [stdout, stderr] = await Promise.all([text(child.stdout), text(child.stderr), ended]);
  if (child.exitCode !== 0) throw new Error(`${command} ${args.join(' ').slice(0, 200)} failed: ${stderr || stdout}`);
  return stdout;
}

async function text(stream: AsyncIterable<Buffer>): Promise<string> {
  let whole = '';
  for await (const chunk of stream) whole += chunk.toString();
  return whole;
}

/** Returns the environment without variables that would configure a Purser or a Node that the bench starts. */
function plainEnvironment(): NodeJS.ProcessEnv {
  return Object.fromEntries(Object.entries(process.env).filter(([name]) => !/^(PURSER_|NODE_)/.test(name)));
}

function adopt(child: ChildProcess): Child {
  const { pid } = child;
  const failed = once(child, 'error').then(([error]) => Promise.reject(error));
  if (pid === undefined) return { pid: 0, process: child, ended: failed, stop: () => failed as Promise<never> };
  failed.catch(() => {});
  const ended = once(child, 'exit').finally(() => started.delete(pid));
  started.add(pid);
  return {
    pid,
    process: child,
    ended,
    async stop(signal = 'SIGTERM') {
      if (!started.has(pid)) return;
      kill(pid, signal);
      const late = setTimeout(() => kill(pid, 'SIGKILL'), STOP_MILLISECONDS);
      await ended.catch(() => {});
      clearTimeout(late);
    },
  };
}

/** Adds a process that another started one has started, so that it is stopped too. */
export function track(pid: number): { forget(): void } {
  started.add(pid);
  return { forget: () => void started.delete(pid) };
}

export function kill(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(pid, signal);
  } catch {} // It has ended by itself.
}

/** Microseconds of CPU time that the main thread and all live threads of a process have used so far. */
export function threadMicroseconds(pid: number): { main: number; all: number } {
  const of = (thread: string) =>
    Number(readFileSync(`/proc/${pid}/task/${thread}/schedstat`, 'utf8').split(' ')[0]) / 1000;
  const threads = readdirSync(`/proc/${pid}/task`);
  return { main: of(`${pid}`), all: threads.reduce((sum, it) => sum + of(it), 0) };
}

/** Returns the anonymous memory of a process in MB: memory that no file backs, so no other process shares it. */
export function anonymousMegabytes(pid: number): number {
  const kib = /^RssAnon:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1];
  return (Number(kib) * 1024) / 1e6;
}

/** Resolves when `child` has answered `url` with 200. Throws if it ends before, or takes too long. */
export async function untilAnswers(child: Child, url: string, log: string, milliseconds = 60_000): Promise<void> {
  const from = performance.now();
  for (;;) {
    if ((await statusOf(url)) === 200) return;
    const over = performance.now() - from > milliseconds;
    if (over || child.process.exitCode !== null)
      throw new Error(`${child.process.spawnfile} does not answer ${url}:\n${readFileSync(log, 'utf8').slice(-2000)}`);
    await sleep(TRY_MILLISECONDS);
  }
}

/** Sends a GET on a new connection and returns the status, or 0 if nothing listens. */
function statusOf(url: string): Promise<number> {
  return new Promise((resolve) => {
    const request = http.get(url, { agent: false }, (response) => {
      response.resume();
      response.on('close', () => resolve(response.statusCode ?? 0));
    });
    request.on('error', () => resolve(0));
  });
}

export const sleep = (milliseconds: number) => new Promise((resolve) => setTimeout(resolve, milliseconds));
