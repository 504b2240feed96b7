import { randomBytes } from 'node:crypto';
import type { Readable } from 'node:stream';
import { Refusal } from '../../base/refusal.ts';
import { inTime } from '../../net/deadline.ts';
import type { Backend, GuestSession, Ref, SessionOrder } from '../backend.ts';
import { NO_DIRECTORY } from './command.ts';
import { afterToken, firstWord, passOutput, rejectAtEnd, runText, startRun } from './run.ts';
import { codeOfSignal, quoted } from './shell.ts';

/** Programs in a machine to whose streams Purser stays attached, with arguments of their own instead of a command line. */

/** The time for a program to begin. */
const BEGIN_MILLISECONDS = 60_000;
/** One argument of a program has at most 128 KiB (Linux, MAX_ARG_STRLEN). */
const ARGUMENT_BYTES_MAX = 128 * 1024 - 1;

export type AttachedOrder = {
  /** The program and its arguments. */
  argv: readonly [string, ...string[]];
  env: Readonly<Record<string, string>>;
  /** The directory that it starts in, absolute or from the home; the home without it. */
  cwd: string | undefined;
  /** Keeps standard input open for `stdin`; otherwise it is empty. */
  hasInput: boolean;
  /** After this time the program is killed inside the machine, with all that it has started. */
  seconds: number;
  /** Gives it a terminal. Then there is no limit of time inside the machine. */
  terminal: SessionOrder['terminal'];
};

export type Attached = {
  /** The process id inside the machine. */
  pid: number;
  stdin: GuestSession['stdin'];
  /** Has to be read: it is taken from the machine no faster. */
  stdout: Readable;
  /** Undefined with a terminal. */
  stderr: Readable | undefined;
  /** The exit code, once the output has been passed on. Rejects when the connection to the machine was lost. */
  ended: Promise<number>;
  resize: GuestSession['resize'];
  /** Kills it, with all that it has started. */
  kill(): void;
};

/** Shell code that enters the home, and from there a directory. */
const enterFrom = (cwd: string | undefined) => `cd "\${HOME:-/}" 2>/dev/null || cd /
${cwd === undefined ? ':' : `cd ${cwd === '' ? '.' : fromHome(cwd)} 2>/dev/null`}`;

/** Returns a path as a word of shell: `~` is the home, and no path is taken for an option. */
export function fromHome(path: string): string {
  if (path === '~') return `"\${HOME:-/}"`;
  if (path.startsWith('~/')) return `"\${HOME:-/}"/${quoted(path.slice(2))}`;
  return quoted(path.startsWith('/') ? path : `./${path}`);
}

/** Returns the text that becomes the program; `say` prints its first word. Bash is replaced by sh where the image has none. */
function textOf({ argv, env, cwd, hasInput, terminal }: AttachedOrder): string {
  const variables = Object.entries(env).map(([name, value]) => ` ${name}=${quoted(value)}`);
  // A variable that the shell refuses, such as UID in bash, would end it: so it is tried in a shell of its own.
  const setAll = `variables() { export${variables.join('')}; }
(variables) 2>/dev/null || { say variables; exit 0; }
variables`;
  return `${enterFrom(cwd)} || { say cwd; exit 0; }
${variables.length ? setAll : ':'}
set -- ${argv.map(quoted).join(' ')}
case $1 in /bin/bash) [ -x /bin/bash ] || { shift; set -- /bin/sh "$@"; } ;; esac
command -v "$1" >/dev/null 2>&1 || { say missing; exit 0; }
say "pid $$"
exec "$@"${hasInput || terminal ? '' : ' </dev/null'}`;
}

/** Returns the process id in a first word. Throws refusals for a directory or a program that is not there, and for variables. */
function pidOf(word: string, { argv }: AttachedOrder): number {
  if (word === 'cwd') throw NO_DIRECTORY();
  if (word === 'variables')
    throw new Refusal(
      'invalid_request',
      'envs: the shell of the resource does not let one of these variables be set so.',
    );
  if (word === 'missing') throw new Refusal('invalid_request', `cmd: the resource has no ${JSON.stringify(argv[0])}.`);
  const [, pid] = /^pid (\d{1,9})$/.exec(word) ?? [];
  if (pid === undefined) throw new Error('the machine says what cannot be understood');
  return Number(pid);
}

