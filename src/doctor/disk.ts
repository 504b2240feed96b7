import {
  closeSync,
  fsyncSync,
  openSync,
  readFileSync,
  realpathSync,
  rmSync,
  statfsSync,
  statSync,
  writeSync,
} from 'node:fs';
import { join } from 'node:path';
import { warning } from '../compute/finding.ts';
import { freeNeeded, reserveOn } from '../db/disk-reserve.ts';
import { describeReplicas, hasFullCopy, type Replicas } from '../files/drbd.ts';
import { type Mount, whyShortLived, whyUntrusted } from '../files/mount.ts';

/** The doctor's checks of the disk under the data directory. A check returns its finding, and throws an Error for a fault. */

/** Local file systems whose locks and shared memory behave as SQLite expects. */
const FIT = /^(ext[234]|xfs|btrfs|zfs|f2fs|bcachefs|jfs|reiserfs|nilfs2)$/;

/** Returns a description of the file system. Throws if the ledger is not safe on it. */
export function judgeFileSystem(directory: string, mount: Mount | undefined): string {
  if (!mount)
    return warning(
      `the kernel does not say on which file system ${directory} is. Make sure that it is a local one: no network share, no memory disk.`,
    );
  const { type, source, options } = mount;
  const is = `${directory} is on ${type} (${source})`;
  const untrusted = whyUntrusted(mount);
  if (untrusted) throw new Error(`${is}, ${untrusted}. Move it to a local disk.`);
  const shortLived = whyShortLived(mount);
  if (shortLived && type !== 'overlay') throw new Error(`${is}, ${shortLived}. Move it to a disk.`);
  if (options.includes('ro'))
    throw new Error(`${is}, which is mounted read-only. The kernel log may say why (dmesg); then mount it writable.`);
  if (shortLived) return warning(`${is}, ${shortLived}. Put the data directory on a volume.`);
  if (/^(vfat|exfat|msdos|ntfs\d?|fuseblk|hfsplus)$/.test(type))
    return warning(
      `${is}, which knows no owners and no hard links: others may read the keys. Move it to ext4, xfs or btrfs.`,
    );
  if (!FIT.test(type)) return warning(`${is}, which Purser does not know. Move it to ext4, xfs or btrfs.`);
  return is;
}

/** Describes the other copies of the disk. Throws where no box could take over with everything. */
export function judgeReplicas(replicas: Replicas): string {
  const says = describeReplicas(replicas);
  if (replicas.unknown !== null) return warning(`${says}. Run purser doctor as root, and look at \`drbdadm status\`.`);
  if (!hasFullCopy(replicas))
    throw new Error(`${says}: no box could take over. Look at \`drbdadm status\` on both, and connect them.`);
  return says;
}

/** Free space below which the doctor warns: room for a journal of some years. */
const DISK_BYTES_LOW = 256 * 1024 * 1024;
const MIB = 1024 * 1024;

type Space = { bytes: number; freeBytes: number; reserveBytes: number; files: number; freeFiles: number };

/** Returns the free space of the data directory's file system, and how much is reserved for settlements. */
export function readSpace(directory: string, reserve: string): Space {
  const { blocks, bavail, bsize, ffree, files } = statfsSync(directory);
  const reserveBytes = statSync(reserve, { throwIfNoEntry: false })?.size ?? 0;
  return { bytes: blocks * bsize, freeBytes: bavail * bsize, reserveBytes, files, freeFiles: ffree };
}

/** Returns how much space is free. Throws if settlements could fail for lack of it, or if no file can be made. */
export function judgeSpace(directory: string, { bytes, freeBytes, reserveBytes, files, freeFiles }: Space): string {
  const needed = freeNeeded(reserveOn(bytes), reserveBytes);
  const aside = reserveBytes ? `, and ${Math.floor(reserveBytes / MIB)} MiB set aside for settlements` : '';
  const free = `${Math.floor(freeBytes / MIB)} MiB free${aside}`;
  const move = `Free some, or move ${directory} to a larger disk.`;
  if (freeBytes < needed)
    throw new Error(`${free}: settlements need ${Math.ceil(needed / MIB)} MiB, so nothing new is begun. ${move}`);
  if (files > 0 && freeFiles < 16) throw new Error(`${free}, but no more files can be made there (inodes). ${move}`);
  if (freeBytes < DISK_BYTES_LOW) return warning(`${free}: it may fill up soon. ${move}`);
  return free;
}

/** No disk is faster than this: below it, something between Purser and the disk acknowledges too early. */
const FSYNC_MILLISECONDS_MIN = 0.01;
/** Average rotational latency of the fastest disks: half a turn at 15,000 a minute. */
const TURN_MILLISECONDS = 2;
/** Milliseconds of an fsync above which commits dominate the response time. */
const FSYNC_MILLISECONDS_SLOW = 50;
const FSYNC_COUNT = 20;

