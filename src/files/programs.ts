import { execFile, spawn } from 'node:child_process';
import { accessSync, constants, realpathSync } from 'node:fs';
import { basename, join } from 'node:path';
import { promisify } from 'node:util';
import { deadline } from '../net/deadline.ts';

const run = promisify(execFile);
const RUN_MILLISECONDS = 5000;
/** Milliseconds within which a killed program ends, unless the kernel keeps it. */
const KILL_MILLISECONDS = 1000;

/** Returns the output of a program, whatever its exit code. Undefined if it is missing, hangs or prints nothing. */
export async function outputOf(program: string, ...args: string[]): Promise<string | undefined> {
  const output = await run(program, args, { timeout: RUN_MILLISECONDS, killSignal: 'SIGKILL', env: {} }).catch(
    (error: { stdout?: string }) => ({ stdout: error.stdout ?? '' }),
  );
  return output.stdout.trim() || undefined;
}

/** The result of asking a program: its output; that it failed or could not be started; or no answer within the time limit. */
type ProgramAnswer = { outcome: 'done'; output: string } | { outcome: 'refused' | 'unknown'; reason: string };

/**
 * Asks a program, and reports what failed. Resolves within seconds, also where the program cannot even be killed because the kernel
 * waits for a device. Never throws.
 */
export function askProgram(program: string, ...args: string[]): Promise<ProgramAnswer> {
  const name = basename(program);
  const late: ProgramAnswer = {
    outcome: 'unknown',
    reason: `${name} did not answer within ${RUN_MILLISECONDS / 1000} s`,
  };
  const options = { timeout: RUN_MILLISECONDS, killSignal: 'SIGKILL', env: {} } as const;
  const asked = run(program, args, options).then(
    ({ stdout }): ProgramAnswer => ({ outcome: 'done', output: stdout }),
    ({ killed, stderr, message }: Error & { killed?: boolean; stderr?: string }): ProgramAnswer => {
      if (killed) return late;
      const [said] = (stderr || message).trim().split('\n');
      return { outcome: 'refused', reason: `${name} failed: ${said}` };
    },
  );
  return deadline(asked, RUN_MILLISECONDS + KILL_MILLISECONDS, () => late);
}

/**
 * Starts a program like Node's `spawn`. Throws where this process has no descriptor left: Node then returns a child without
 * streams, and emits an error before a listener can be added, which would end the process.
 */
export const startProgram = ((...order: Parameters<typeof spawn>) => {
  const child = spawn(...order);
  if ((child.stdio as unknown) !== undefined) return child;
  child.on('error', () => {});
  throw new Error(`${order[0]} cannot be started: too many files are open (EMFILE)`);
}) as typeof spawn;

/** Returns every program of this name on the search path, each once. */
export function findPrograms(name: string, searchPath: readonly string[]): string[] {
  const programs = searchPath.flatMap((directory) => {
    try {
      const file = realpathSync(join(directory, name));
      accessSync(file, constants.X_OK);
      return [[file, join(directory, name)] as const];
    } catch {
      return [];
    }
  });
  return [...new Map(programs.reverse()).values()].reverse();
}
