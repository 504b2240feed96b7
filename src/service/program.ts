import { type SpawnSyncOptions, spawnSync } from 'node:child_process';

/** Programs of the system answer in milliseconds; a start of the unit does not wait until it serves. */
const RUN_MILLISECONDS = 30_000;

/** The user, the directory and the variables of a program; by default those of this process. */
type RunAs = Pick<SpawnSyncOptions, 'uid' | 'gid' | 'cwd' | 'env'>;

/** The end of a program of the system: `status` is its exit code; null where the program does not exist. */
export type Ran = { status: number | null; stdout: string; stderr: string };

/** Runs a program of the system. Throws where it did not end in time, as its outcome is unknown then. */
export function runProgram(program: string, ...args: string[]): Ran {
  return runWithin(RUN_MILLISECONDS, {}, program, ...args);
}

/** Like `runProgram`, for a program that may take longer, or runs as another user. */
export function runWithin(milliseconds: number, as: RunAs, program: string, ...args: string[]): Ran {
  const { status, stdout, stderr, error, signal } = spawnSync(program, args, {
    ...as,
    encoding: 'utf8',
    timeout: milliseconds,
    killSignal: 'SIGKILL',
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  const code = (error as NodeJS.ErrnoException | undefined)?.code;
  if (code === 'ENOENT') return { status: null, stdout: '', stderr: `there is no program ${program}` };
  if (code === 'ETIMEDOUT')
    throw new Error(`\`${[program, ...args].join(' ')}\` did not end within ${milliseconds / 1000} s.`);
  if (error) throw new Error(`\`${program}\` could not be run (${code}).`);
  if (status === null) throw new Error(`\`${[program, ...args].join(' ')}\` was ended by ${signal}.`);
  return { status, stdout: stdout.trim(), stderr: stderr.trim() };
}

/** Runs a program that has to succeed, and returns its output. Throws with its output otherwise. */
export const mustRun = (program: string, ...args: string[]): string =>
  mustRunWithin(RUN_MILLISECONDS, program, ...args);

/** Like `mustRun`, for a program that may take longer. */
export function mustRunWithin(milliseconds: number, program: string, ...args: string[]): string {
  const { status, stdout, stderr } = runWithin(milliseconds, {}, program, ...args);
  if (status === 0) return stdout;
  throw new Error(`\`${[program, ...args].join(' ')}\` failed: ${stderr || stdout || `exit code ${status}`}`);
}
