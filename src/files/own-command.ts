import { type ExecFileOptions, execFile } from 'node:child_process';
import sea from 'node:sea';
import { fileURLToPath } from 'node:url';

/** Returns the arguments of `process.execPath` that run a command of Purser: of the executable, or of the source tree. */
export const ownArguments = (args: readonly string[]): string[] =>
  sea.isSea() ? [...args] : [fileURLToPath(new URL('../../cli/main.ts', import.meta.url)), ...args];

/**
 * Runs a command of Purser in a process of its own, and returns what it printed. `error` is set where it exited with another code
 * than 0, was ended or was not started. Never throws.
 */
export const runOwn = (
  args: readonly string[],
  options: ExecFileOptions,
): Promise<{ stdout: string; error: (Error & { killed?: boolean }) | null }> =>
  new Promise((resolve) => {
    execFile(process.execPath, ownArguments(args), { ...options, encoding: 'utf8' }, (error, stdout) =>
      resolve({ stdout, error }),
    );
  });
