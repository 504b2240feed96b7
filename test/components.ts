// The components that tests of the engines' layer and of the soak need beside the project: where each is looked for, and the tests
// that use it. `npm run test:setup` installs them (test/setup has their Debian packages).
import { execFileSync } from 'node:child_process';
import { existsSync, globSync } from 'node:fs';
import { delimiter, join } from 'node:path';

const MODULES = join(import.meta.dirname, '../node_modules');
const AGENTS = join(import.meta.dirname, 'agents/node_modules');
const PLATFORM = `${process.platform}-${process.arch}`;

/** Directories of the programs of test/agents/package.json. Two packages install theirs by a script, and no script is run here. */
export const AGENT_DIRECTORIES = [
  join(AGENTS, `@anthropic-ai/claude-code-${PLATFORM}`),
  join(AGENTS, `opencode-${PLATFORM}/bin`),
  join(AGENTS, '.bin'),
];

/** Includes root's programs, even for users without their directories in the PATH. */
const DIRECTORIES = [...(process.env.PATH ?? '').split(delimiter), '/usr/local/sbin', '/usr/sbin', '/sbin'];

/** Returns whether a program is on the machine; a path is checked as it is. */
export const hasProgram = (name: string): boolean =>
  name.startsWith('/') ? existsSync(name) : DIRECTORIES.some((it) => existsSync(join(it, name)));

let mirror: { url: string | undefined } | undefined;
/** Returns the mirror that this machine installs Debian packages from. To ask for it takes a second, so it is asked once. */
export function debianMirror(): string | undefined {
  mirror ??= { url: findMirror() };
  return mirror.url;
}

function findMirror(): string | undefined {
  if (!hasProgram('apt-get')) return undefined;
  const filters = ['Created-By: Packages', 'Origin: Debian', 'Label: Debian'];
  const args = ['indextargets', '--format', '$(REPO_URI)', ...filters];
  return execFileSync('apt-get', args, { encoding: 'utf8' }).split('\n')[0] || undefined;
}

/**
 * Finds Litestream in the PATH or in its package, which npm has only for Linux on x64: so it is an optional dependency, and
 * other machines install without it.
 */
export function findLitestream(): string | undefined {
  const places = [
    ...DIRECTORIES.map((it) => join(it, 'litestream')),
    join(MODULES, '@flydotio/litestream-linux-x64/litestream'),
  ];
  return places.find((it) => existsSync(it));
}

/**
 * Returns the directory with Kubernetes' own programs, which test/setup unpacks from their archive if it exists; undefined
 * without them.
 */
export function findKubernetes(): string | undefined {
  const script = 'source "$1" && unpack_kubernetes >&2 && echo "$KUBERNETES"';
  const args = ['-c', script, 'bash', join(import.meta.dirname, 'setup')];
  try {
    return execFileSync('bash', args, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] }).trim();
  } catch {
    return undefined;
  }
}

/** What packaging/tools.ts asks for, on this machine. */
const RELEASED_WITH = [
  ...(process.arch === 'x64' ? ['aarch64-linux-gnu-strip', 'qemu-aarch64-static'] : []),
  ...(process.arch === 'arm64' ? ['x86_64-linux-gnu-strip', 'qemu-x86_64-static'] : []),
  ...['strip', 'dpkg-deb', 'python3', 'ssh-keygen', 'git'],
];

const isRoot = () => process.getuid?.() === 0;
type Component = { tests: string; isThere(): boolean };
/** A component that needs root and its programs. */
const asRoot = (tests: string, ...programs: string[]): Component => ({
  tests,
  isThere: () => isRoot() && programs.every(hasProgram),
});
const program = (tests: string, ...programs: string[]): Component => ({
  tests,
  isThere: () => programs.every(hasProgram),
});

