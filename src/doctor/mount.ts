/** Where a path lies, as the kernel says it in /proc/self/mountinfo (proc(5)). */
export type Mount = {
  at: string;
  /** Of the device: it is below /sys/dev/block, unless the file system made it up. */
  device: string;
  type: string;
  /** What is mounted: a device, or what the file system calls it. */
  source: string;
  /** Of the mount and of the file system. */
  options: readonly string[];
};

/** Space, tab, newline and backslash are written as octal numbers. */
const plain = (text: string) =>
  text.replace(/\\(\d{3})/g, (_, octal) => String.fromCharCode(Number.parseInt(octal, 8)));

/** The mount that `path` lies on: absolute and without symbolic links. Undefined where the text does not tell. */
export function mountOf(mountinfo: string, path: string): Mount | undefined {
  let found: Mount | undefined;
  for (const line of mountinfo.split('\n')) {
    const [mount = '', fileSystem = ''] = line.split(' - ');
    const [, , device, , at, options] = mount.split(' ');
    const [type, source, more] = fileSystem.split(' ');
    if (!device || !at || !type) continue;
    const point = plain(at);
    const isOn = path === point || path.startsWith(point === '/' ? '/' : `${point}/`);
    // Of two on the same point, the later one hides the other.
    if (!isOn || (found && point.length < found.at.length)) continue;
    found = { at: point, device, type, source: plain(source ?? ''), options: `${options},${more}`.split(',') };
  }
  return found;
}
