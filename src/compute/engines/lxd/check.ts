import type { CheckFinding, Guest, Ref } from '../../backend.ts';
import { warning } from '../../finding.ts';
import { GIB, type LeaseSize } from '../../kit/claim.ts';
import { describeReach } from '../../kit/egress.ts';
import { findUnlimited } from '../../kit/limits.ts';
import { WATCHDOG_PATH } from '../../kit/watchdog.ts';
import { type LxdApi, orAbsent, textOf } from './api.ts';
import { imagePath } from './describe.ts';
import { membersOf, runsMachines, type Server } from './host.ts';
import type { Keepers } from './keeper.ts';
import { allContents, COPYING_DRIVERS, type LxdSettings } from './settings.ts';

/** The remedies for errors of reaching the server, by their words: the meaning of each, and its remedy. */
const REMEDIES: [words: RegExp, what: string][] = [
  [
    /another certificate/,
    'If the server was made anew, put its new certificate (server.crt of its directory) into tls.server; if not, somebody else answers at its address.',
  ],
  [/ENOENT.*open|, open '/, 'Correct the path of this file, or let Purser read it.'],
  [/EACCES/, 'Purser’s user must be in the group that may open the socket (lxd, incus-admin): that is root there.'],
  [
    /ENOENT/,
    'Is LXD or Incus running, and is this the path of its socket? The snap has /var/snap/lxd/common/lxd/unix.socket.',
  ],
  [/key values mismatch|PEM/, 'tls.key must be the key of tls.cert, both PEM and the key without a passphrase.'],
];
const remedyFor = (text: string) =>
  REMEDIES.find(([words]) => words.test(text))?.[1] ??
  'Is it running, and is core.https_address set where it is another machine?';

/** Checks what a lease depends on. Never throws. */
export async function checkLxd(lxd: LxdApi, settings: LxdSettings): Promise<CheckFinding[]> {
  let server: Server;
  try {
    server = await lxd.ask<Server>('GET', '/1.0');
  } catch (error) {
    const text = textOf(error);
    return [{ name: 'engine', ok: false, detail: `${lxd.socket} cannot be asked: ${text}. ${remedyFor(text)}` }];
  }
  if (server.auth !== 'trusted')
    return [
      {
        name: 'engine',
        ok: false,
        detail: `${lxd.socket} does not trust Purser. Add tls.cert there: lxc config trust add FILE (incus config trust add-certificate FILE)`,
      },
    ];
  const { environment } = server;
  const name = `${environment.server === 'incus' ? 'Incus' : 'LXD'} ${environment.server_version} on ${lxd.socket}`;
  return [
    { name: 'engine', ok: true, detail: name },
    ...(environment.server_clustered ? [await checked('members', () => checkMembers(lxd))] : []),
    await checked('project', () => checkProject(lxd, settings)),
    ...(sellsMachines(settings) ? [await checked('virtual machines', () => checkDriver(server))] : []),
    await checked('disk', () => checkPool(lxd, settings)),
    await checked('image', () => checkImages(lxd, settings)),
    await checked('limits', () => checkLimits(lxd)),
    { name: 'network', ok: true, detail: describeReach(settings) },
    { name: 'restart', ok: true, detail: 'leases outlive a restart of the daemon, not of its machine' },
  ];
}

/** The detail of a fault, or of a success. */
type CheckResult = { ok: boolean; detail: string };

async function checked(name: string, check: () => Promise<CheckResult>): Promise<CheckFinding> {
  return { name, ...(await check().catch((error) => ({ ok: false, detail: textOf(error) }))) };
}

async function checkMembers(lxd: LxdApi): Promise<CheckResult> {
  const members = await membersOf(lxd);
  const away = members.filter(({ status }) => status !== 'Online');
  if (!away.length) return { ok: true, detail: `${members.length} members, all online` };
  const names = away.map((it) => `${it.server_name} (${it.status})`).join(', ');
  return { ok: true, detail: warning(`${names}: its leases are of unknown state until it is back`) };
}

const sellsMachines = (settings: LxdSettings) => allContents(settings).some(({ type }) => type !== 'container');

async function checkDriver(server: Server): Promise<CheckResult> {
  const { driver, driver_version: version } = server.environment;
  if (runsMachines(server)) return { ok: true, detail: `${driver} ${version}` };
  return {
    ok: false,
    detail: `this server runs none (its drivers: ${driver}). Its machine needs /dev/kvm, QEMU and the kernel module vhost_vsock; then restart it`,
  };
}

/** The keys of a restricted project that leases need, and why. */
const ALLOWED = (settings: LxdSettings): [key: string, why: string][] => [
  ['restricted.containers.lowlevel', 'raw.lxc'], // It makes the watchdog the first process.
  ...(sellsMachines(settings)
    ? ([
        ['restricted.virtual-machines.lowlevel', 'raw.qemu'],
        ['restricted.devices.proxy', 'the device of a keeper'],
      ] satisfies [string, string][])
    : []),
];

async function checkProject(lxd: LxdApi, settings: LxdSettings): Promise<CheckResult> {
  const { project } = settings;
  const configured = await orAbsent(
    lxd.ask<{ config: Record<string, string> }>('GET', `/1.0/projects/${encodeURIComponent(project)}`),
  );
  if (!configured)
    return { ok: false, detail: `there is no project ${project}, or Purser's certificate may not see it` };
  const { config } = configured;
  const refused = ALLOWED(settings).find(([key]) => config[key] !== 'allow');
  if (config.restricted !== 'true' || !refused) return { ok: true, detail: project };
  const [key, what] = refused;
  return {
    ok: false,
    detail: `${project} is restricted, and refuses ${what}: lxc project set ${project} ${key}=allow`,
  };
}

async function checkPool(lxd: LxdApi, { pool, snapshot_gib_day_usd: price }: LxdSettings): Promise<CheckResult> {
  const storage = await orAbsent(lxd.ask<{ driver: string }>('GET', `/1.0/storage-pools/${encodeURIComponent(pool)}`));
  if (!storage)
    return {
      ok: false,
      detail: `there is no storage pool ${pool}. Set pool, or make it: lxc storage create ${pool} btrfs`,
    };
  if (COPYING_DRIVERS.includes(storage.driver)) return { ok: true, detail: `disk_gb is enforced by ${storage.driver}` };
  if (price !== undefined)
    return {
      ok: false,
      detail: `no snapshot is taken on the driver ${storage.driver} of the pool ${pool}. Use btrfs, zfs, lvm or ceph, or leave snapshot_gib_day_usd out`,
    };
  return {
    ok: true,
    detail: warning(
      `disk_gb may not be enforced: the pool ${pool} is of the driver ${storage.driver}, which needs project quotas of its file system. A lease can fill it. Use btrfs, zfs or lvm`,
    ),
  };
}

async function checkImages(lxd: LxdApi, settings: LxdSettings): Promise<CheckResult> {
  const contents = allContents(settings);
  for (const { image, type } of contents) {
    const info = await orAbsent(lxd.ask<{ type: string }>('GET', imagePath(image)));
    if (!info)
      return {
        ok: false,
        detail: `${image} is not there: lxc image copy images:debian/12 local: --alias ${image}${type === 'container' ? '' : ' --vm'}`,
      };
    if (info.type !== type) return { ok: false, detail: `${image} is the image of a ${info.type}, not of a ${type}` };
  }
  return { ok: true, detail: `${contents.map(({ image }) => image).join(', ')}: there` };
}

const MACHINE = `echo "boot $(${WATCHDOG_PATH} boot)"
while read -r name kib rest; do [ "$name" != MemTotal: ] || echo "kib $kib"; done < /proc/meminfo
cpus=0; while read -r name rest; do [ "$name" != processor ] || cpus=$((cpus+1)); done < /proc/cpuinfo; echo "cpus $cpus"
bytes=0; for disk in /sys/block/[sv]d*/size; do read -r blocks < "$disk" && bytes=$((bytes+blocks*512)); done; echo "disk $bytes"`;

/**
 * Returns what a running virtual machine lacks of its wall, its size and its deadline; undefined if nothing is missing. Its kernel
 * counts what the host lent it, and can have no more.
 */
export async function findOpenMachine(
  guest: Guest,
  ref: Ref,
  { cpus, memoryGib, diskGb }: LeaseSize,
  keepers: Keepers,
): Promise<string | undefined> {
  if (!(await keepers.holds(ref))) return 'its keeper does not hold its power, so nothing would end it without Purser';
  const before = await keepers.bootSeconds(ref);
  const { stdout } = await guest.exec(ref, { command: MACHINE, timeoutSeconds: 10, streamBytesMax: 4096 });
  const said = Object.fromEntries([...stdout.toString().matchAll(/^(\w+) (\S+)$/gm)].map(([, name, it]) => [name, it]));
  const after = await keepers.bootSeconds(ref);
  // Its own kernel has booted since its host's; a container has the clock of its host.
  const inside = Number(said.boot);
  if (!(inside > 0 && before > 0 && after >= before)) return 'nobody says whether it has a kernel of its own';
  if (inside >= before && inside <= after) return 'it shares the kernel of its host, and is sold as a virtual machine';
  const has = { cpus: Number(said.cpus), memory: (Number(said.kib) * 1024) / GIB, disk: Number(said.disk) / GIB };
  if (!(has.cpus > 0 && has.cpus <= cpus)) return `it has ${has.cpus} CPUs, and ${cpus} were sold`;
  if (!(has.memory > 0 && has.memory <= memoryGib)) return `it has ${has.memory} GiB, and ${memoryGib} were sold`;
  // The disk of its agent is among them.
  if (!(has.disk > 0 && has.disk < diskGb + 1)) return `it has ${has.disk} GiB of disk, and ${diskGb} were sold`;
  return undefined;
}

/** Checks the limits: LXD itself notes which controllers its kernel lacks. */
async function checkLimits(lxd: LxdApi): Promise<CheckResult> {
  const noted = await lxd.ask<{ type: string; status: string }[]>('GET', '/1.0/warnings?recursion=1').catch(() => []);
  const missing = noted
    .filter(
      ({ type, status }) => status !== 'resolved' && /cgroup/i.test(type) && /(memory|cpu|pids) controller/i.test(type),
    )
    .map(({ type }) => type);
  if (missing.length)
    return { ok: false, detail: `${missing.join('; ')}: a lease could take all. Enable these cgroup controllers` };
  return { ok: true, detail: 'LXD misses no control group for memory, CPU and processes. The trial reads the limits' };
}

/**
 * Returns the limit or isolation that is missing inside a running lease; undefined if none is. `printed` is the output of
 * READ_LIMITS.
 */
export async function findOpen(
  guest: Guest,
  ref: Ref,
  printed: string,
  memoryGib: number,
): Promise<string | undefined> {
  const unlimited = findUnlimited(printed, memoryGib);
  if (unlimited !== undefined) return unlimited;
  const order = { command: 'cat /proc/self/uid_map', timeoutSeconds: 10, streamBytesMax: 4096 };
  const { stdout } = await guest.exec(ref, order);
  const [root, outside] = stdout.toString().trim().split(/\s+/).map(Number);
  if (root === 0 && outside !== undefined && outside > 0) return undefined;
  return 'root inside is root outside: LXD has no subordinate users. Give root some in /etc/subuid and /etc/subgid';
}
