import type { ChildProcessWithoutNullStreams } from 'node:child_process';
import { finished, PassThrough } from 'node:stream';
import { between, RUN_MARKED } from '../../kit/between.ts';
import { commandOnInput } from '../../kit/command-on-input.ts';
import { newMark } from '../../kit/exit-mark.ts';
import { onOneLine } from '../../kit/one-line.ts';
import { RESIZE, WITH_TERMINAL } from '../../kit/terminal.ts';
import { argvOf, finish, type Program, type ProgramOrder } from '../../machine/program.ts';
import { WAITING } from '../../machine/waiting.ts';
import type { SlurmCommands, User } from './command.ts';
import { directoryOf, SURROUNDINGS } from './job.ts';

/** Runs programs inside a job, each as one `srun`. */

const BEGIN_MILLISECONDS = 30_000;
const RESIZE_MILLISECONDS = 30_000;
/** `srun` ends a moment after its command, unless a background process keeps its streams open. */
const IDLE_MILLISECONDS = 2_000;
const FINISH_MILLISECONDS = 1_000;
const SIGNAL_EXIT = 128;

/**
 * Runs `$3…` in the job's directory `$2` as RUN_MARKED does, with the mark `$1`: `srun` writes messages of its own to standard
 * error, and may have an exit code of its own. Then it reads the unread input to its end: where input still arrives for an ended
 * step, `srun` may discard its last output, with the exit code.
 */
export const ENTER = `mark=$1; export HOME="$2"; shift 2
${SURROUNDINGS}
umask 077; [ -d "$HOME" ] || mkdir -p "$HOME"; [ -O "$HOME" ] && cd "$HOME" || exit 1
umask 022
${RUN_MARKED}
cat >/dev/null
exit 0`;

/** A running job and its user. */
export type RunningJob = { id: string; user: User };

/**
 * Starts the program of an order. The command of an exec goes over standard input, so that no list of processes on this machine
 * shows it.
 */
export async function beginIn(start: SlurmCommands['start'], job: RunningJob, order: ProgramOrder): Promise<Program> {
  const { purpose, marker, terminal } = order;
  if (terminal) {
    const variables = [
      ...[`PURSER_EXEC=${marker}`, `TERM=${terminal.term}`],
      ...[`PURSER_ROWS=${terminal.rows}`, `PURSER_COLUMNS=${terminal.columns}`],
      `PURSER_COMMAND=${order.command ?? ''}`,
    ];
    const program = await begin(start, job, ['env', ...variables, '/bin/sh', '-c', WITH_TERMINAL]);
    program.stderr.resume();
    return { ...program, resize: resizer((size) => resizeTo(start, job, [marker ?? '', ...size.map(String)])) };
  }
  const { argv, head } = purpose === 'exec' ? commandOnInput(order) : { argv: argvOf(order), head: undefined };
  const program = await begin(start, job, argv);
  const begunAt = performance.now();
  if (head?.length) program.stdin.write(head);
  return { ...program, begunAt };
}

type TerminalSize = [rows: number, columns: number];

async function resizeTo(start: SlurmCommands['start'], job: RunningJob, args: string[]): Promise<void> {
  const program = await begin(start, job, argvOf({ script: RESIZE, args }));
  await finish(program, undefined, { streamBytesMax: 0, milliseconds: RESIZE_MILLISECONDS });
}

/** Returns a function that sets sizes one after another. Of those that arrive while one is being set only the latest counts. */
function resizer(set: (size: TerminalSize) => Promise<void>): Program['resize'] {
  let wanted: TerminalSize | undefined;
  let isBusy = false;
  return async (columns, rows) => {
    wanted = [rows, columns];
    if (isBusy) return;
    isBusy = true;
    while (wanted) {
      const size: TerminalSize = wanted;
      wanted = undefined;
      await set(size).catch(() => {}); // It may have ended.
    }
    isBusy = false;
  };
}

/** The flags of srun for one more process in a job, whatever the job's other steps use. */
const STEP_FLAGS = [
  ...['--nodes=1', '--ntasks=1', '--overlap', '--mem=0', '--cpu-bind=none', '--unbuffered', '--quiet'],
  ...['--export=ALL', '--propagate=NONE', '--chdir=/'],
];

