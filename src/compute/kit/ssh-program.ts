import { PassThrough } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';
import type { ExecResult } from '../backend.ts';
import { finish, type Program, type ProgramLimits, type ProgramOrder } from '../machine/program.ts';
import { quoted } from '../machine/shell.ts';
import type { Channels, RunningLine } from './channel.ts';
import { newMark, takeMarks, withMark } from './exit-mark.ts';

/** Programs on a machine that is reached over SSH. */

/**
 * The silence after which the output that is left in the pipes of a line that has ended is not awaited any more: a background process
 * may keep them open. A busy machine takes seconds between two pieces.
 */
const LATE_MILLISECONDS = 10_000;
const LOOK_MILLISECONDS = 100;
/** From this exit code on the script that prints the marks was not started, or was killed. */
const UNSTARTED = 126;
/** A quarter of the bytes that one argument of a program may have (Linux, MAX_ARG_STRLEN), as a character may have four in UTF-8. */
const LINE_CHARACTERS_MAX = 32 * 1024;

/** The login shell of a machine's user. */
export const LOGIN_SHELL = `"\${SHELL:-/bin/sh}"`;

/** Makes a line for the login shell that runs a text for `sh`: as the tenant, for example, and not as the login user. */
export type Within = (text: string) => string;
const asLogin: Within = (text) => `exec /bin/sh -c ${quoted(text)}`;

/** Starts the program of an order. Throws as `Channels.begin`. */
export async function beginOnChannel(channels: Channels, order: ProgramOrder, within = asLogin): Promise<Program> {
  const { purpose, args, command, terminal } = order;
  const mark = purpose === 'exec' ? newMark() : undefined;
  const script = mark === undefined ? order.script : withMark(order.script);
  const lineOf = (...words: string[]) =>
    within(`set -- ${[...args.map((it) => quoted(it)), ...words].join(' ')}\n${script}`);
  let line = lineOf(...(command === undefined ? [] : [quoted(command)]));
  let head: Buffer | undefined;
  // A command that is quoted repeatedly may grow too long for a line: it then comes over standard input.
  if (purpose === 'exec' && command !== undefined && line.length > LINE_CHARACTERS_MAX) {
    head = Buffer.from(command);
    line = lineOf(`"$(head -c ${head.length})"`);
  }
  const begun = await channels.begin(line, terminal);
  if (purpose === 'session') return liveProgram(begun);
  const program = programOf(begun, mark);
  if (head) program.stdin.write(head); // The line reads it before the script reads its mark.
  if (mark !== undefined) program.stdin.write(`${mark}\n`);
  return program;
}

/** Runs one line of shell with `input` on standard input and reads its output. Throws as `Channels.begin`. */
export async function runOnChannel(
  channels: Channels,
  line: string,
  { input, ...limits }: ProgramLimits & { input?: Buffer },
): Promise<Omit<ExecResult, 'timedOut'>> {
  return finish(programOf(await channels.begin(line)), input, limits);
}

/** A program whose output is passed on as it comes, with no separate end: the channel ends with its connection. */
function liveProgram({ channel, ended, close }: RunningLine): Program {
  return {
    ...{ stdin: channel, stdout: channel, stderr: channel.stderr, ended },
    resize: (columns, rows) => channel.setWindow(rows, columns, 0, 0),
    leave: close,
    kill: () => close(),
  };
}

/** A program whose output ends with it, or a moment later: with the marks, or with its channel. */
function programOf(begun: RunningLine, mark?: string): Program {
  const { channel, ended, close } = begun;
  let outputAt = performance.now();
  let isClosed = false;
  const noteOutput = () => {
    outputAt = performance.now();
  };
  const [stdout, stderr] = [new PassThrough(), new PassThrough()];
  channel.on('data', noteOutput).pipe(stdout);
  channel.stderr.on('data', noteOutput).pipe(stderr);
  const marked = mark === undefined ? undefined : takeMarks(mark, stdout, stderr);
  const closed = new Promise<void>((resolve) => channel.once('close', resolve)).then(() => {
    isClosed = true;
  });
  const isComplete = () => isClosed || marked?.isWhole();
  const passedOn = ended.then(async (end) => {
    noteOutput();
    while (!isComplete() && performance.now() - outputAt < LATE_MILLISECONDS)
      await Promise.race([closed, sleep(LOOK_MILLISECONDS), ...(marked ? [marked.whole] : [])]);
    for (const [from, to] of [[channel, stdout] as const, [channel.stderr, stderr] as const]) {
      from.unpipe(to);
      to.end();
    }
    return end;
  });
  passedOn.catch(() => {}); // Callers get the rejection; this only avoids an unhandled one.
  return {
    ...liveProgram({ channel, ended, close }),
    ...{ stdout: marked?.stdout ?? stdout, stderr: marked?.stderr ?? stderr, ended: passedOn },
    judge(exitCode, said) {
      if (marked && exitCode < UNSTARTED && !isComplete())
        throw new Error('the machine lost the end of what the command said');
      return said;
    },
  };
}
