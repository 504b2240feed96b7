import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdirSync, mkdtempSync, rmSync, truncateSync, writeFileSync } from 'node:fs';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { hasComponent } from '../helper/component.ts';
import { hasEnded, until } from '../helper/waiting.ts';

/** The two boxes of a mirror, by number. */
export type Box = 0 | 1;
export const otherBox = (box: Box): Box => (box === 0 ? 1 : 0);

/** What can be cut while a box writes. Afterwards nothing that it writes is confirmed, unless the mirror lets it go on alone. */
export const CUTS = ['daemon', 'link', 'peer'] as const;
export type Cut = (typeof CUTS)[number];

/**
 * A disk that replicates itself to a second one, without a module of the kernel: QEMU's storage daemon writes every sector to its
 * own file and, over NBD, to the file of the second box's daemon, and confirms it when so many have it as `votes` says. The disk
 * is exported by FUSE, and mounted as ext4 through a loop device.
 */
export type Mirror = {
  /** Returns where a box mounts the disk. */
  directoryOf(box: Box): string;
  /** Mounts the disk on a box, with the other as its peer. */
  open(box: Box): Promise<void>;
  /** Mounts a box's own copy without a peer. Nothing of this box's may be open. */
  openAlone(box: Box): Promise<void>;
  /** Ends a part of what was opened last, as a failure of the power or of the network does. */
  cut(part: Cut): Promise<void>;
  /** Stops the daemon of the box that writes, so that its disk answers nothing; `thaw` lets it go on. */
  freeze(): void;
  thaw(box: Box): void;
  /** Ends all that belongs to a box, as fencing does. What was not confirmed is lost. */
  retire(box: Box): Promise<void>;
  /** Makes the disk of the other box a copy of this one's, as a synchronisation does. Nothing of either may be open. */
  synchronise(from: Box): void;
};

const BYTES = 256 * 1024 * 1024;
const EXPORT = 'disk';

export type MirrorOptions = {
  /** Disks that must have a write before it is confirmed: with 1 a box goes on alone. */
  votes?: 1 | 2;
  /** Where the files of both disks are made. Default: a new temporary directory. */
  parent?: string;
  /**
   * Whether a flush goes on to the disk below. Without it, what a daemon has written survives the end of the daemon, which is all
   * that is cut here, and the tests are quicker.
   */
  isFlushed?: boolean;
};

/** The daemon of a box, with the device and the mounts that lie on it. */
type Opened = { writer?: ChildProcess; peer?: ChildProcess; device?: string };

