import { accessSync, constants, realpathSync, renameSync, statSync } from 'node:fs';
import { dirname } from 'node:path';
import { syncDirectory, writeFresh } from '../files/durable-file.ts';

/** Replaces the settings file atomically and durably. A link remains one, and owner and mode are kept. */
export function replaceSettings(path: string, text: string): void {
  const file = realpathSync(path);
  const { uid, gid, mode } = statSync(file);
  const owner = process.getuid?.() === 0 ? { uid, gid } : {}; // Settings that the service may read, and not change.
  renameSync(writeFresh(file, text, { mode: mode & 0o7777, ...owner }), file);
  syncDirectory(dirname(file));
}

/** Returns why this process may not replace the settings file; undefined if it may. One of another user stays that user's. */
export function replaceFault(path: string): string | undefined {
  const user = process.getuid?.();
  try {
    const file = realpathSync(path);
    if (user !== 0 && statSync(file).uid !== user) return 'it belongs to another user';
    accessSync(dirname(file), constants.W_OK | constants.X_OK);
    return undefined;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code ?? (error as Error).message;
  }
}
