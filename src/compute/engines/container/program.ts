import { type Duplex, Writable } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';
import type Docker from 'dockerode';
import type { LineSession } from '../../../egress/line.ts';
import { containConnection } from '../../../net/contain.ts';
import { noLongerThan } from '../../../net/deadline.ts';
import type { Ref } from '../../backend.ts';
import { between, MARKED } from '../../kit/between.ts';
import { egressCommand, egressSession } from '../../kit/egress.ts';
import { newMark, takeMarks, withMark } from '../../kit/exit-mark.ts';
import { WATCHDOG_USER } from '../../kit/watchdog-user.ts';
import { argvOf, finish, type Program, type ProgramOrder, unreadInput } from '../../machine/program.ts';
import { IS_MARKED, KILLED } from '../../machine/shell.ts';
import { WAITING } from '../../machine/waiting.ts';
import { type Engine, wasRemoved } from './engine.ts';
import { partOutput } from './exec-output.ts';

const WAIT_MILLISECONDS_LEAST = 50;
const WAIT_MILLISECONDS_MAX = 1000;
/** The stream of a command ends within this time after its container was removed, if it ever does. */
const REMOVED_MILLISECONDS = 30_000;
/** The longest wait for the rest of a command's output once its exit code is known. */
const LATE_MILLISECONDS = 10_000;
const OWN_OUTPUT_BYTES = 4096;
const LOOK_MILLISECONDS = 30_000;
/**
 * The exit code that Docker gives a command whose output it could not send on, and which may still run. A shell uses the same code
 * for a file that cannot be executed.
 */
const UNSENT = 126;
/** The exit code that Podman gives a command that it could not start, where the container has no process left, and its words then. */
const UNSTARTED = 125;
const UNSTARTED_WORDS = /^Error: .*: OCI runtime error$/m;
const NONE_IS_MARKED = 1;

/**
 * Runs `$2…` in the directory `$1`. A tenant may have removed that directory: an engine that starts in it would then run nothing.
 */
const IN_DIRECTORY = 'cd "$1" 2>/dev/null; shift; exec "$@"';

type ExecState = { Running: boolean; ExitCode: number | null };

type ContainerExec = Pick<ProgramOrder, 'terminal'> & {
  /** The user; by default the image's, in the image's working directory. */
  user?: string;
  /**
   * Rejects when the connection is lost, and with it the rest of the output: always, or only if the command still runs. The engine
   * itself breaks the connection of a command that has ended and left input unread. With `whileRuns`, the marker in the command's
   * environment shows whether it runs. Without it, the exit code is awaited.
   */
  needsAll?: 'always' | { whileRuns: string };
  /** The mark that ends both outputs. It is awaited, and removed from them. */
  mark?: string;
};

type ContainerProgram = Program & Pick<ReturnType<typeof partOutput>, 'quiet'>;

/**
 * Starts the program of an order. The whole output of a command with a limit is needed: on a busy machine Docker silently drops
 * whatever it has not read two seconds after a command has ended (moby, daemon/monitor.go, ProcessEvent).
 */
export async function beginIn(engine: Engine, ref: Ref, order: ProgramOrder): Promise<Program> {
  const { purpose, terminal, marker = '' } = order;
  if (purpose === 'session') {
    const needs = { terminal, needsAll: { whileRuns: marker } };
    const isDrained = !terminal && (await engine.isPodman());
    return isDrained
      ? beginDrained(engine, ref, argvOf(order), needs, marker)
      : begin(engine, ref, argvOf(order), needs);
  }
  if (purpose !== 'exec') return begin(engine, ref, argvOf(order), { terminal });
  const mark = newMark();
  const argv = argvOf({ ...order, script: withMark(order.script) });
  const program = await begin(engine, ref, argv, { needsAll: 'always', mark });
  program.stdin.write(`${mark}\n`);
  return program;
}

/**
 * Starts a command whose unread input is read once it has ended: Podman passes no output on once it cannot pass input on (4.3,
 * containers/podman libpod/oci_conmon_attach_common.go), and writes an error of its own to standard error. The reader has the
 * `marker`, too, and is killed with the session: Podman does not end the input of a connection that is lost in the first moments.
 */
