import type { Installed } from './installed.ts';
import { mustRun } from './program.ts';

/** A function that Node has on POSIX, and its types do not. */
type Initgroups = { initgroups?: (user: string, group: string | number) => void };

/**
 * Gives up root for good, and continues as the user of the service: its files then belong to the service, and no more can be
 * reached than the service reaches. Does nothing where the service itself runs as root.
 */
export function becomeServiceUser({ user, group, supplementaryGroups }: Installed): void {
  if (!user) return;
  const gid = group || Number(mustRun('id', '-g', user));
  (process as Initgroups).initgroups?.(user, gid);
  if (supplementaryGroups.length) process.setgroups?.([...(process.getgroups?.() ?? []), ...supplementaryGroups]);
  process.setgid?.(gid);
  process.setuid?.(user);
}
