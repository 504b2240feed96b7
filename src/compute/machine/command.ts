import { Refusal } from '../../base/refusal.ts';
import type { Backend, ExecOrder, ExecResult, Ref } from '../backend.ts';
import { collect, type OutputListener } from './collect.ts';
import { hasTimedOut } from './program.ts';
import { firstWord, startRun } from './run.ts';
import { quoted, refuseCommand } from './shell.ts';

/** Commands with more than `exec` of `guest.ts` takes: a directory, variables, input, and listeners for their output. */

/** Seconds after its limit at which a command that the guard inside has not ended is killed by Purser. */
const LATE_SECONDS = 10;
/** Seconds after the limit of a command for which its output may still wait for a slow reader. */
export const UNREAD_SECONDS = 300;

export type CommandEnvironment = {
  /** The directory that it starts in, relative to the one in which commands start. */
  cwd?: string | undefined;
  /** Names and values without NUL; names are those of a shell. */
  env?: Readonly<Record<string, string>> | undefined;
};

export type CommandOrder = ExecOrder &
  CommandEnvironment & {
    input?: Buffer | undefined;
    /** Called once, when the command begins. Until then it may still be refused. */
    onBegin?: () => void;
    /** Called with the output as it comes. */
    onOutput?: Record<'stdout' | 'stderr', OutputListener> | undefined;
    /** Kills the command with all processes that it started. */
    signal?: AbortSignal | undefined;
  };

/** Returns shell code that enters the directory of a command. */
export const enter = ({ cwd }: CommandEnvironment) =>
  cwd === undefined ? ':' : `cd ${quoted(cwd.startsWith('/') ? cwd : `./${cwd}`)} 2>/dev/null`;

/** Returns shell code that becomes the command, with its variables. */
export function become(command: string, { env = {} }: CommandEnvironment): string {
  const variables = Object.entries(env).map(([name, value]) => ` ${name}=${quoted(value)}`);
  return `${variables.length ? `export${variables.join('')}\n` : ''}exec /bin/sh -c ${quoted(command)}`;
}

export const NO_DIRECTORY = () =>
  new Refusal('invalid_request', 'cwd: is no directory of the resource that can be entered. Make it first.');

/**
 * Runs a command to its end or its limit, in the simplest way that its order allows, since not every image has the tools that a
 * setting needs.
 */
export function runCommand(backend: Backend, ref: Ref, order: CommandOrder): Promise<ExecResult> {
  const { input, cwd, env, onBegin, onOutput, signal, ...plain } = order;
  const isPlain = [input, cwd, env, onBegin, onOutput, signal].every((it) => it === undefined);
  return isPlain ? backend.guest.exec(ref, plain) : runInSession(backend, ref, order);
}

/** Runs a command as a text in a session, to its end or its limit. */
export async function runInSession(
  backend: Backend,
  ref: Ref,
  { command, timeoutSeconds, streamBytesMax, budget, input, onBegin, onOutput, signal, ...environment }: CommandOrder,
): Promise<ExecResult> {
  refuseCommand(command);
  const started = performance.now();
  const own = become(command, environment);
  const feed = input === undefined ? `exec </dev/null\n${own}` : `head -c ${input.length} | {\n${own}\n}`;
  const text = `${enter(environment)} || { say cwd; exit 0; }\nsay ok\n${feed}`;
  const run = await startRun(backend, ref, { text, input, timeoutSeconds });
  /** The number of pieces that wait for their reader. */
  let waiting = 0;
  const counted = (it: OutputListener | undefined): OutputListener | undefined =>
    it &&
    (async (piece) => {
      waiting += 1;
      await it(piece);
      waiting -= 1;
    });
  const output = Promise.all([
    collect(run.stdout, streamBytesMax, budget, counted(onOutput?.stdout)),
    collect(run.stderr, streamBytesMax, budget, counted(onOutput?.stderr)),
  ]);
  output.catch(() => {}); // `ended` rejects as well.
  const late = setInterval(() => {
    const seconds = (performance.now() - started) / 1000 - timeoutSeconds;
    if (seconds >= (waiting ? UNREAD_SECONDS : LATE_SECONDS)) run.kill();
  }, 1000);
  const kill = () => run.kill();
  signal?.addEventListener('abort', kill);
  if (signal?.aborted) kill();
  try {
    const word = await firstWord(run);
    if (word === 'cwd') throw NO_DIRECTORY();
    onBegin?.();
    const exitCode = await run.ended;
    const [stdout, stderr] = await output;
    return {
      exitCode,
      stdout: stdout.bytes,
      stderr: stderr.bytes,
      stdoutTruncated: stdout.truncated,
      stderrTruncated: stderr.truncated,
      timedOut: hasTimedOut(exitCode, timeoutSeconds, started),
    };
  } finally {
    clearInterval(late);
    signal?.removeEventListener('abort', kill);
  }
}