/** Starts a program. Throws refusals for what cannot be started, and an error where it is not known whether it runs. */
export async function attach(backend: Pick<Backend, 'guest'>, ref: Ref, order: AttachedOrder): Promise<Attached> {
  const texts = [...order.argv, ...Object.values(order.env), order.cwd ?? ''];
  if (texts.some((it) => it.includes('\0'))) throw new Refusal('invalid_request', 'process: must not contain NUL.');
  if (order.argv.some((it) => Buffer.byteLength(it) > ARGUMENT_BYTES_MAX))
    throw new Refusal('invalid_request', `args: one has more than ${ARGUMENT_BYTES_MAX} bytes.`);
  return order.terminal ? attachTerminal(backend, ref, order) : attachStreams(backend, ref, order);
}

/** Waits for a connection to a machine. One that opens too late is closed, and what it has started is killed. */
function opened<T extends { kill(): void }>(opening: Promise<T>, what: string): Promise<T> {
  return inTime(opening, BEGIN_MILLISECONDS, what).catch((error) => {
    opening.then(
      (late) => late.kill(),
      () => {},
    );
    throw error;
  });
}

async function attachStreams({ guest }: Pick<Backend, 'guest'>, ref: Ref, order: AttachedOrder): Promise<Attached> {
  const input = order.hasInput ? 'fed' : undefined;
  const starting = startRun({ guest }, ref, { text: textOf(order), input, timeoutSeconds: order.seconds });
  const run = await opened(starting, 'The start of a program');
  try {
    const pid = pidOf(await inTime(firstWord(run), BEGIN_MILLISECONDS, 'The start of a program'), order);
    const { stdin, stdout, stderr, ended, kill } = run;
    return { pid, stdin, stdout, stderr, ended, kill, resize() {} };
  } catch (error) {
    run.kill();
    throw error;
  }
}

/** The time for a file with a text to be written, or removed. */
const TEXT_SECONDS = 30;
/**
 * Stores a text in a file of the machine that its user alone can read, and returns its path. The text comes over standard input, as
 * it has variables of its user: the command line of a terminal appears in lists of processes and in logs.
 */
async function storeText({ guest }: Pick<Backend, 'guest'>, ref: Ref, token: string, text: string): Promise<string> {
  const store = `umask 077
for at in "\${TMPDIR:-/tmp}" "\${HOME:-/}" /dev/shm; do
  printf '%s' ${quoted(text)} 2>/dev/null >"$at/.purser-${token}" && { say "at $at/.purser-${token}"; exit 0; }
  rm -f "$at/.purser-${token}"
done 2>/dev/null
say nowhere`;
  const { word } = await runText({ guest }, ref, { text: store, timeoutSeconds: TEXT_SECONDS, streamBytesMax: 0 });
  if (word.startsWith('at /')) return word.slice('at '.length);
  throw new Refusal('invalid_request', 'pty: none of /tmp, the home and /dev/shm can be written.');
}

async function attachTerminal({ guest }: Pick<Backend, 'guest'>, ref: Ref, order: AttachedOrder): Promise<Attached> {
  const token = randomBytes(16).toString('hex');
  const path = await storeText({ guest }, ref, token, `rm -f "$1"\n${textOf(order)}`);
  const command = `say() { printf '%s %s\\n' ${token} "$*"; }\nset -- ${quoted(path)}\n. "$1"`;
  const opening = guest.session(ref, { command, terminal: order.terminal });
  const session = await opened(opening, 'The start of a terminal').catch((error) => {
    const remove = { command: `rm -f ${quoted(path)}`, timeoutSeconds: TEXT_SECONDS, streamBytesMax: 0 };
    guest.exec(ref, remove).catch(() => {}); // The machine may be gone, and the file with it.
    throw error;
  });
  const word = Promise.withResolvers<string>();
  const stdout = afterToken(token, word.resolve);
  for (const it of [session.stdin, session.stdout]) it.on('error', () => {}); // `ended` reports it.
  const output = passOutput([[session.stdout, stdout]]);
  const ended = session.ended
    .then(async (end) => {
      await output.quiet();
      return 'code' in end ? end.code : codeOfSignal(end.signal);
    })
    .finally(output.end);
  rejectAtEnd(word, ended);
  function kill(): void {
    session.kill();
    output.dropUnread();
  }
  try {
    const pid = pidOf((await inTime(word.promise, BEGIN_MILLISECONDS, 'The start of a terminal')).trim(), order);
    const { stdin, resize } = session;
    return { pid, stdin, stdout, stderr: undefined, ended, resize, kill };
  } catch (error) {
    kill();
    throw error;
  }
}
