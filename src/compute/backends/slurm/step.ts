import type { ChildProcessWithoutNullStreams } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { finished, PassThrough, type Transform } from 'node:stream';
import type { ExecOrder, ExecResult, Session, SessionOrder } from '../../backend.ts';
import { between, RUN_MARKED } from '../between.ts';
import { collectBoth } from '../collect.ts';
import { onOneLine } from '../one-line.ts';
import { judgeUpload, KILL_MARKED, LIMITED, RECEIVE, refuseCommand, refusePath } from '../shell.ts';
import { RESIZE, WITH_TERMINAL } from '../terminal.ts';
import { WAITING } from '../waiting.ts';
import type { SlurmCommands, User } from './command.ts';
import { directoryOf, SURROUNDINGS } from './job.ts';

/** Runs commands inside a job, each as one `srun`. */

const UPLOAD_MILLISECONDS = 120_000;
const BEGIN_MILLISECONDS = 30_000;
/** The job's own guard ends a command at its limit; a step that is silent for so long after it is given up. */
const GRACE_MILLISECONDS = 30_000;
/** `srun` ends a moment after its command, unless something in the background keeps its streams open. */
const IDLE_MILLISECONDS = 2_000;
const FINISH_MILLISECONDS = 1_000;
const SIGNAL_EXIT = 128;
const KILLED = 137;

/**
 * Runs `$3…` in the job's directory `$2` as RUN_MARKED does, with the mark `$1`: `srun` writes messages of its own to standard
 * error, and its exit code may be its own as well.
 */
export const ENTER = `mark=$1; export HOME="$2"; shift 2
${SURROUNDINGS}
umask 077; [ -d "$HOME" ] || mkdir -p "$HOME"; [ -O "$HOME" ] && cd "$HOME" || exit 1
umask 022
${RUN_MARKED}`;

/** A running job and its user. */
export type RunningJob = { id: string; user: User };

type StepOrder = Pick<ExecOrder, 'streamBytesMax' | 'budget'> & { input: Buffer; milliseconds: number };
type Step = {
  child: ChildProcessWithoutNullStreams;
  stdout: PassThrough;
  /** The command's own standard error. */
  stderr: Transform;
  /** Resolves when the command has begun. Rejects when the step cannot be made. */
  begun: Promise<void>;
  /** The exit code. Rejects when the step is lost. */
  ended: Promise<number>;
  /** Whether the exit code is srun's own, as the command was killed with its job. */
  wasCut(): boolean;
};

