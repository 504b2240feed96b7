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
