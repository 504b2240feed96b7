import type { Replicas } from '../files/drbd.ts';
import { type Mount, whyShortLived, whyUntrusted } from '../files/mount.ts';

/** Thrown when books would be served on a file system that this machine's kernel cannot vouch for. */
export class UntrustedStorageError extends Error {}

export type StorageOptions = {
  readMount(directory: string): Mount | undefined;
  /** Returns what is known of the other copies of the disk under a mount; without it, nothing is. */
  readReplicas?(mount: Mount | undefined): Promise<Replicas | undefined>;
  /** Serves on any file system (`serve --unsafe-storage`). */
  isAnyAccepted: boolean;
};

/**
 * Judges the file system of a data directory before it is locked. Throws UntrustedStorageError where two servers could write the
 * same books, unless any is accepted. Returns the fault of an accepted one, and whether it would be refused for it: otherwise it
 * does not outlive the machine or the container.
 */
export function judgeStorage(
  directory: string,
  { readMount, isAnyAccepted }: StorageOptions,
): { wrong: string; isUntrusted: boolean } | undefined {
  const mount = readMount(directory);
  if (!mount) return undefined; // Not known: `purser doctor` reports it.
  const is = `${directory} is on ${mount.type} (${mount.source})`;
  const untrusted = whyUntrusted(mount);
  if (untrusted && !isAnyAccepted)
    throw new UntrustedStorageError(
      `${is}, ${untrusted}. Use ext4 or xfs on a disk of this machine, or on a block device that replicates itself (DRBD, Ceph RBD, a cloud's disk). \`purser serve --unsafe-storage\` starts all the same.`,
    );
  const why = untrusted ?? whyShortLived(mount);
  return why === undefined ? undefined : { wrong: `${is}, ${why}`, isUntrusted: untrusted !== undefined };
}