/** Starts programs inside jobs, as the job's user. */
export function createSteps(start: SlurmCommands['start']) {
  function begin({ id: jobId, user }: RunningJob, argv: readonly string[]): Step {
    const mark = randomBytes(16).toString('hex');
    const flags = ['--nodes=1', '--ntasks=1', '--overlap', '--mem=0', '--cpu-bind=none', '--unbuffered', '--quiet'];
    const child = start(
      [
        ...['srun', `--jobid=${jobId}`, ...flags, '--export=ALL', '--propagate=NONE', '--chdir=/'],
        ...['/bin/sh', '-c', ENTER, 'purser', mark, directoryOf(jobId), ...argv],
      ],
      user,
    );
    const [begun, ended] = [Promise.withResolvers<void>(), Promise.withResolvers<number>()];
    for (const it of [begun, ended]) it.promise.catch(() => {}); // Whoever waits hears of it.
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
        drain ??= setTimeout(() => abandon(child), IDLE_MILLISECONDS);
      },
    });
    child.stdin.on('error', () => {}); // The command need not read what it is given.
    child.stderr.pipe(stderr);
    const stdout = child.stdout.on('data', () => drain?.refresh()).pipe(new PassThrough(WAITING));
    function over(reason: string, code: number | null = null) {
      // srun tells by what signal its task ended: with the job, say.
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
    child.once('error', (error) => over(error.message));
    child.once('close', (code, signal) => {
      const reason = `srun ended with ${signal ?? code}`;
      for (const it of [stdout, stderr]) it.end(); // A stream that was destroyed does not end what it is piped into.
      // It may have the exit code still to read; somebody who does not read what comes before it is not waited for.
      const unread = setTimeout(over, FINISH_MILLISECONDS, reason, code);
      finished(stderr, { readable: false }, () => {
        clearTimeout(unread);
        over(reason, code);
      });
    });
    return { child, stdout, stderr, begun: begun.promise, ended: ended.promise, wasCut: () => isCut };
  }

  /** Runs a command to its end, with `input` on its standard input. */
  async function run(
    job: RunningJob,
    argv: readonly string[],
    { input, milliseconds, ...most }: StepOrder,
  ): Promise<Omit<ExecResult, 'timedOut'>> {
    const step = begin(job, argv);
    const over = setTimeout(() => abandon(step.child), milliseconds);
    const slow = setTimeout(() => abandon(step.child), BEGIN_MILLISECONDS);
    try {
      const said = collectBoth(step.stdout, step.stderr, most);
      said.catch(() => {}); // A step that is lost says so itself.
      step.child.stdin.end(input);
      await step.begun;
      clearTimeout(slow);
      const exitCode = await step.ended;
      const output = await said;
      return {
        exitCode,
        ...output,
        ...(exitCode > SIGNAL_EXIT ? { stderr: withoutSlurm(output.stderr, job.id, step.wasCut()) } : {}),
      };
    } finally {
      clearTimeout(slow);
      clearTimeout(over);
    }
  }

  return {
    async exec(job: RunningJob, { command, timeoutSeconds, ...most }: ExecOrder): Promise<ExecResult> {
      const input = Buffer.from(command);
      refuseCommand(command);
      const marker = randomBytes(12).toString('hex');
      const started = performance.now();
      // The command goes over standard input, so that nobody on this machine reads it in a list of processes.
      const shell = 'exec /bin/sh -c "$1" purser "$2" "$3" "$(head -c "$4")" </dev/null';
      const argv = ['/bin/sh', '-c', shell, 'purser', LIMITED, marker, String(timeoutSeconds), String(input.length)];
      const milliseconds = timeoutSeconds * 1000 + GRACE_MILLISECONDS;
      const ran = await run(job, argv, { input, ...most, milliseconds });
      return { ...ran, timedOut: ran.exitCode === KILLED && performance.now() - started >= timeoutSeconds * 1000 };
    },

    async upload(job: RunningJob, path: string, content: Buffer): Promise<void> {
      refusePath(path);
      const argv = ['/bin/sh', '-c', RECEIVE, 'purser', path, String(content.length)];
      const order = { input: content, streamBytesMax: 4096, milliseconds: UPLOAD_MILLISECONDS };
      const { exitCode, stderr } = await run(job, argv, order);
      judgeUpload(exitCode, stderr);
    },

    async session(job: RunningJob, { command, terminal }: SessionOrder): Promise<Session> {
      const marker = randomBytes(12).toString('hex');
      const plain = command === undefined ? ['/bin/sh', '-l'] : ['/bin/sh', '-c', command];
      const variables = terminal && [
        ...[`TERM=${terminal.term}`, `PURSER_ROWS=${terminal.rows}`, `PURSER_COLUMNS=${terminal.columns}`],
        `PURSER_COMMAND=${command ?? ''}`,
      ];
      const argv = variables ? [...variables, '/bin/sh', '-c', WITH_TERMINAL] : plain;
      const { child, stdout, stderr, begun, ended } = begin(job, ['env', `PURSER_EXEC=${marker}`, ...argv]);
      const slow = setTimeout(() => abandon(child), BEGIN_MILLISECONDS);
      await begun.finally(() => clearTimeout(slow));
      if (terminal) stderr.resume();
      const small = { input: Buffer.alloc(0), streamBytesMax: 0, milliseconds: GRACE_MILLISECONDS };
      /** The size wanted next while another is being set; only the latest counts. */
      let wanted: { columns: number; rows: number } | undefined;
      let resizing = false;
      let isKilled = false;
      async function resize() {
        if (resizing) return;
        resizing = true;
        while (wanted) {
          const { rows, columns } = wanted;
          wanted = undefined;
          const size = [marker, String(rows), String(columns)];
          await run(job, ['/bin/sh', '-c', RESIZE, 'purser', ...size], small).catch(() => {}); // It may have ended.
        }
        resizing = false;
      }
      return {
        stdin: child.stdin,
        stdout,
        stderr: terminal ? undefined : stderr,
        resize(columns, rows) {
          wanted = { columns, rows };
          if (terminal) void resize();
        },
        ended: ended.then(
          (code) => ({ code }),
          (error) => {
            if (isKilled) return { signal: 'KILL' };
            throw error;
          },
        ),
        kill() {
          isKilled = true;
          abandon(child);
          void run(job, ['/bin/sh', '-c', KILL_MARKED, 'purser', marker], small).catch(() => {}); // Or the job is gone.
        },
      };
    },
  };
}

/**
 * Removes what Slurm itself says about a step of the job that it kills: its line on the end, wherever it is, as the command may
 * have words after it; and where the shell around the command did not live long enough to tell its exit code, all that it says
 * last.
 */
export function withoutSlurm(stderr: Buffer, jobId: string, wasCut: boolean): Buffer {
  const end = new RegExp(
    `(^|\\n)slurmstepd[\\w-]*: error: \\*\\*\\* (STEP|JOB) ${jobId}(\\.\\d+)? [^\\n]*(?=\\n|$)`,
    'g',
  );
  const words = stderr.toString('latin1').replace(end, '');
  return Buffer.from(wasCut ? withoutLastWords(words) : words, 'latin1');
}

/** The beginning of a line in which Slurm speaks. */
const SLURM_SPEAKS = /(?:srun|slurmstepd[\w-]*): /y;

/** Removes the lines at the end in which Slurm speaks. Walks back: tried at each line, an expression takes the square of their number. */
function withoutLastWords(text: string): string {
  let end = text.endsWith('\n') ? text.length - 1 : text.length;
  let isSaid = false;
  for (;;) {
    const begin = text.lastIndexOf('\n', end - 1) + 1;
    SLURM_SPEAKS.lastIndex = begin;
    if (end < 1 || !SLURM_SPEAKS.test(text.slice(0, end))) break;
    isSaid = true;
    end = begin - 1; // The line feed goes as well.
  }
  return isSaid ? text.slice(0, Math.max(end, 0)) : text;
}

/** Abandons a step and closes its streams, even if another process still holds their other ends. */
function abandon(child: ChildProcessWithoutNullStreams): void {
  child.kill('SIGKILL');
  for (const stream of child.stdio) stream?.destroy();
}
