import { type ChildProcessWithoutNullStreams, execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { PassThrough } from 'node:stream';
import { startProgram } from '../../../files/programs.ts';
import { RESIZE, WITH_TERMINAL } from '../../kit/terminal.ts';
import { argvOf, type Program, type ProgramOrder } from '../../machine/program.ts';
import { nameOfSignal } from '../../machine/shell.ts';
import { killAll } from './kill.ts';

/** Programs in a lease on this machine: in its home, each in a session of its own. */

type ProcessHome = { home: string; env: Record<string, string> };

/** Background processes may hold the streams of a shell that has ended; after this much silence they count as ended. */
const SILENCE_MILLISECONDS = 1000;
const RESIZE_MILLISECONDS = 10_000;

/**
 * Starts a program. Its streams end when it has ended; its background processes are not awaited. A terminal needs `script` on this
 * machine; throws where there is none.
 */
export function beginIn(home: ProcessHome, order: ProgramOrder): Program {
  const { marker = '', terminal } = order;
  if (terminal && !hasProgram(home, 'script'))
    throw new Error('there is no terminal here: this machine has no `script` (package util-linux). Use ssh -T.');
  const variables = terminal && {
    PURSER_EXEC: marker,
    TERM: terminal.term,
    PURSER_ROWS: String(terminal.rows),
    PURSER_COLUMNS: String(terminal.columns),
    PURSER_COMMAND: order.command ?? '',
  };
  const [shell = '', ...args] = terminal ? ['/bin/sh', '-c', WITH_TERMINAL] : argvOf(order);
  const env = { ...home.env, ...variables };
  const child = startProgram(shell, args, { cwd: home.home, env, detached: true, stdio: 'pipe' });
  const ended = Promise.withResolvers<Awaited<Program['ended']>>();
  ended.promise.catch(() => {}); // Callers get the rejection; this only avoids an unhandled one.
  child.once('error', ended.reject);
  const [stdout, stderr] = [new PassThrough(), new PassThrough()];
  child.stdout.on('data', () => silence?.refresh()).pipe(stdout);
  child.stderr.on('data', () => silence?.refresh()).pipe(stderr);
  child.stdin.on('error', () => {}); // The program may leave its input unread.
  let silence: NodeJS.Timeout | undefined;
  const silent = () => {
    const isRead = !stdout.writableNeedDrain && !stderr.writableNeedDrain;
    if (isRead) release(child);
    else silence?.refresh(); // A slow reader is no silence.
  };
  child.once('exit', () => {
    silence = setTimeout(silent, SILENCE_MILLISECONDS);
  });
  let isClosed = false;
  child.once('close', (code, signal) => {
    isClosed = true;
    clearTimeout(silence);
    for (const it of [stdout, stderr]) it.end(); // A stream that was destroyed does not end what it is piped into.
    ended.resolve(signal === null ? { code: code as number } : { signal: nameOfSignal(signal) });
  });
  if (terminal) stderr.resume();
  let resized: Promise<unknown> = Promise.resolve();
  const kill = () => {
    child.kill('SIGKILL');
    release(child);
  };
  return {
    ...{ stdin: child.stdin, stdout, stderr, ended: ended.promise, kill },
    resize(columns, rows) {
      if (terminal) resized = resized.then(() => resizeTo(home, marker, rows, columns));
    },
    leave() {
      if (isClosed) return; // Its background processes continue.
      kill();
      if (marker) void killAll([`PURSER_EXEC=${marker}`]).catch(() => {}); // If this fails, the end of the lease kills them.
    },
  };
}

/** Closes the streams, even if another process still holds their other ends. */
function release(child: ChildProcessWithoutNullStreams): void {
  for (const it of child.stdio) it?.destroy();
}

const hasProgram = ({ env }: ProcessHome, name: string) =>
  env.PATH?.split(':').some((it) => existsSync(join(it, name)));

/** Sets the size of a session's terminal, which may have ended in the meantime. */
function resizeTo({ env }: ProcessHome, marker: string, rows: number, columns: number): Promise<void> {
  const options = { cwd: '/', env, timeout: RESIZE_MILLISECONDS, killSignal: 'SIGKILL' } as const;
  const args = ['-c', RESIZE, 'purser', marker, String(rows), String(columns)];
  return new Promise((resolve) => execFile('/bin/sh', args, options, () => resolve()));
}
