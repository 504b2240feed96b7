import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import type { Duplex, Readable } from 'node:stream';
import { setTimeout as pause } from 'node:timers/promises';
import type Docker from 'dockerode';
import { containConnection } from '../../../net/contain.ts';
import type { ExecOrder, ExecResult, Ref, Session, SessionOrder } from '../../backend.ts';
import { collect, collectBoth } from '../collect.ts';
import { partOutput } from '../exec-output.ts';
import { LIMITED_WITH_MARK, withoutMark } from '../exit-mark.ts';
import { IS_MARKED, judgeUpload, KILL_MARKED, KILLED, RECEIVE, refusePath, sessionArgv } from '../shell.ts';
import { type Engine, wasRemoved } from './engine.ts';

const UPLOAD_MILLISECONDS = 120_000;
/** The guard inside ends a command at its limit; one that the engine says still runs so long after it is given up. */
const GRACE_MILLISECONDS = 30_000;
const WAIT_MILLISECONDS_LEAST = 50;
const WAIT_MILLISECONDS_MAX = 1000;
/** The stream of a command ends within this time after its container was removed. */
const REMOVED_MILLISECONDS = 30_000;
/** The longest wait for the rest of a command's output once its exit code is known. */
const LATE_MILLISECONDS = 10_000;
const OWN_OUTPUT_BYTES = 4096;
const LOOK_MILLISECONDS = 30_000;
const KILL_MILLISECONDS = 60_000;
/**
 * The exit code that Docker gives a command whose output it could not send on, and which may still run. A shell's for what
 * cannot be executed is the same.
 */
const UNSENT = 126;
const NONE_IS_MARKED = 1;

/** Runs `$2…` in the directory `$1`. A tenant may have removed that: an engine asked for it would run nothing any more. */
const IN_DIRECTORY = 'cd "$1" 2>/dev/null; shift; exec "$@"';

type State = { Running: boolean; ExitCode: number | null };

type Beginning = {
  terminal?: SessionOrder['terminal'] | undefined;
  /** The user; by default the image's, in the image's working directory. */
  user?: string;
  /** Ends the wait for the command, not the command itself. */
  giveUp?: AbortSignal;
  /**
   * Gives up when the connection is lost, since the rest of the output is: always, or only if the command still runs. The
   * engine itself breaks the connection of one that has ended and left input unread. With `whileRuns`, the marker in the
   * command's environment tells whether it runs. Without it the exit code is waited for.
   */
  needsAll?: 'always' | { whileRuns: string };
  /** The mark that ends both outputs. It is waited for, and taken out of them. */
  mark?: string;
};

