import { warning } from '../compute/finding.ts';
import type { Config } from '../config/config.ts';
import { newestBackup } from '../recovery/scheduled.ts';
import { canWrite } from './files.ts';
import type { ServerExamination } from './server.ts';

/** The seconds that a backup may take, including a late start, before it counts as missed. */
const BACKUP_LATE_SECONDS = 900;

/**
 * Checks that the server's own backups (`backup` in purser.yaml) can be made, by a running server's word or by this user's rights,
 * and that none is overdue at `now` (Unix seconds). Returns the finding; throws an Error for a fault.
 */
export function judgeBackups(
  { directory, every }: NonNullable<Config['backup']>,
  installationId: string,
  now: number,
  server?: Pick<ServerExamination, 'backup'>,
) {
  const { fault } = (server?.backup?.directory === directory && server.backup) || { fault: null };
  if (fault !== null)
    throw new Error(
      `The running server may not write into ${directory} (${fault}), so no backup is made. Give it to the server's user; under systemd add ReadWritePaths=${directory} (systemctl edit purser) and restart.`,
    );
  let at: number | undefined;
  try {
    at = newestBackup(directory, installationId, now);
  } catch (error) {
    const code = (error as NodeJS.ErrnoException).code ?? (error as Error).message;
    throw new Error(`${directory} cannot be read (${code}), so no backup is made. Is it mounted?`);
  }
  if (!canWrite(directory)) throw new Error(`This user may not write into ${directory}, so no backup is made.`);
  if (at === undefined) return warning(`there is none in ${directory}. A running server makes the first one at once.`);
  const hours = (seconds: number) => `${Math.round(seconds / 360) / 10} h`;
  const newest = `the newest in ${directory} is ${hours(now - at)} old`;
  if (now - at <= every + BACKUP_LATE_SECONDS) return newest;
  return warning(
    `${newest}, and one is due every ${hours(every)}. If the server runs, its log says why none was made (backup.failed).`,
  );
}