async function beginDrained(
  engine: Engine,
  ref: Ref,
  argv: string[],
  it: ContainerExec,
  marker: string,
): Promise<Program> {
  const mark = newMark();
  const script = `export PURSER_EXEC=${marker}\n${MARKED}`;
  const program = await begin(engine, ref, ['/bin/sh', '-c', script, 'purser', mark, ...argv], it);
  let known: { code: number } | undefined;
  let unsent: ((error?: Error | null) => void) | undefined;
  const stdin = new Writable({
    ...WAITING,
    write(chunk: Buffer, _, done) {
      if (known) return done(unreadInput());
      unsent = done;
      program.stdin.write(chunk, (error) => {
        if (unsent !== done) return; // The command has ended meanwhile.
        unsent = undefined;
        done(error);
      });
    },
    final(done) {
      program.stdin.end();
      done();
    },
  });
  stdin.on('error', () => {}); // A command may leave input unread.
  const lateEnd = Promise.withResolvers<{ code: number }>();
  /** Leaves a command that is over, but whose unread input is not read to its end: a tenant may replace `cat`. */
  async function leaveLate(end: { code: number }): Promise<void> {
    await sleep(LATE_MILLISECONDS, undefined, { ref: false });
    await program.quiet();
    lateEnd.resolve(end);
    program.leave();
  }
  const stderr = program.stderr.pipe(
    between(mark, {
      begun() {},
      exitCode(code) {
        known = { code };
        unsent?.(unreadInput());
        unsent = undefined;
        program.stdin.end();
        void leaveLate(known);
      },
      noise() {},
    }),
  );
  const ended = Promise.race([lateEnd.promise, program.ended.then((end) => known ?? end)]);
  ended.catch(() => {}); // Callers get the rejection; this only avoids an unhandled one.
  return { ...program, stdin, stderr, ended };
}

/** Starts a command in the container, with separate streams, or with one for a terminal. */
async function begin(engine: Engine, ref: Ref, argv: string[], it: ContainerExec = {}): Promise<ContainerProgram> {
  const { docker, ask } = engine;
  const { terminal } = it;
  const { user, directory } = it.user === undefined ? await engine.defaultsOf(ref) : { user: it.user, directory: '/' };
  const prefix = directory === '/' ? [] : ['/bin/sh', '-c', IN_DIRECTORY, 'purser', directory];
  const exec = await ask('exec', (abortSignal) =>
    docker.getContainer(ref).exec({
      Cmd: [...prefix, ...argv],
      User: user,
      AttachStdin: true,
      AttachStdout: true,
      AttachStderr: true,
      Tty: terminal !== undefined,
      ...(terminal ? { Env: [`TERM=${terminal.term}`] } : {}),
      abortSignal,
    }),
  );
  const stream = await ask('exec', (abortSignal) =>
    exec.start({ hijack: true, stdin: true, Tty: terminal !== undefined, abortSignal }),
  );
  containConnection(stream, 'backend');
  const [abandoned, lost] = [new AbortController(), new AbortController()];
  stream.on('error', ({ message, code }: NodeJS.ErrnoException) => {
    // All output has been read by then. Input that is still sent to an engine that has closed the stream breaks the pipe.
    if ((stream as Duplex).readableEnded || code === 'EPIPE') return;
    lost.abort(new Error(`the connection to the engine was lost: ${message}`));
  });
  const judge = async (state?: ExecState) => {
    abandoned.signal.throwIfAborted();
    if (!it.needsAll || !lost.signal.aborted) return;
    const runs =
      it.needsAll === 'always' ||
      state?.Running ||
      (state?.ExitCode === UNSENT && (await mayRun(engine, ref, it.needsAll.whileRuns)));
    if (runs) lost.signal.throwIfAborted();
  };
  const { stdout, stderr, quiet, end } = partOutput(stream, { terminal: terminal !== undefined });
  const marked = it.mark === undefined ? undefined : takeMarks(it.mark, stdout, stderr);
  const rest = async (code: number) => {
    if (marked && code < UNSENT)
      await Promise.race([marked.whole, sleep(LATE_MILLISECONDS, undefined, { ref: false })]);
    await quiet();
  };
  const ended = waitForEnd(ask, exec, stream, rest, judge)
    .then((code) => ({ code }))
    .finally(() => {
      end();
      stream.destroy(); // A hijacked socket keeps the process alive.
    });
  ended.catch(() => {}); // Callers get the rejection; this only avoids an unhandled one.
  const resize = ({ columns, rows }: { columns: number; rows: number }) =>
    exec.resize({ w: columns, h: rows }).catch(() => {});
  if (terminal) await resize(terminal);
  return {
    ...{ stdin: stream, stdout: marked?.stdout ?? stdout, stderr: marked?.stderr ?? stderr, ended, quiet },
    resize: (columns, rows) => void resize({ columns, rows }),
    leave: (reason) => abandoned.abort(reason),
    kill: () => void stream.destroy(),
    judge(exitCode, stderr) {
      const isUnstarted = () =>
        exitCode === UNSTARTED && marked?.hasNone() && UNSTARTED_WORDS.test(stderr.toString('latin1'));
      if (marked && exitCode < UNSENT && !marked.isWhole() && !isUnstarted())
        throw new Error('the engine lost the end of what the command said');
      return stderr;
    },
  };
}

