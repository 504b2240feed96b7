import { randomBytes } from 'node:crypto';
import type { ExecOrder, ExecResult, Session, SessionOrder } from '../../backend.ts';
import { collectBoth } from '../collect.ts';
import { judgeUpload, KILL_MARKED, KILLED, LIMITED, RECEIVE, refuseCommand, refusePath } from '../shell.ts';
import type { Inside, Streams } from './stream.ts';

/** Commands, files and sessions in a pod. */

const UPLOAD_MILLISECONDS = 120_000;
/** The guard inside ends a command at its limit; one of which nothing is heard so long after it is given up. */
const GRACE_MILLISECONDS = 30_000;

/** Reads `$1` bytes of standard input, exactly, into `command`: the address of the request would be in the cluster's audit log. */
const READ_COMMAND = 'command=$(dd bs="$1" count=1 iflag=fullblock 2>/dev/null); shift';
const RUN_LIMITED = `${READ_COMMAND}
exec /bin/sh -c "$1" purser "$2" "$3" "$command" </dev/null`;
const RUN_SESSION = `${READ_COMMAND}
export PURSER_EXEC="$1"; exec /bin/sh -c "$command"`;
const RUN_SHELL = 'export PURSER_EXEC="$1"; exec /bin/sh -l';
const RUN_ON_TERMINAL = 'export PURSER_EXEC="$1" TERM="$2"; [ -n "$3" ] || exec /bin/sh -l; exec /bin/sh -c "$3"';

const sh = (script: string, ...args: string[]) => ['/bin/sh', '-c', script, 'purser', ...args];

/** Waits for a program and its output; gives it up after so long. */
async function finish(
  inside: Inside,
  milliseconds: number,
  bounds: Pick<ExecOrder, 'streamBytesMax' | 'budget'>,
): Promise<Omit<ExecResult, 'timedOut'>> {
  const over = setTimeout(() => inside.abandon(), milliseconds);
  try {
    const said = collectBoth(inside.stdout, inside.stderr, bounds);
    said.catch(() => {}); // A program that is lost says so itself.
    const exitCode = await inside.ended;
    return { exitCode, ...(await said) };
  } finally {
    clearTimeout(over);
  }
}

/** Runs a program of Purser's own. */
export async function runOwn(streams: Streams, pod: string, argv: string[], milliseconds: number) {
  const inside = await streams.begin(pod, argv);
  inside.stdin.end();
  return finish(inside, milliseconds, { streamBytesMax: 4096 });
}

/** Runs a command with a limit that holds inside the pod. */
export async function runInside(
  streams: Streams,
  pod: string,
  { command, timeoutSeconds, ...bounds }: ExecOrder,
): Promise<ExecResult> {
  refuseCommand(command);
  const input = Buffer.from(command);
  const marker = randomBytes(12).toString('hex');
  const argv = sh(RUN_LIMITED, String(input.length), LIMITED, marker, String(timeoutSeconds));
  const inside = await streams.begin(pod, argv);
  const started = performance.now();
  inside.stdin.end(input);
  const ran = await finish(inside, timeoutSeconds * 1000 + GRACE_MILLISECONDS, bounds);
  return { ...ran, timedOut: ran.exitCode === KILLED && performance.now() - started >= timeoutSeconds * 1000 };
}

export async function uploadInto(streams: Streams, pod: string, path: string, content: Buffer): Promise<void> {
  refusePath(path);
  const inside = await streams.begin(pod, sh(RECEIVE, path, String(content.length)));
  inside.stdin.end(content);
  const { exitCode, stderr } = await finish(inside, UPLOAD_MILLISECONDS, { streamBytesMax: 4096 });
  judgeUpload(exitCode, stderr);
}

/** One live session; `kill` also kills what it started. */
export async function openSession(
  streams: Streams,
  pod: string,
  { command, terminal }: SessionOrder,
): Promise<Session> {
  refuseCommand(command ?? '');
  const marker = randomBytes(12).toString('hex');
  const input = Buffer.from(command ?? '');
  const argv = terminal
    ? sh(RUN_ON_TERMINAL, marker, terminal.term, command ?? '')
    : command === undefined
      ? sh(RUN_SHELL, marker)
      : sh(RUN_SESSION, String(input.length), marker);
  const inside = await streams.begin(pod, argv, terminal);
  if (!terminal && command !== undefined) inside.stdin.write(input);
  return {
    stdin: inside.stdin,
    stdout: inside.stdout,
    stderr: terminal ? undefined : inside.stderr,
    resize: inside.resize,
    ended: inside.ended.then((code) => ({ code })),
    kill() {
      inside.abandon();
      void runOwn(streams, pod, sh(KILL_MARKED, marker), GRACE_MILLISECONDS).catch(() => {}); // Or the lease is gone.
    },
  };
}
