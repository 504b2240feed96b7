import { readFileSync, realpathSync } from 'node:fs';

/** A mount, as a line of /proc/self/mountinfo describes it (proc(5)). */
export type Mount = {
  at: string;
  /** Device number, major:minor. It is listed in /sys/dev/block, unless the file system invented it. */
  device: string;
  type: string;
  /** The mounted device, or a name that the file system chose. */
  source: string;
  /** Options of the mount and of the file system. */
  options: readonly string[];
};

/** Decodes the octal escapes of space, tab, newline and backslash. */
const plain = (text: string) =>
  text.replace(/\\(\d{3})/g, (_, octal) => String.fromCharCode(Number.parseInt(octal, 8)));

/** Finds the mount of `path`, which is absolute and has no symbolic links. Returns undefined if the text has none. */
export function mountOf(mountinfo: string, path: string): Mount | undefined {
  let mount: Mount | undefined;
  for (const line of mountinfo.split('\n')) {
    const [first = '', fileSystem = ''] = line.split(' - ');
    const [, , device, , at, options] = first.split(' ');
    const [type, source, more] = fileSystem.split(' ');
    if (!device || !at || !type) continue;
    const point = plain(at);
    const isOn = path === point || path.startsWith(point === '/' ? '/' : `${point}/`);
    // Of two mounts on the same point, the later hides the earlier.
    if (!isOn || (mount && point.length < mount.at.length)) continue;
    mount = { at: point, device, type, source: plain(source ?? ''), options: `${options},${more}`.split(',') };
  }
  return mount;
}

/** Returns the mount that a directory is on, or undefined if the kernel does not list it. */
export function readMount(directory: string): Mount | undefined {
  try {
    return mountOf(readFileSync('/proc/self/mountinfo', 'utf8'), realpathSync(directory));
  } catch {
    return undefined;
  }
}

/** File systems whose locks and shared memory span machines or are emulated, which WAL mode forbids (sqlite.org/wal.html). */
const NETWORK = /^(nfs\d?|cifs|smb\w*|9p|afs|ceph|lustre|gfs2?|ocfs2|glusterfs|beegfs|orangefs|gpfs|coda|ncpfs)$/;

/**
 * Returns why this machine's kernel cannot vouch for the locks and syncs on this file system: two servers could write the
 * same books there. Undefined where it can.
 */
export function whyUntrusted({ type }: Pick<Mount, 'type'>): string | undefined {
  if (NETWORK.test(type)) return "a network file system: SQLite's log and locks cannot be trusted there";
  if (type === 'virtiofs')
    return 'a share of the host: another machine may write the same files, and this kernel would not know';
  // `fuseblk` is a disk of this machine, with a driver outside the kernel.
  if (/^fuse(\.|$)/.test(type))
    return 'which a program serves: whether its locks hold and its fsync means anything is up to that program';
  return undefined;
}

/** Returns why this file system does not outlive the machine or the container; undefined where it does. */
export function whyShortLived({ type }: Pick<Mount, 'type'>): string | undefined {
  if (/^(tmpfs|ramfs|devtmpfs)$/.test(type)) return 'which is memory: all of it is gone when the machine stops';
  if (type === 'overlay') return 'a layer of this container: all of it is gone with the container';
  return undefined;
}
