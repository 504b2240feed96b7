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
import { type Mount, mountOf } from './mount.ts';

/** What doctor says of the disk under the data directory. What is thrown is wrong, as everywhere in doctor. */

/** Local file systems on which the log, its locks and its shared memory do what SQLite expects of them. */
const FIT = /^(ext[234]|xfs|btrfs|zfs|f2fs|bcachefs|jfs|reiserfs|nilfs2)$/;
/** Their locks and shared memory are not those of one machine, or are made up by a program (sqlite.org/wal.html, "no network"). */
const NETWORK = /^(nfs\d?|cifs|smb\w*|9p|afs|ceph|lustre|gfs2?|ocfs2|glusterfs|beegfs|orangefs|gpfs|coda|ncpfs)$/;

/** Answers what the file system is. Throws where the books cannot be trusted to it. */
export function judgeFileSystem(directory: string, mount: Mount | undefined): string {
  if (!mount)
    return warning(
      `the kernel does not say on which file system ${directory} is. Make sure that it is a local one: no network share, no memory disk.`,
    );
  const { type, source, options } = mount;
  const is = `${directory} is on ${type} (${source})`;
  if (NETWORK.test(type))
    throw new Error(
      `${is}, a network file system: SQLite's log and locks cannot be trusted there. Move it to a local disk.`,
    );
  if (/^fuse(\.|$)/.test(type))
    throw new Error(
      `${is}, which a program serves: whether its locks hold and its fsync means anything is up to that program. Move it to a local disk.`,
    );
  if (/^(tmpfs|ramfs|devtmpfs)$/.test(type))
    throw new Error(`${is}, which is memory: all of it is gone when the machine stops. Move it to a disk.`);
  if (options.includes('ro'))
    throw new Error(`${is}, which is mounted read-only. The kernel log may say why (dmesg); then mount it writable.`);
  if (type === 'overlay')
    return warning(
      `${is}, a layer of this container: all of it is gone with the container. Give the data directory a volume.`,
    );
  if (/^(vfat|exfat|msdos|ntfs\d?|fuseblk|hfsplus)$/.test(type))
    return warning(
      `${is}, which knows no owners and no hard links: others may read the keys. Move it to ext4, xfs or btrfs.`,
    );
  if (type === 'virtiofs')
    return warning(
      `${is}, a share of the machine that hosts this one: what it syncs is as safe as the host makes it. A disk of this machine's own is safer.`,
    );
  if (!FIT.test(type)) return warning(`${is}, of which nothing is known here. Move it to ext4, xfs or btrfs.`);
  return is;
}

export function readMount(directory: string): Mount | undefined {
  try {
    return mountOf(readFileSync('/proc/self/mountinfo', 'utf8'), realpathSync(directory));
  } catch {
    return undefined;
  }
}

/** A journal of some years; below it somebody should know. */
const DISK_BYTES_LOW = 256 * 1024 * 1024;
const MIB = 1024 * 1024;

export type Space = { bytes: number; freeBytes: number; reserveBytes: number; files: number; freeFiles: number };

/** What is free where the data directory is, and how much of it is set aside for settlements. */
export function readSpace(directory: string, reserve: string): Space {
  const { blocks, bavail, bsize, ffree, files } = statfsSync(directory);
  const reserveBytes = statSync(reserve, { throwIfNoEntry: false })?.size ?? 0;
  return { bytes: blocks * bsize, freeBytes: bavail * bsize, reserveBytes, files, freeFiles: ffree };
}

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

/** Below this, no disk has really written anything: something between us and the disk says yes too early. */
const FSYNC_MILLISECONDS_MIN = 0.01;
/** The fastest disk turns 15,000 times a minute, and the head is half a turn away on average. */
const TURN_MILLISECONDS = 2;
/** Slower than this, a commit is what everybody waits for. */
const FSYNC_MILLISECONDS_SLOW = 50;
const FSYNC_COUNT = 20;

/** A disk as the kernel sees it. */
export type Disk = {
  name: string;
  /** Turns, and is not one that a hypervisor made up: those say so of flash, too. */
  isTurning: boolean;
  /** Whether the kernel has a volatile cache flushed: not when the disk says that it has none. */
  isFlushed: boolean;
};

/** Milliseconds of appending 4 KiB and syncing it, from the shortest to the longest. Leaves nothing behind. */
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
      throw new Error(`Nothing can be written to ${directory}: it is full (${code}). Make room there.`);
    throw new Error(
      `The disk of ${directory} does not take what is written (${code ?? message}). Look into the kernel log (dmesg), and replace it before it loses what it has.`,
    );
  } finally {
    closeSync(handle);
  }
}

/** What the measured times and the mount say of a promise that only a power cut can break. */
export function judgeFsync(times: readonly number[], mount: Mount | undefined, disk: Disk | undefined): string {
  const median = times[Math.floor(times.length / 2)] ?? 0;
  const slowest = times.at(-1) ?? 0;
  const measured = `fsync takes ${median.toFixed(3)} ms (median of ${times.length}, at most ${slowest.toFixed(1)} ms)`;
  const unsafe = mount?.options.find((it) => /^(nobarrier|barrier=0|nobarriers|fsync_mode=nobarrier)$/.test(it));
  if (unsafe)
    throw new Error(
      `${measured}, but ${mount?.source} is mounted with ${unsafe}: it does not reach past the disk's own memory. Mount it without.`,
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
      `${measured}: every answer that moves money waits that long. Look for what else uses this disk, or move the data directory to a faster one.`,
    );
  const cache =
    disk && (disk.isFlushed ? `the cache of ${disk.name} is flushed` : `${disk.name} says it has no volatile cache`);
  return `${[measured, cache].filter(Boolean).join('; ')}. Whether a disk keeps its word shows only when its power is cut`;
}

/** The disk under a mount. Undefined where the kernel does not show one: a volume of several, or a container without /sys. */
export function readDisk(mount: Mount | undefined): Disk | undefined {
  if (!mount) return undefined;
  try {
    let place = realpathSync(`/sys/dev/block/${deviceOf(mount)}`);
    const isPartition = statSync(join(place, 'partition'), { throwIfNoEntry: false }) !== undefined;
    if (isPartition) place = join(place, '..');
    const read = (name: string) => readFileSync(join(place, 'queue', name), 'utf8').trim();
    return {
      name: place.slice(place.lastIndexOf('/') + 1),
      isTurning:
        read('rotational') === '1' && !/\/(virtual|virtio\d+|vbd-\d+)\//.test(`${place}/`) && !isOfHypervisor(place),
      isFlushed: read('write_cache') === 'write back',
    };
  } catch {
    return undefined;
  }
}

/** btrfs and others invent a device number; then what is mounted may still be one. */
function deviceOf({ device, source }: Mount): string {
  if (!device.startsWith('0:') || !source.startsWith('/')) return device;
  const { rdev } = statSync(source);
  return `${(rdev >> 8) & 0xfff}:${(rdev & 0xff) | ((rdev >> 12) & 0xfff00)}`;
}

/** Disks of a virtual machine that come by SCSI carry the hypervisor's name. */
function isOfHypervisor(place: string): boolean {
  try {
    const vendor =
      readFileSync(join(place, 'device/vendor'), 'utf8') + readFileSync(join(place, 'device/model'), 'utf8');
    return /qemu|vmware|virtual|msft|xen|google|amazon|vbox/i.test(vendor);
  } catch {
    return false;
  }
}
