import { execFile, spawn } from 'node:child_process';
import { accessSync, constants, realpathSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';

const run = promisify(execFile);
const RUN_MILLISECONDS = 5000;

/** Returns the output of a program, whatever its exit code. Undefined if it is missing, hangs or prints nothing. */
export async function outputOf(program: string, ...args: string[]): Promise<string | undefined> {
  const output = await run(program, args, { timeout: RUN_MILLISECONDS, killSignal: 'SIGKILL', env: {} }).catch(
    (error: { stdout?: string }) => ({ stdout: error.stdout ?? '' }),
  );
  return output.stdout.trim() || undefined;
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
