import type { CheckFinding, Guest, Ref } from '../../backend.ts';
import { warning } from '../../finding.ts';
import { describeReach } from '../../kit/egress.ts';
import { findUnlimited } from '../../kit/limits.ts';
import { type LxdApi, orAbsent, textOf } from './api.ts';
import { imagePath, imagesOf } from './describe.ts';
import { membersOf, type Server } from './host.ts';
import type { LxdSettings } from './settings.ts';

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

/** Drivers of storage pools that hold a root disk to its size. */
const LIMITING_DRIVERS = ['btrfs', 'zfs', 'lvm', 'ceph'];

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
    await checked('project', () => checkProject(lxd, settings.project)),
    await checked('disk', () => checkPool(lxd, settings.pool)),
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

/** Checks the project: a restricted one refuses `raw.lxc`, which makes the watchdog the first process. */
async function checkProject(lxd: LxdApi, project: string): Promise<CheckResult> {
  const configured = await orAbsent(
    lxd.ask<{ config: Record<string, string> }>('GET', `/1.0/projects/${encodeURIComponent(project)}`),
  );
  if (!configured)
    return { ok: false, detail: `there is no project ${project}, or Purser's certificate may not see it` };
  const { restricted, 'restricted.containers.lowlevel': lowlevel } = configured.config;
  if (restricted !== 'true' || lowlevel === 'allow') return { ok: true, detail: project };
  return {
    ok: false,
    detail: `${project} is restricted, and refuses raw.lxc: lxc project set ${project} restricted.containers.lowlevel=allow`,
  };
}

async function checkPool(lxd: LxdApi, pool: string): Promise<CheckResult> {
  const storage = await orAbsent(lxd.ask<{ driver: string }>('GET', `/1.0/storage-pools/${encodeURIComponent(pool)}`));
  if (!storage)
    return {
      ok: false,
      detail: `there is no storage pool ${pool}. Set pool, or make it: lxc storage create ${pool} btrfs`,
    };
  if (LIMITING_DRIVERS.includes(storage.driver))
    return { ok: true, detail: `disk_gb is enforced by ${storage.driver}` };
  return {
    ok: true,
    detail: warning(
      `disk_gb may not be enforced: the pool ${pool} is of the driver ${storage.driver}, which needs project quotas of its file system. A lease can fill it. Use btrfs, zfs or lvm`,
    ),
  };
}

async function checkImages(lxd: LxdApi, settings: LxdSettings): Promise<CheckResult> {
  for (const image of imagesOf(settings)) {
    const info = await orAbsent(lxd.ask<{ type: string }>('GET', imagePath(image)));
    if (!info)
      return { ok: false, detail: `${image} is not there: lxc image copy images:debian/12 local: --alias ${image}` };
    if (info.type !== 'container') return { ok: false, detail: `${image} is the image of a ${info.type}` };
  }
  return { ok: true, detail: `${imagesOf(settings).join(', ')}: there` };
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