/** Opens a mirror whose disks are empty file systems. If this machine cannot, returns undefined and skips the test. */
export async function openMirror(
  t: Pick<TestContext, 'after' | 'skip'>,
  { votes = 2, parent = tmpdir(), isFlushed = false }: MirrorOptions = {},
): Promise<Mirror | undefined> {
  if (!hasComponent(t, 'mirror')) return undefined;
  const at = mkdtempSync(join(parent, 'purser-mirror-'));
  const path = (box: Box, name: string) => join(at, `${box}-${name}`);
  const opened: [Opened, Opened] = [{}, {}];
  let writes: Box = 0;
  for (const box of [0, 1] as const) {
    mkdirSync(path(box, 'mounted'));
    writeFileSync(path(box, 'exported'), '');
  }
  writeFileSync(path(0, 'raw'), '');
  truncateSync(path(0, 'raw'), BYTES);
  // Nothing is initialised later, which would write beside what is tested.
  run('mkfs.ext4', '-q', '-F', '-E', 'lazy_itable_init=0,lazy_journal_init=0', path(0, 'raw'));

  const file = (box: Box) =>
    `driver=file,node-name=own,filename=${path(box, 'raw')},cache.no-flush=${isFlushed ? 'off' : 'on'}`;
  const synchronise = (from: Box) => void run('cp', '--sparse=always', path(from, 'raw'), path(otherBox(from), 'raw'));
  synchronise(0);

  /** Starts a daemon of a box and waits until all that it exports is there. */
  async function start(box: Box, name: string, ...args: string[]): Promise<ChildProcess> {
    const pid = path(box, `${name}.pid`);
    rmSync(pid, { force: true });
    const daemon = spawn('qemu-storage-daemon', [...args, '--pidfile', pid], { stdio: ['ignore', 'ignore', 'pipe'] });
    let said = '';
    daemon.stderr.setEncoding('utf8').on('data', (text: string) => {
      said += text;
    });
    await until(`the daemon of box ${box} is ready`, () => {
      if (hasEnded(daemon)) throw new Error(`the daemon of box ${box} ended: ${said}`);
      return existsSync(pid);
    });
    return daemon;
  }

  const startPeer = (box: Box) =>
    start(
      box,
      'peer',
      ...['--blockdev', file(box)],
      ...['--nbd-server', `addr.type=unix,addr.path=${path(box, 'nbd')}`],
      ...['--export', `type=nbd,id=peer,node-name=own,writable=on,name=${EXPORT}`],
      ...['--chardev', `socket,id=control,path=${path(box, 'control')},server=on,wait=off`],
      ...['--monitor', 'chardev=control'],
    );

  /** Starts the daemon that exports a node of these, and mounts it. */
  async function mount(box: Box, node: string, blockdevs: readonly string[]): Promise<void> {
    const exported = `type=fuse,id=disk,node-name=${node},writable=on,mountpoint=${path(box, 'exported')}`;
    const own = opened[box];
    const args = blockdevs.flatMap((it) => ['--blockdev', it]);
    own.writer = await start(box, 'writer', ...args, '--export', exported);
    // Not with --direct-io: past the page cache of FUSE, writes of this kernel reach the file in parts.
    own.device = run('losetup', '--find', '--show', path(box, 'exported'));
    run('mount', '-o', 'errors=remount-ro', own.device, path(box, 'mounted'));
    writes = box;
  }

  async function retire(box: Box): Promise<void> {
    const own = opened[box];
    opened[box] = {};
    await Promise.all([end(own.writer), end(own.peer)]);
    if (own.device) {
      tryTo('umount', '--lazy', path(box, 'mounted'));
      tryTo('losetup', '--detach', own.device);
    }
    if (own.writer) tryTo('umount', '--lazy', path(box, 'exported'));
    for (const name of ['nbd', 'control']) rmSync(path(box, name), { force: true });
  }

  t.after(async () => {
    await retire(0);
    await retire(1);
    rmSync(at, { recursive: true, force: true });
  });
  return {
    directoryOf: (box) => path(box, 'mounted'),
    async open(box) {
      const peer = otherBox(box);
      opened[peer].peer = await startPeer(peer);
      const remote = `driver=nbd,node-name=peer,server.type=unix,server.path=${path(peer, 'nbd')},export=${EXPORT}`;
      const quorum = `driver=quorum,node-name=both,vote-threshold=${votes},read-pattern=fifo,children.0=own,children.1=peer`;
      await mount(box, 'both', [file(box), remote, quorum]);
    },
    openAlone: (box) => mount(box, 'own', [file(box)]),
    async cut(part) {
      if (part === 'link') return stopServing(path(otherBox(writes), 'control'));
      await end(part === 'daemon' ? opened[writes].writer : opened[otherBox(writes)].peer);
    },
    freeze: () => void opened[writes].writer?.kill('SIGSTOP'),
    thaw: (box) => void opened[box].writer?.kill('SIGCONT'),
    retire,
    synchronise,
  };
}

const run = (program: string, ...args: string[]) =>
  execFileSync(program, args, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] }).trim();

/** Undoes what may have been undone already. */
function tryTo(program: string, ...args: string[]): void {
  try {
    run(program, ...args);
  } catch {}
}

/** Ends a daemon as the loss of its machine does. */
async function end(daemon: ChildProcess | undefined): Promise<void> {
  if (!daemon || hasEnded(daemon)) return;
  const ended = once(daemon, 'exit');
  daemon.kill('SIGKILL');
  await ended;
}

/** Makes a daemon cut its connections and accept no others, though it goes on. */
async function stopServing(control: string): Promise<void> {
  const socket = connect(control);
  const said = { text: '' };
  socket.setEncoding('utf8').on('data', (text: string) => {
    said.text += text;
  });
  await once(socket, 'connect');
  socket.write('{"execute":"qmp_capabilities"}{"execute":"nbd-server-stop","id":"stop"}');
  await until('the daemon has cut its connections', () => /\{[^{}]*\{\}[^{}]*"id": "stop"/.test(said.text));
  socket.destroy();
}