/** Starts a command in the container, with separate streams, or with one for a terminal. */
async function begin(engine: Engine, ref: Ref, argv: string[], { terminal, giveUp, ...it }: Beginning = {}) {
  const { docker, ask } = engine;
  const { user, directory } = it.user === undefined ? await engine.defaultsOf(ref) : { user: it.user, directory: '/' };
  const inside = directory === '/' ? [] : ['/bin/sh', '-c', IN_DIRECTORY, 'purser', directory];
  const exec = await ask('exec', (abortSignal) =>
    docker.getContainer(ref).exec({
      Cmd: [...inside, ...argv],
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
  const lost = new AbortController();
  stream.on('error', ({ message, code }: NodeJS.ErrnoException) => {
    // After its end everything has been read. What an engine that has closed it is still sent breaks the pipe.
    if ((stream as Duplex).readableEnded || code === 'EPIPE') return;
    lost.abort(new Error(`the connection to the engine was lost: ${message}`));
  });
  const judge = async (state?: State) => {
    giveUp?.throwIfAborted();
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
      await Promise.race([marked.whole, pause(LATE_MILLISECONDS, undefined, { ref: false })]);
    await quiet();
  };
  const ended = waitForEnd(ask, exec, stream, rest, judge).finally(() => {
    end();
    stream.destroy(); // A hijacked socket keeps the process alive.
  });
  ended.catch(() => {}); // Whoever waits hears of it, and need not have begun to.
  return { exec, stream, stdout, stderr, isWhole: () => true, ...marked, ended };
}

/** Takes the marks out of both outputs. Once both have come (`whole`), nothing that the command said is missing. */
function takeMarks(mark: string, stdout: Readable, stderr: Readable) {
  const { promise: whole, resolve } = Promise.withResolvers<void>();
  let missing = 2;
  const found = () => {
    missing -= 1;
    if (missing === 0) resolve();
  };
  return {
    stdout: stdout.pipe(withoutMark(mark, found)),
    stderr: stderr.pipe(withoutMark(mark, found)),
    whole,
    isWhole: () => missing === 0,
  };
}

/**
 * Waits for the exit code. The end of the stream tells, or the engine if a background process keeps the stream open: then
 * `rest` waits for what has not come of the output. `judge` rejects when it is waited for no more.
 */
async function waitForEnd(
  ask: Engine['ask'],
  exec: Docker.Exec,
  stream: NodeJS.ReadWriteStream,
  rest: (code: number) => Promise<void>,
  judge: (state?: State) => Promise<void>,
): Promise<number> {
  let over = false;
  const closed = new Promise<void>((resolve) =>
    stream
      .once('end', resolve)
      .once('close', resolve)
      .once('error', () => resolve()),
  );
  void closed.then(() => {
    over = true;
  });
  // An idle session of an hour must not be asked about ten times a second.
  for (let wait = WAIT_MILLISECONDS_LEAST; ; wait = Math.min(wait * 2, WAIT_MILLISECONDS_MAX)) {
    const wasOver = over;
    await (over ? pause(wait) : Promise.race([closed, pause(wait)]));
    await judge();
    // Mostly it ends at once now; but a tenant may close the streams of what runs on.
    if (over && !wasOver) wait = WAIT_MILLISECONDS_LEAST / 2;
    const state: State = await ask('exec', (abortSignal) => exec.inspect({ abortSignal })).catch(async (error) => {
      if (!wasRemoved(error)) {
        await judge({ Running: true, ExitCode: null }); // Nobody can say that it does not.
        throw error;
      }
      // An engine may forget the container before the end of the stream is here.
      await Promise.race([closed, pause(REMOVED_MILLISECONDS, undefined, { ref: false })]);
      if (!over) throw error;
      return { Running: false, ExitCode: KILLED };
    });
    if (typeof state?.Running !== 'boolean') throw new Error('the engine does not say whether a command runs');
    await judge(state);
    if (!state.Running && typeof state.ExitCode === 'number') {
      if (!over) await Promise.race([closed, rest(state.ExitCode)]);
      await judge(state);
      return state.ExitCode;
    }
  }
}

/** Whether a process with this marker in its environment may still run. */
async function mayRun(engine: Engine, ref: Ref, marker: string): Promise<boolean> {
  const giveUp = AbortSignal.timeout(LOOK_MILLISECONDS);
  try {
    const look = await begin(engine, ref, ['/bin/sh', '-c', IS_MARKED, 'purser', marker], { giveUp });
    look.stream.end();
    look.stdout.resume();
    look.stderr.resume();
    return (await look.ended) !== NONE_IS_MARKED;
  } catch {
    return true; // Nobody can say that it does not.
  }
}

/** Runs a program of Purser's own as `user`, and waits at most `milliseconds` for it. */
export async function runAs(
  engine: Engine,
  ref: Ref,
  user: string,
  argv: string[],
  milliseconds: number,
): Promise<{ exitCode: number; stdout: string }> {
  const giveUp = AbortSignal.timeout(milliseconds);
  const { stream, stdout, stderr, ended } = await begin(engine, ref, argv, { user, giveUp });
  stream.end();
  const said = collectBoth(stdout, stderr, { streamBytesMax: OWN_OUTPUT_BYTES });
  said.catch(() => {}); // A program that is lost says so itself.
  const exitCode = await ended;
  return { exitCode, stdout: (await said).stdout.toString() };
}

/**
 * Runs a command with a limit that holds inside the container. Throws where its output is not whole: on a busy machine Docker
 * drops what it has not read two seconds after a command has ended (moby, daemon/monitor.go, ProcessEvent), and says nothing.
 */
export async function runInside(
  engine: Engine,
  ref: Ref,
  { command, timeoutSeconds, ...most }: ExecOrder,
  graceMilliseconds = GRACE_MILLISECONDS,
): Promise<ExecResult> {
  const [marker, mark] = [randomBytes(12).toString('hex'), randomBytes(12).toString('hex')];
  const started = performance.now();
  const argv = ['/bin/sh', '-c', LIMITED_WITH_MARK, 'purser', marker, String(timeoutSeconds), command];
  const giveUp = AbortSignal.timeout(timeoutSeconds * 1000 + graceMilliseconds);
  const { stream, stdout, stderr, isWhole, ended } = await begin(engine, ref, argv, {
    giveUp,
    needsAll: 'always',
    mark,
  });
  stream.end(`${mark}\n`);
  const said = collectBoth(stdout, stderr, most);
  said.catch(() => {}); // A command that is lost says so itself.
  const exitCode = await ended;
  const output = await said;
  if (exitCode < UNSENT && !isWhole()) throw new Error('the engine lost the end of what the command said');
  const timedOut = exitCode === KILLED && performance.now() - started >= timeoutSeconds * 1000;
  return { exitCode, ...output, timedOut };
}

/**
 * Writes a file through a shell inside: an engine's own archive upload follows links and accepts what it cannot write.
 * A tenant may have stopped that shell: it is waited for so long at most, and what was sent is let go.
 */
export async function uploadInto(
  engine: Engine,
  ref: Ref,
  path: string,
  content: Buffer,
  milliseconds = UPLOAD_MILLISECONDS,
): Promise<void> {
  refusePath(path);
  const argv = ['/bin/sh', '-c', RECEIVE, 'purser', path, String(content.length)];
  const giveUp = AbortSignal.timeout(milliseconds);
  const { stream, stdout, stderr, ended } = await begin(engine, ref, argv, { giveUp });
  stdout.resume();
  const said = collect(stderr, 4096);
  if (!stream.write(content)) await Promise.race([once(stream, 'drain'), ended]);
  stream.end();
  const code = await ended;
  judgeUpload(code, (await said).bytes);
}

/**
 * One live session; `kill` also kills what it started. A program that gave up its marker is not found: its end is waited for
 * no longer than the killing is.
 */
export async function openSession(
  engine: Engine,
  ref: Ref,
  { command, terminal }: SessionOrder,
  killMilliseconds = KILL_MILLISECONDS,
): Promise<Session> {
  const killed = new AbortController();
  const marker = randomBytes(12).toString('hex');
  const argv = sessionArgv(marker, command);
  const { exec, stream, stdout, stderr, ended } = await begin(engine, ref, argv, {
    terminal,
    giveUp: killed.signal,
    needsAll: { whileRuns: marker },
  });
  if (terminal) await exec.resize({ w: terminal.columns, h: terminal.rows }).catch(() => {});
  return {
    stdin: stream,
    stdout,
    stderr: terminal ? undefined : stderr,
    resize: (columns, rows) => void exec.resize({ w: columns, h: rows }).catch(() => {}),
    ended: ended.then((code) => ({ code })),
    kill() {
      stream.destroy();
      const giveUp = AbortSignal.timeout(killMilliseconds);
      giveUp.addEventListener('abort', () => killed.abort(new Error('the session was killed')), { once: true });
      void begin(engine, ref, ['/bin/sh', '-c', KILL_MARKED, 'purser', marker], { giveUp })
        .then((it) => it.ended)
        .catch(() => {}); // The lease may be gone: then so is what it ran.
    },
  };
}
