import { accessSync, constants } from 'node:fs';
import { checkBackend } from '../compute/check.ts';
import { processLimits } from '../net/listen.ts';
import { command, NOTHING } from './command.ts';

/** Returns the code of the error with which this process may not write into a directory; null if it may. */
function writeFault(directory: string): string | null {
  try {
    accessSync(directory, constants.W_OK | constants.X_OK);
    return null;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code ?? (error as Error).message;
  }
}

/**
 * The facts that only the server's own process can know, as its user, its unit or its container decide them: where it may write,
 * what its backends can reach, and its limits.
 */
export const examination = {
  'server.examine': command(NOTHING, async ({ config: { backup }, slots }) => ({
    backup: backup ? { directory: backup.directory, fault: writeFault(backup.directory) } : null,
    backends: await Promise.all(
      slots.list.map(async ({ slot, backend, digest }) => ({
        slot,
        name: backend.name,
        digest,
        findings: await checkBackend(backend),
      })),
    ),
    limits: processLimits(),
  })),
};