/** Starts a program as the job's user. Rejects when the step cannot be made. */
async function begin(
  start: SlurmCommands['start'],
  { id: jobId, user }: RunningJob,
  argv: readonly string[],
): Promise<Program> {
  const mark = newMark();
  const enter = ['/bin/sh', '-c', ENTER, 'purser', mark, directoryOf(jobId), ...argv];
  const child = start(['srun', `--jobid=${jobId}`, ...STEP_FLAGS, ...enter], user);
  const [begun, ended] = [Promise.withResolvers<void>(), Promise.withResolvers<number>()];
  for (const it of [begun, ended]) it.promise.catch(() => {}); // Callers get the rejections; this only avoids unhandled ones.
  let noise = '';
  let hasBegun = false;
  let exitCode: number | undefined;
  let isCut = false;
  let drain: NodeJS.Timeout | undefined;
  const stderr = between(mark, {
    noise: (text) => {
      noise = text;
    },
    begun() {
      hasBegun = true;
      begun.resolve();
    },
    exitCode(code) {
      exitCode ??= code;
      child.stdin.destroy(); // It ends what is read of the input.
      drain ??= setTimeout(() => abandon(child), IDLE_MILLISECONDS);
    },
  });
  child.stdin.on('error', () => {}); // The command may leave its input unread.
  child.stderr.pipe(stderr);
  const stdout = child.stdout.on('data', () => drain?.refresh()).pipe(new PassThrough(WAITING));
  function finishStep(reason: string, code: number | null = null) {
    // srun reports the signal that ended its task: with the job, for example.
    if (hasBegun && exitCode === undefined && code !== null && code > SIGNAL_EXIT) {
      exitCode = code;
      isCut = true;
    }
    clearTimeout(drain);
    const words = onOneLine(noise);
    const fault = new Error(
      hasBegun ? `the step was lost: ${reason}` : `srun made no step in job ${jobId}: ${words || reason}`,
    );
    begun.reject(fault);
    if (exitCode === undefined) ended.reject(fault);
    else ended.resolve(exitCode);
  }
  child.once('error', (error) => finishStep(error.message));
  child.once('close', (code, signal) => {
    const reason = `srun ended with ${signal ?? code}`;
    for (const it of [stdout, stderr]) it.end(); // A stream that was destroyed does not end what it is piped into.
    // The exit code may still be unread; a reader that does not take the output before it is not awaited.
    const unread = setTimeout(finishStep, FINISH_MILLISECONDS, reason, code);
    finished(stderr, { readable: false }, () => {
      clearTimeout(unread);
      finishStep(reason, code);
    });
  });
  const slow = setTimeout(() => abandon(child), BEGIN_MILLISECONDS);
  await begun.promise.finally(() => clearTimeout(slow));
  let isKilled = false;
  const end: Program['ended'] = ended.promise.then(
    (code) => ({ code }),
    (error) => {
      if (isKilled) return { signal: 'KILL' };
      throw error;
    },
  );
  end.catch(() => {}); // As above.
  return {
    ...{ stdin: child.stdin, stdout, stderr, ended: end },
    resize() {},
    leave: () => abandon(child),
    kill() {
      isKilled = true;
      abandon(child);
    },
    judge: (code, stderr) => (code > SIGNAL_EXIT ? withoutSlurm(stderr, jobId, isCut) : stderr),
  };
}

/**
 * Removes Slurm's own messages about a step that it kills: its line on the end, wherever it is, as the command may have output
 * after it; and all of Slurm's last lines, where the shell around the command was killed before it printed its exit code.
 */
export function withoutSlurm(stderr: Buffer, jobId: string, wasCut: boolean): Buffer {
  const end = new RegExp(
    `(^|\\n)slurmstepd[\\w-]*: error: \\*\\*\\* (STEP|JOB) ${jobId}(\\.\\d+)? [^\\n]*(?=\\n|$)`,
    'g',
  );
  const words = stderr.toString('latin1').replace(end, '');
  return Buffer.from(wasCut ? withoutLastWords(words) : words, 'latin1');
}

/** The beginning of a line that Slurm writes. */
const SLURM_SPEAKS = /(?:srun|slurmstepd[\w-]*): /y;

/** Removes Slurm's lines at the end. Walks backwards: an expression tried at each line takes time with the square of their number. */
function withoutLastWords(text: string): string {
  let end = text.endsWith('\n') ? text.length - 1 : text.length;
  let isSlurms = false;
  for (;;) {
    const begin = text.lastIndexOf('\n', end - 1) + 1;
    SLURM_SPEAKS.lastIndex = begin;
    if (end < 1 || !SLURM_SPEAKS.test(text.slice(0, end))) break;
    isSlurms = true;
    end = begin - 1; // The line feed goes as well.
  }
  return isSlurms ? text.slice(0, Math.max(end, 0)) : text;
}

/** Abandons a step and closes its streams, even if another process still holds their other ends. */
function abandon(child: ChildProcessWithoutNullStreams): void {
  child.kill('SIGKILL');
  for (const stream of child.stdio) stream?.destroy();
}
