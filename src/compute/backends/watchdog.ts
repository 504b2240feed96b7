import { chmodSync, mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

/** Where a container sees its deadline: a directory mounted read-only, so that a rename of the file is seen too. */
export const DEADLINE_MOUNT = '/run/purser';

/**
 * PID 1 of a container: it reads the deadline and exits when that has passed, and with it everything in the container,
 * while Purser is down too. Shell builtins, `date` and `sleep`; a file that cannot be read is not a reason to live.
 */
export const WATCHDOG = `trap 'exit 0' TERM INT
while read -r deadline < ${DEADLINE_MOUNT}/deadline && [ "$(date +%s)" -lt "$deadline" ]; do
  sleep 1 & wait $!
done`;

/** The deadline files of a backend's machines, one directory each. */
export type DeadlineFiles = {
  directory(tag: string): string;
  write(tag: string, deadline: number): void;
  read(tag: string): number | undefined;
  remove(tag: string): void;
};

export function createDeadlineFiles(root: string): DeadlineFiles {
  const directory = (tag: string) => join(root, tag);
  const file = (tag: string) => join(directory(tag), 'deadline');
  return {
    directory,
    write(tag, deadline) {
      mkdirSync(directory(tag), { recursive: true });
      const fresh = `${file(tag)}.new`;
      writeFileSync(fresh, `${deadline}\n`, { flush: true });
      // The watchdog is nobody of ours, and our own umask lets nobody read; what lies above is closed all the same.
      chmodSync(directory(tag), 0o755);
      chmodSync(fresh, 0o644);
      renameSync(fresh, file(tag));
    },
    read(tag) {
      try {
        return Number(readFileSync(file(tag), 'utf8'));
      } catch {
        return undefined;
      }
    },
    remove: (tag) => rmSync(directory(tag), { recursive: true, force: true }),
  };
}
