import { type ChildProcessWithoutNullStreams, execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { PassThrough } from 'node:stream';
import { startProgram } from '../../../files/programs.ts';
import type { ExecOrder, ExecResult, Session, SessionOrder } from '../../backend.ts';
import { collect, collectBoth } from '../collect.ts';
import { codeOfSignal, judgeUpload, KILLED, LIMITED, nameOfSignal, RECEIVE } from '../shell.ts';
import { RESIZE, WITH_TERMINAL } from '../terminal.ts';
import { killAll } from './kill.ts';

/** What runs in a lease on this machine: shells in its home, each in a session of its own. */

export type Place = { home: string; env: Record<string, string> };
type Ended = { code: number } | { signal: string };

/**
 * The guard inside ends a command at its limit. If the guard was killed, the command is ended from here this much
 * later.
 */
const GRACE_MILLISECONDS = 10_000;
/** Background processes may hold the streams of a shell that has ended; after this much silence they count as ended. */
const SILENCE_MILLISECONDS = 1000;
const RESIZE_MILLISECONDS = 10_000;
const UPLOAD_MILLISECONDS = 120_000;
const UPLOAD_STDERR_BYTES_MAX = 4096;

/** Starts a shell. Its streams end when it has ended; what it left in the background is not waited for. */
function begin({ home, env }: Place, args: readonly string[], variables: Record<string, string> = {}) {
  const environment = { ...env, ...variables };
  const child = startProgram('/bin/sh', args, { cwd: home, env: environment, detached: true, stdio: 'pipe' });
  const ended = Promise.withResolvers<Ended>();
  ended.promise.catch(() => {}); // Whoever waits hears of it.
  child.once('error', ended.reject);
  const [stdout, stderr] = [new PassThrough(), new PassThrough()];
  child.stdout.on('data', () => silence?.refresh()).pipe(stdout);
  child.stderr.on('data', () => silence?.refresh()).pipe(stderr);
  child.stdin.on('error', () => {}); // It need not read what it is given.
  let silence: NodeJS.Timeout | undefined;
  const silent = () => {
    const isRead = !stdout.writableNeedDrain && !stderr.writableNeedDrain;
    if (isRead) release(child);
    else silence?.refresh(); // A slow reader is no silence.
  };
  child.once('exit', () => {
    silence = setTimeout(silent, SILENCE_MILLISECONDS);
  });
  child.once('close', (code, signal) => {
    clearTimeout(silence);
    for (const it of [stdout, stderr]) it.end(); // A stream that was destroyed does not end what it is piped into.
    ended.resolve(signal === null ? { code: code as number } : { signal: nameOfSignal(signal) });
  });
  return { child, stdout, stderr, ended: ended.promise };
}

/** Closes the streams, even if another process still holds their other ends. */
function release(child: ChildProcessWithoutNullStreams): void {
  for (const it of child.stdio) it?.destroy();
}

/** Writes a file as a shell of the lease would. A relative path begins in the home. */
export async function receive(place: Place, path: string, content: Buffer): Promise<void> {
  const { child, stdout, stderr, ended } = begin(place, ['-c', RECEIVE, 'purser', path, String(content.length)]);
  stdout.resume();
  const said = collect(stderr, UPLOAD_STDERR_BYTES_MAX);
  child.stdin.end(content);
  const over = setTimeout(() => child.kill('SIGKILL'), UPLOAD_MILLISECONDS);
  const end = await ended.finally(() => clearTimeout(over));
  judgeUpload('code' in end ? end.code : codeOfSignal(end.signal), (await said).bytes);
}

/** Runs a command to its end or its limit; then all that it started is dead. */
export async function execute(place: Place, { command, timeoutSeconds, ...most }: ExecOrder): Promise<ExecResult> {
  const marker = randomBytes(12).toString('hex');
  const started = performance.now();
  const script = ['-c', LIMITED, 'purser', marker, String(timeoutSeconds), command];
  const { child, stdout, stderr, ended } = begin(place, script);
  child.stdin.end();
  const over = setTimeout(() => kill(child, marker), timeoutSeconds * 1000 + GRACE_MILLISECONDS);
  const said = collectBoth(stdout, stderr, most);
  said.catch(() => {}); // A command that is lost says so itself.
  const end = await ended.finally(() => clearTimeout(over));
  const exitCode = 'code' in end ? end.code : codeOfSignal(end.signal);
  return {
    exitCode,
    ...(await said),
    timedOut: exitCode === KILLED && performance.now() - started >= timeoutSeconds * 1000,
  };
}

/** Kills a shell and everything it started, and closes its streams. */
function kill(child: ChildProcessWithoutNullStreams, marker: string): void {
  child.kill('SIGKILL');
  release(child);
  void killAll([`PURSER_EXEC=${marker}`]).catch(() => {}); // The end of the lease is another chance.
}

/** Opens a session. A terminal needs `script` on this machine; throws where there is none. */
export function openSession(place: Place, { command, terminal }: SessionOrder): Session {
  if (terminal && !hasProgram(place, 'script'))
    throw new Error('there is no terminal here: this machine has no `script` (package util-linux). Use ssh -T.');
  const marker = randomBytes(12).toString('hex');
  const plain = command === undefined ? ['-l'] : ['-c', command];
  const { child, stdout, stderr, ended } = begin(place, terminal ? ['-c', WITH_TERMINAL] : plain, {
    PURSER_EXEC: marker,
    ...(terminal && {
      TERM: terminal.term,
      PURSER_ROWS: String(terminal.rows),
      PURSER_COLUMNS: String(terminal.columns),
      PURSER_COMMAND: command ?? '',
    }),
  });
  if (terminal) stderr.resume();
  let resized: Promise<unknown> = Promise.resolve();
  return {
    stdin: child.stdin,
    stdout,
    stderr: terminal ? undefined : stderr,
    resize(columns, rows) {
      if (terminal) resized = resized.then(() => resizeTo(place, marker, rows, columns));
    },
    ended,
    kill: () => kill(child, marker),
  };
}

const hasProgram = ({ env }: Place, name: string) => env.PATH?.split(':').some((it) => existsSync(join(it, name)));

/** Sets the size of a session's terminal; that may have ended meanwhile. */
function resizeTo({ env }: Place, marker: string, rows: number, columns: number): Promise<void> {
  const options = { cwd: '/', env, timeout: RESIZE_MILLISECONDS, killSignal: 'SIGKILL' } as const;
  const args = ['-c', RESIZE, 'purser', marker, String(rows), String(columns)];
  return new Promise((resolve) => execFile('/bin/sh', args, options, () => resolve()));
}
