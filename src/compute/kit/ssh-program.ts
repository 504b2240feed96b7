import { PassThrough } from 'node:stream';
import type { ExecResult } from '../backend.ts';
import { finish, type Program, type ProgramLimits, type ProgramOrder } from '../machine/program.ts';
import { quoted } from '../machine/shell.ts';
import type { Channels, RunningLine } from './channel.ts';

/** Programs on a machine that is reached over SSH. */

/** Waits this long for output left in the pipes; a background process that keeps them open is not awaited. */
const IDLE_MILLISECONDS = 500;
/** A quarter of the bytes that one argument of a program may have (Linux, MAX_ARG_STRLEN), as a character may have four in UTF-8. */
const LINE_CHARACTERS_MAX = 32 * 1024;

/** The login shell of a machine's user. */
export const LOGIN_SHELL = `"\${SHELL:-/bin/sh}"`;

/** Makes a line for the login shell that runs a text for `sh`: as the tenant, for example, and not as the login user. */
export type Within = (text: string) => string;
const asLogin: Within = (text) => `exec /bin/sh -c ${quoted(text)}`;

/** Starts the program of an order. Throws as `Channels.begin`. */
export async function beginOnChannel(channels: Channels, order: ProgramOrder, within = asLogin): Promise<Program> {
  const { purpose, script, args, command, terminal } = order;
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
  const program = programOf(begun);
  if (head) program.stdin.write(head);
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

/** A program whose output ends with it, or a moment later. */
function programOf(begun: RunningLine): Program {
  const { channel, ended, close } = begun;
  let outputAt = performance.now();
  const noteOutput = () => {
    outputAt = performance.now();
  };
  const [stdout, stderr] = [new PassThrough(), new PassThrough()];
  channel.on('data', noteOutput).pipe(stdout);
  channel.stderr.on('data', noteOutput).pipe(stderr);
  const closed = new Promise<void>((resolve) => channel.once('close', resolve));
  const passedOn = ended.then(async (end) => {
    noteOutput();
    for (let isClosed = false; !isClosed && performance.now() - outputAt < IDLE_MILLISECONDS; )
      isClosed = await Promise.race([closed.then(() => true), pause(IDLE_MILLISECONDS / 5)]);
    for (const [from, to] of [[channel, stdout] as const, [channel.stderr, stderr] as const]) {
      from.unpipe(to);
      to.end();
    }
    return end;
  });
  passedOn.catch(() => {}); // Callers get the rejection; this only avoids an unhandled one.
  return { ...liveProgram({ channel, ended, close }), stdout, stderr, ended: passedOn };
}

const pause = (milliseconds: number) => new Promise<false>((resolve) => setTimeout(resolve, milliseconds, false));