/**
 * Waits for the exit code. It comes at the end of the stream, or from the engine if a background process keeps the stream open:
 * then `rest` waits for the missing output. `judge` rejects to stop waiting.
 */
async function waitForEnd(
  ask: Engine['ask'],
  exec: Docker.Exec,
  stream: NodeJS.ReadWriteStream,
  rest: (code: number) => Promise<void>,
  judge: (state?: ExecState) => Promise<void>,
): Promise<number> {
  let isClosed = false;
  const closed = new Promise<void>((resolve) =>
    stream
      .once('end', resolve)
      .once('close', resolve)
      .once('error', () => resolve()),
  );
  const orClosed = noLongerThan(
    closed.then(() => {
      isClosed = true;
    }),
  );
  // An idle session of an hour must not be asked about ten times a second.
  for (let wait = WAIT_MILLISECONDS_LEAST; ; wait = Math.min(wait * 2, WAIT_MILLISECONDS_MAX)) {
    const wasClosed = isClosed;
    await (isClosed ? sleep(wait) : orClosed(sleep(wait)));
    await judge();
    // The command has mostly ended by now; but a tenant may close the streams of a program that continues.
    if (isClosed && !wasClosed) wait = WAIT_MILLISECONDS_LEAST / 2;
    const state: ExecState = await ask('exec', (abortSignal) => exec.inspect({ abortSignal })).catch(async (error) => {
      if (!wasRemoved(error)) {
        await judge({ Running: true, ExitCode: null }); // Nothing proves that it does not.
        throw error;
      }
      // An engine may forget the container before the end of the stream is here; with gVisor that never comes.
      await orClosed(sleep(REMOVED_MILLISECONDS, undefined, { ref: false }));
      return { Running: false, ExitCode: KILLED };
    });
    if (typeof state?.Running !== 'boolean') throw new Error('the engine does not say whether a command runs');
    await judge(state);
    if (!state.Running && typeof state.ExitCode === 'number') {
      if (state.ExitCode < 0) throw new Error('the engine does not know how the command ended'); // Podman's -1.
      if (!isClosed) await orClosed(rest(state.ExitCode));
      await judge(state);
      return state.ExitCode;
    }
  }
}

/** Returns whether a process with this marker in its environment may still run. */
async function mayRun(engine: Engine, ref: Ref, marker: string): Promise<boolean> {
  try {
    const look = await begin(engine, ref, argvOf({ script: IS_MARKED, args: [marker] }));
    const { exitCode } = await finish(look, undefined, { streamBytesMax: 0, milliseconds: LOOK_MILLISECONDS });
    return exitCode !== NONE_IS_MARKED;
  } catch {
    return true; // It cannot be ruled out.
  }
}

/** Starts the program of the way out, which `watchdog` is, as the watchdog's user: no tenant can signal or trace it. */
export async function beginEgress(engine: Engine, ref: Ref, watchdog: string): Promise<LineSession> {
  const user = `${WATCHDOG_USER}:${WATCHDOG_USER}`;
  return egressSession(await begin(engine, ref, egressCommand(watchdog), { user }));
}

/** Runs a program of Purser's own as `user`, and waits at most `milliseconds` for it. */
export async function runAs(
  engine: Engine,
  ref: Ref,
  user: string,
  argv: string[],
  milliseconds: number,
): Promise<{ exitCode: number; stdout: string }> {
  const program = await begin(engine, ref, argv, { user });
  const limits = { streamBytesMax: OWN_OUTPUT_BYTES, milliseconds };
  const { exitCode, stdout } = await finish(program, undefined, limits);
  return { exitCode, stdout: stdout.toString() };
}