/** The components by name: the tests of each, and whether this machine has it. */
export const COMPONENTS = {
  docker: asRoot('containers on Docker, leases over a crash, the image', 'dockerd', 'busybox'),
  runsc: asRoot('containers with a kernel of their own (gVisor)', 'runsc', 'dockerd', 'busybox'),
  podman: asRoot('containers on Podman', 'podman', '/usr/lib/podman/netavark', 'runc', 'busybox', 'newuidmap'),
  'rootless podman': asRoot(
    'containers of a user without rights',
    'podman',
    'newuidmap',
    'useradd',
    'setpriv',
    'runc',
    'busybox',
  ),
  lxd: asRoot('containers of LXD', 'lxd', 'busybox'),
  'qemu-system-x86_64': asRoot('virtual machines of LXD', 'qemu-system-x86_64', 'lxd', 'busybox'),
  slurm: asRoot(
    'jobs of a cluster',
    'munged',
    'slurmctld',
    'slurmd',
    'sbatch',
    'squeue',
    'scancel',
    'scontrol',
    'srun',
    'script',
  ),
  sshd: asRoot('hosts of a pool', '/usr/sbin/sshd'),
  kubernetes: {
    tests: 'pods of a cluster, and Purser in one',
    isThere: () =>
      isRoot() &&
      ['etcd', 'dockerd', 'runc', 'busybox', 'kubectl', 'unshare', 'nsenter', 'ip', 'openssl'].every(hasProgram) &&
      findKubernetes() !== undefined,
  },
  chromium: program('the page in a real browser', '/usr/bin/chromium'),
  systemd: program('the unit, as systemd reads it', 'systemd-analyze'),
  'systemd-nspawn': asRoot('the unit on a booted Debian', 'systemd-nspawn', 'nsenter', 'debootstrap', 'chroot'),
  debootstrap: asRoot('the executable in a minimal Debian', 'debootstrap', 'chroot', 'unshare'),
  'a Debian mirror': { tests: 'the executable in a minimal Debian', isThere: () => debianMirror() !== undefined },
  root: asRoot('small disks, other users, descriptors', 'mount', 'setpriv'),
  'failing disk': asRoot('a file system that turns read-only', 'losetup', 'mkfs.ext4', 'e2fsck'),
  mirror: asRoot(
    'a disk that replicates itself to a second one',
    'qemu-storage-daemon',
    'losetup',
    'mkfs.ext4',
    '/dev/fuse',
  ),
  btrfs: asRoot('limits of a disk', 'mkfs.btrfs'),
  namespaces: asRoot('machines of a marketplace', 'unshare', 'nsenter', 'setsid', 'curl'),
  strace: program('kills at each call, power cuts', 'strace'),
  prlimit: program('a process without descriptors, floods of connections', 'prlimit'),
  tun: { tests: 'tunnels through SSH', isThere: () => existsSync('/dev/net/tun') },
  busybox: program("commands with busybox's shell and tools", 'busybox'),
  'openssh-client': program('ssh, scp and sftp into a lease', 'ssh', 'sftp', 'scp'),
  openssl: program('engines behind TLS', 'openssl'),
  curl: program('the lines of the pages that call curl', 'curl'),
  python3: program("the receiver's recipe in Python, clients of other languages", 'python3'),
  pip: {
    tests: 'pip through the way out of a lease',
    isThere: () => hasProgram('/usr/bin/python3') && globSync('/usr/share/python-wheels/pip-*.whl').length > 0,
  },
  script: program('commands on a terminal', 'script'),
  zsh: program('completion in zsh', 'zsh'),
  fish: program('completion in fish', 'fish'),
  promtool: program('metrics and alerts', 'promtool'),
  prometheus: program('metrics, read by Prometheus', 'prometheus'),
  faketime: program('a clock that leaps', 'faketime'),
  gcc: program(
    'the first process of a container, built again',
    process.arch === 'x64' ? 'x86_64-linux-gnu-gcc' : 'gcc',
  ),
  'qemu-aarch64-static': program('the first process of a container on arm64', 'qemu-aarch64-static'),
  'qemu-x86_64-static': program('the first process of a container on amd64', 'qemu-x86_64-static'),
  release: {
    tests: 'a release',
    isThere: () => isRoot() && debianMirror() !== undefined && [...RELEASED_WITH, 'lintian'].every(hasProgram),
  },
  'docker-compose': program('Purser by Compose', 'docker-compose'),
  strip: program('the image', 'strip'),
  git: program('the image from a clone', 'git'),
  nginx: program('Purser behind nginx', 'nginx'),
  caddy: program('Purser behind Caddy', 'caddy'),
  litestream: { tests: 'a copy by Litestream', isThere: () => findLitestream() !== undefined },
  agents: {
    tests: 'eight agents of other vendors',
    isThere: () => isRoot() && ['unshare', 'ip'].every(hasProgram) && existsSync(join(AGENTS, '.package-lock.json')),
  },
  e2b: {
    tests: 'E2B’s SDKs',
    isThere: () => existsSync(join(import.meta.dirname, 'e2b/sdk/node_modules/.package-lock.json')),
  },
} satisfies Record<string, Component>;
