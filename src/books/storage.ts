import type { Log } from '../base/log.ts';
import { type Mount, whyShortLived, whyUntrusted } from '../files/mount.ts';

/** Thrown when books would be served on a file system that this machine's kernel cannot vouch for. */
export class UntrustedStorageError extends Error {}

export type StorageOptions = {
  readMount(directory: string): Mount | undefined;
  /** Serves on any file system (`serve --unsafe-storage`). */
  isAnyAccepted: boolean;
};

/**
 * Judges the file system of a data directory before it is locked. Throws UntrustedStorageError where two servers could write the
 * same books, unless any is accepted: then returns what is wrong. Warns of one that does not outlive the machine or the container.
 */
export function judgeStorage(
  directory: string,
  { readMount, isAnyAccepted }: StorageOptions,
  log: Pick<Log, 'warn'>,
): string | undefined {
  const mount = readMount(directory);
  if (!mount) return undefined; // Not known: `purser doctor` says so.
  const is = `${directory} is on ${mount.type} (${mount.source})`;
  const untrusted = whyUntrusted(mount);
  if (untrusted && !isAnyAccepted)
    throw new UntrustedStorageError(
      `${is}, ${untrusted}. Use ext4 or xfs on a disk of this machine, or on a block device that replicates itself (DRBD, Ceph RBD, a cloud's disk). \`purser serve --unsafe-storage\` starts all the same.`,
    );
  const wrong = untrusted ?? whyShortLived(mount);
  if (wrong) log.warn({ event: 'storage.unsafe' }, `${is}, ${wrong}`);
  return untrusted && `${is}, ${untrusted}`;
}