/** A disk as the kernel sees it. */
export type Disk = {
  name: string;
  /** A rotating disk, and not a virtual one: hypervisors report flash as rotating too. */
  isTurning: boolean;
  /** True if the kernel flushes the disk's write cache. It does not if the disk reports no volatile cache. */
  isFlushed: boolean;
};

/**
 * Measures several times how long it takes to append 4 KiB and sync it. Returns the milliseconds of each fsync in ascending
 * order, and leaves no file behind. Throws if the disk is full or refuses the write.
 */
export function measureFsync(directory: string): number[] {
  const file = join(directory, `.doctor-${process.pid}`);
  const handle = openSync(file, 'wx', 0o600);
  rmSync(file);
  const page = Buffer.alloc(4096, 1);
  try {
    const times = Array.from({ length: FSYNC_COUNT }, () => {
      writeSync(handle, page);
      const start = performance.now();
      fsyncSync(handle);
      return performance.now() - start;
    });
    return times.sort((a, b) => a - b);
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    if (code === 'ENOSPC' || code === 'EDQUOT')
      throw new Error(`Nothing can be written to ${directory}: it is full (${code}). Free some space there.`);
    throw new Error(
      `The disk of ${directory} does not take what is written (${code ?? message}). Check the kernel log (dmesg), and replace it before it loses what it has.`,
    );
  } finally {
    closeSync(handle);
  }
}

/** Judges from the measured times and the mount whether fsync reaches the disk. Only a power cut can prove it. */
export function judgeFsync(times: readonly number[], mount: Mount | undefined, disk: Disk | undefined): string {
  const median = times[Math.floor(times.length / 2)] ?? 0;
  const slowest = times.at(-1) ?? 0;
  const measured = `fsync takes ${median.toFixed(3)} ms (median of ${times.length}, at most ${slowest.toFixed(1)} ms)`;
  const unsafe = mount?.options.find((it) => /^(nobarrier|barrier=0|nobarriers|fsync_mode=nobarrier)$/.test(it));
  if (unsafe)
    throw new Error(
      `${measured}, but ${mount?.source} is mounted with ${unsafe}: syncing does not reach past the disk's own cache. Mount it without that option.`,
    );
  if (median < FSYNC_MILLISECONDS_MIN)
    throw new Error(
      `${measured}: no disk is that fast. A memory disk or a write cache that lies would lose acknowledged money in a power cut. Move the data directory to a disk that syncs.`,
    );
  if (disk?.isTurning && median < TURN_MILLISECONDS)
    return warning(
      `${measured}, faster than ${disk.name} can turn: a cache answers for it. If that has no battery, it loses acknowledged money in a power cut. Make sure that it has one, or switch it off (hdparm -W 0 /dev/${disk.name}).`,
    );
  if (median > FSYNC_MILLISECONDS_SLOW)
    return warning(
      `${measured}: every answer that moves money waits that long. Find out what else uses this disk, or move the data directory to a faster one.`,
    );
  const cache =
    disk && (disk.isFlushed ? `the cache of ${disk.name} is flushed` : `${disk.name} says it has no volatile cache`);
  return `${[measured, cache].filter(Boolean).join('; ')}. Whether a disk keeps its word shows only when its power is cut`;
}

/** Returns the disk under a mount. Undefined if the kernel does not show one: a volume of several disks, or no /sys. */
export function readDisk(mount: Mount | undefined): Disk | undefined {
  if (!mount) return undefined;
  try {
    let device = realpathSync(`/sys/dev/block/${deviceOf(mount)}`);
    const isPartition = statSync(join(device, 'partition'), { throwIfNoEntry: false }) !== undefined;
    if (isPartition) device = join(device, '..');
    const read = (name: string) => readFileSync(join(device, 'queue', name), 'utf8').trim();
    return {
      name: device.slice(device.lastIndexOf('/') + 1),
      isTurning:
        read('rotational') === '1' && !/\/(virtual|virtio\d+|vbd-\d+)\//.test(`${device}/`) && !isOfHypervisor(device),
      isFlushed: read('write_cache') === 'write back',
    };
  } catch {
    return undefined;
  }
}

/** Returns the device number, major:minor. btrfs and others invent one; then it is read from the mounted device, if it is one. */
function deviceOf({ device, source }: Mount): string {
  if (!device.startsWith('0:') || !source.startsWith('/')) return device;
  const { rdev } = statSync(source);
  return `${(rdev >> 8) & 0xfff}:${(rdev & 0xff) | ((rdev >> 12) & 0xfff00)}`;
}

/** Returns whether a hypervisor provides the disk. A virtual SCSI disk carries the hypervisor's name. */
function isOfHypervisor(device: string): boolean {
  try {
    const vendor =
      readFileSync(join(device, 'device/vendor'), 'utf8') + readFileSync(join(device, 'device/model'), 'utf8');
    return /qemu|vmware|virtual|msft|xen|google|amazon|vbox/i.test(vendor);
  } catch {
    return false;
  }
}
