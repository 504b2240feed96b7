import type { Readable } from 'node:stream';
import type { ExecOrder, ExecResult, GuestSession, Ref, SessionOrder } from '../backend.ts';
import { collectBoth } from './collect.ts';
import { codeOfSignal, KILLED } from './shell.ts';

/** A program that runs in a machine. An engine's `Begin` is the only way to start one. */
export type Program = Pick<GuestSession, 'stdin' | 'ended' | 'resize'> & {
  stdout: Readable;
  /** Empty with a terminal, which has one stream for both. */
  stderr: Readable;
  /**
   * Ends the wait for the program and closes its connection. `ended` rejects with `reason`, unless the end is known already. The
   * program may continue in the machine.
   */
  leave(reason?: Error): void;
  /** Closes the streams, and ends the program where the engine can do that by itself. */
  kill(): void;
  /** A value of `performance.now()` at which it had not begun yet, where the engine knows one. */
  begunAt?: number;
  /**
   * Examines the collected result: returns standard error without the engine's own messages, and throws where a part of the output
   * was lost or nothing was run.
   */
  judge?(exitCode: number, stderr: Buffer): Buffer;
};

/** The error of input that is written to a program that has ended: it reads none of it, or not all. */
export const unreadInput = () => new Error('the program has ended, and has not read all of its input');

export type ProgramOrder = {
  /** Determines the guarantees of the engine. The output of `upload` and `kill` may be cut short. */
  purpose: 'exec' | 'upload' | 'session' | 'kill';
  /** A script for `/bin/sh -c`, and its arguments. */
  script: string;
  args: readonly string[];
  /**
   * The last argument: the text of a tenant. An engine may send it over standard input instead, where arguments appear in lists of
   * processes or logs. That of `exec` is followed by no other input.
   */
  command?: string | undefined;
  /** The value of PURSER_EXEC in the environment of the program. */
  marker?: string;
  terminal?: SessionOrder['terminal'];
};

/**
 * Starts a program as the tenant, in the directory where commands start. Throws when the machine does not run, and when it
 * is unknown whether the program has begun.
 */
export type Begin = (ref: Ref, order: ProgramOrder) => Promise<Program>;

/** Returns the program of an order, with its command as the last argument. */
export const argvOf = ({ script, args, command }: Pick<ProgramOrder, 'script' | 'args' | 'command'>): string[] => [
  ...['/bin/sh', '-c', script, 'purser', ...args],
  ...(command === undefined ? [] : [command]),
];

/** Returns whether a command with a limit was killed by it, and not before it. `begunAt` is a value of `performance.now()`. */
export const hasTimedOut = (exitCode: number, timeoutSeconds: number, begunAt: number): boolean =>
  exitCode === KILLED && performance.now() - begunAt >= timeoutSeconds * 1000;

/** The limits of a program that is awaited. */
export type ProgramLimits = Pick<ExecOrder, 'streamBytesMax' | 'budget'> & { milliseconds: number };

/**
 * Gives a program the whole of its input, and waits for its end and its output. A program that takes longer than
 * `milliseconds` is left.
 */
export async function finish(
  program: Program,
  input: Buffer | undefined,
  { milliseconds, ...bounds }: ProgramLimits,
): Promise<Omit<ExecResult, 'timedOut'>> {
  const late = setTimeout(() => {
    const reason = new Error(`the machine took longer than ${milliseconds / 1000} s`);
    program.leave(Object.assign(reason, { name: 'TimeoutError' }));
  }, milliseconds);
  try {
    const output = collectBoth(program.stdout, program.stderr, bounds);
    output.catch(() => {}); // `ended` rejects as well.
    if (input) program.stdin.write(input);
    program.stdin.end();
    const end = await program.ended;
    const exitCode = 'code' in end ? end.code : codeOfSignal(end.signal);
    const collected = await output;
    const stderr = program.judge?.(exitCode, collected.stderr) ?? collected.stderr;
    return { exitCode, ...collected, stderr };
  } finally {
    clearTimeout(late);
    program.leave();
  }
}
