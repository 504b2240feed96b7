import { randomBytes } from 'node:crypto';
import { PassThrough } from 'node:stream';
import type { ExecOrder, ExecResult, Session, SessionOrder } from '../../backend.ts';
import { collectBoth } from '../collect.ts';
import {
  codeOfSignal,
  judgeUpload,
  KILL_MARKED,
  KILLED,
  LIMITED,
  quoted,
  RECEIVE,
  refuseCommand,
  refusePath,
} from '../shell.ts';
import type { Channels } from './channel.ts';

/** exec, upload and session on a machine that is reached over SSH. */

const UPLOAD_MILLISECONDS = 120_000;
/** The machine's own guard ends a command at its limit. A command that is silent for this long after it is given up. */
const GRACE_MILLISECONDS = 30_000;
/** Waits this long for output left in the pipes; a background process that keeps them open is not waited for. */
const IDLE_MILLISECONDS = 500;
/** A quarter of what one argument of a program may have in bytes (Linux, MAX_ARG_STRLEN), as UTF-8 may have four each. */
const LINE_CHARACTERS_MAX = 32 * 1024;

type LineOrder = Pick<ExecOrder, 'streamBytesMax' | 'budget'> & { input: Buffer; milliseconds: number };

/** Runs one line of shell with `input` on standard input and reads its output. Throws as `Channels.begin`. */
export async function runOver(
  channels: Channels,
  line: string,
  { input, milliseconds, ...most }: LineOrder,
): Promise<Omit<ExecResult, 'timedOut'>> {
  const { channel, ended, close } = await channels.begin(line);
  const over = setTimeout(
    () => close(new Error(`the machine took longer than ${milliseconds / 1000} s`)),
    milliseconds,
  );
  try {
    let heardAt = performance.now();
    const heard = () => {
      heardAt = performance.now();
    };
    const [stdout, stderr] = [new PassThrough(), new PassThrough()];
    channel.on('data', heard).pipe(stdout);
    channel.stderr.on('data', heard).pipe(stderr);
    const said = collectBoth(stdout, stderr, most);
    said.catch(() => {}); // A line that is lost says so itself.
    const closed = new Promise<void>((resolve) => channel.once('close', resolve));
    channel.end(input);
    const end = await ended;
    heard();
    for (let isClosed = false; !isClosed && performance.now() - heardAt < IDLE_MILLISECONDS; )
      isClosed = await Promise.race([closed.then(() => true), pause(IDLE_MILLISECONDS / 5)]);
    for (const [from, to] of [[channel, stdout] as const, [channel.stderr, stderr] as const]) {
      from.unpipe(to);
      to.end();
    }
    const exitCode = 'code' in end ? end.code : codeOfSignal(end.signal);
    return { exitCode, ...(await said) };
  } finally {
    clearTimeout(over);
    close();
  }
}

const pause = (milliseconds: number) => new Promise<false>((resolve) => setTimeout(resolve, milliseconds, false));

/** Makes a line for the login shell, which runs a text for `sh`: as the tenant, say, and not as the login user. */
export type Within = (text: string) => string;
const asLogin: Within = (text) => `exec /bin/sh -c ${quoted(text)}`;

/** Runs a command as the machine's guard runs it. */
export async function execOver(
  channels: Channels,
  { command, timeoutSeconds, ...most }: ExecOrder,
  within = asLogin,
): Promise<ExecResult> {
  refuseCommand(command);
  const marker = randomBytes(12).toString('hex');
  const started = performance.now();
  const milliseconds = timeoutSeconds * 1000 + GRACE_MILLISECONDS;
  const lineOf = (word: string) => within(`set -- ${marker} ${timeoutSeconds} ${word}\n${LIMITED}`);
  let line = lineOf(quoted(command));
  let input = Buffer.alloc(0);
  // Quoted again and again a command may grow too long for a line: it then comes over standard input.
  if (line.length > LINE_CHARACTERS_MAX) {
    input = Buffer.from(command);
    line = lineOf(`"$(head -c ${input.length})"`);
  }
  const ran = await runOver(channels, line, { input, ...most, milliseconds });
  return { ...ran, timedOut: ran.exitCode === KILLED && performance.now() - started >= timeoutSeconds * 1000 };
}

/** Writes a file whole or not at all. */
export async function uploadOver(channels: Channels, path: string, content: Buffer, within = asLogin): Promise<void> {
  refusePath(path);
  const line = `set -- ${quoted(path)} ${content.length}\n${RECEIVE}`;
  const order = { input: content, streamBytesMax: 4096, milliseconds: UPLOAD_MILLISECONDS };
  const { exitCode, stderr } = await runOver(channels, within(line), order);
  judgeUpload(exitCode, stderr);
}

/** A live session; `kill` also kills what it started. */
export async function sessionOver(
  channels: Channels,
  { command, terminal }: SessionOrder,
  within = asLogin,
): Promise<Session> {
  const marker = randomBytes(12).toString('hex');
  const shell =
    command === undefined
      ? `export PURSER_EXEC=${marker}; exec "\${SHELL:-/bin/sh}" -l`
      : `export PURSER_EXEC=${marker}; exec /bin/sh -c ${quoted(command)}`;
  const { channel, ended, close } = await channels.begin(within(shell), terminal);
  return {
    stdin: channel,
    stdout: channel,
    stderr: terminal ? undefined : channel.stderr,
    resize: (columns, rows) => channel.setWindow(rows, columns, 0, 0),
    ended,
    kill() {
      close();
      const order = { input: Buffer.alloc(0), streamBytesMax: 0, milliseconds: GRACE_MILLISECONDS };
      runOver(channels, within(`set -- ${marker}\n${KILL_MARKED}`), order).catch(() => {}); // The lease may be gone: then so is what it ran.
    },
  };
}
