import { randomBytes } from 'node:crypto';
import { statSync } from 'node:fs';
import type { CheckFinding } from '../../backend.ts';
import { warning } from '../../finding.ts';
import { GIB } from '../../kit/claim.ts';
import { describeReach } from '../../kit/egress.ts';
import { gpuDevices } from '../../kit/gpus.ts';
import { cannotLimitDisk, ONE_RUNTIME } from './describe.ts';
import { type Engine, type EngineVersion, podmanOf, statusOf, textOf } from './engine.ts';
import { lacksImage } from './image.ts';
import { remedyFor } from './remedies.ts';
import { type ContainerSettings, imagesOf, runtimesOf } from './settings.ts';

/** Podman asks the package manager for its own version, which takes more than five seconds on a busy machine. */
const LOOK_MILLISECONDS = 20_000;

/** The parts of both engines' answer to `GET /info` that are used. */
type Info = {
  Driver: string;
  DriverStatus?: [string, string][] | null;
  DockerRootDir?: string;
  MemoryLimit?: boolean;
  SwapLimit?: boolean;
  CpuCfsQuota?: boolean;
  PidsLimit?: boolean;
  LiveRestoreEnabled?: boolean;
  SecurityOptions?: string[] | null;
  /** The runtimes by name; missing where a proxy before the engine leaves them out. */
  Runtimes?: Record<string, unknown> | null;
  /** Podman's own word for it. */
  Rootless?: boolean;
};
type ImageConfig = { Config?: { Volumes?: Record<string, unknown> | null } | null };

/**
 * Checks what a lease depends on. A detail may also name a limitation that is no fault, such as a missing disk limit.
 */
export async function checkContainers(
  engine: Engine,
  settings: ContainerSettings,
  books: string | undefined,
): Promise<CheckFinding[]> {
  const ask = <T>(path: string) => engine.request<T>('GET', path, undefined, LOOK_MILLISECONDS);
  let version: EngineVersion;
  let info: Info;
  try {
    version = await ask('/version');
    info = await ask('/info');
  } catch (error) {
    const text = textOf(error);
    return [{ name: 'engine', ok: false, detail: `${settings.socket} cannot be asked: ${text}. ${remedyFor(text)}` }];
  }
  const podman = podmanOf(version);
  const name = podman ? `Podman ${podman.Version}` : `Docker Engine ${version.Version}`;
  return [
    { name: 'engine', ok: true, detail: `${name} on ${settings.socket}` },
    ...(await checkImages(ask, settings, podman !== undefined)),
    ...checkRuntimes(info, settings, podman !== undefined),
    await checkNetwork(ask, settings),
    checkLimits(info),
    checkRestart(info, podman !== undefined),
    checkUsers(info),
    await checkSharedDisk(engine, settings, info, books),
    ...('offers' in settings ? [] : checkGpus(settings)),
  ];
}

/** Checks whether a lease's disk is limited, and whether it is the one that the database is on. */
async function checkSharedDisk(
  engine: Engine,
  settings: ContainerSettings,
  { DockerRootDir: root }: Info,
  books: string | undefined,
): Promise<CheckFinding> {
  const { limited, detail } = await checkDisk(engine, imagesOf(settings)[0] as string);
  const full = await findFullDisk(engine, settings);
  if (full !== undefined) return { name: 'disk', ok: true, detail: warning(`${detail}. ${full}`) };
  const isShared = root !== undefined && books !== undefined && isOnSameDisk(engine.socket, root, books);
  if (limited === 'all' || !isShared)
    return { name: 'disk', ok: true, detail: limited === 'some' ? warning(detail) : detail };
  const advice = `Leases (${root}) and Purser's database (${books}) are on one file system: a lease can fill it before it is measured. Give the engine a disk of its own`;
  return { name: 'disk', ok: true, detail: warning(`${detail}. ${advice}`) };
}

/** Returns a sentence where a lease on offer may write more than is free, and is refused. */
async function findFullDisk(engine: Engine, settings: ContainerSettings): Promise<string | undefined> {
  const free = await engine.diskFree().catch(() => undefined);
  const most =
    'offers' in settings ? Math.max(...settings.offers.map((it) => it.max_disk_gb)) : settings.limits.disk_gb;
  if (free === undefined || free >= most * GIB) return undefined;
  return `A lease may write ${most} GB, and ${Math.floor(free / GIB)} are free: one that does not fit is refused. Make room, or lower what leases may write`;
}

/** Returns whether both are on one file system. False where the engine's directory cannot be seen from here. */
function isOnSameDisk(socket: string, root: string, books: string): boolean {
  if (!socket.startsWith('unix:')) return false;
  const device = (path: string) => statSync(path, { throwIfNoEntry: false })?.dev;
  try {
    return device(root) !== undefined && device(root) === device(books);
  } catch {
    return false; // It may be unreadable.
  }
}

type EngineCall = <T>(path: string) => Promise<T>;

/** Returns one finding for each image. That of the settings has no name, because it exists without being named in an offer. */
function checkImages(ask: EngineCall, settings: ContainerSettings, isPodman: boolean): Promise<CheckFinding[]> {
  return Promise.all(
    imagesOf(settings).map(async (image) => {
      const finding = await checkImage(ask, image, settings, isPodman);
      return image === settings.image ? finding : { ...finding, name: `image ${image}` };
    }),
  );
}

async function checkImage(
  ask: EngineCall,
  image: string,
  settings: ContainerSettings,
  isPodman: boolean,
): Promise<CheckFinding> {
  const { pull } = settings;
  try {
    const { Config } = await ask<ImageConfig>(`/images/${image}/json`);
    const volumes = Object.keys(Config?.Volumes ?? {});
    const kept = !isPodman && volumes.length > 0 ? `; its volumes ${volumes.join(', ')} are kept in memory` : '';
    return { name: 'image', ok: true, detail: `${image} is there${kept}` };
  } catch (error) {
    if (statusOf(error) !== 404) return { name: 'image', ok: false, detail: textOf(error) };
    if (pull === 'missing')
      return { name: 'image', ok: true, detail: `${image} is not there yet: the first lease pulls it` };
    return { name: 'image', ok: false, detail: `${image} is not there. Pull it, or set pull: missing` };
  }
}

/** A program that containerd starts by its name, which no list of the engine has. */
const SHIM = /^io\.containerd\./;

/** Returns one finding for each runtime that the settings name. */
function checkRuntimes({ Runtimes }: Info, settings: ContainerSettings, isPodman: boolean): CheckFinding[] {
  return runtimesOf(settings).flatMap((runtime): CheckFinding[] => {
    if (runtime === undefined) return [];
    const name = `runtime ${runtime}`;
    if (isPodman) return [{ name, ok: false, detail: ONE_RUNTIME }];
    if (SHIM.test(runtime) || (Runtimes && Object.hasOwn(Runtimes, runtime)))
      return [{ name, ok: true, detail: 'the engine knows it' }];
    const known = Object.keys(Runtimes ?? {}).join(', ') || 'none';
    const detail = `the engine does not know it (it knows ${known}). Add it to the runtimes in its daemon.json`;
    return [{ name, ok: false, detail }];
  });
}

async function checkNetwork(ask: EngineCall, settings: ContainerSettings): Promise<CheckFinding> {
  const { network } = settings;
  if (network === 'none') return { name: 'network', ok: true, detail: describeReach(settings) };
  try {
    const { Driver } = await ask<{ Driver: string }>(`/networks/${network}`);
    if (Driver !== 'bridge')
      return {
        name: 'network',
        ok: false,
        detail: `${network} is a ${Driver} network, in which leases of different wallets reach each other. Name a bridge: each wallet then gets one like it`,
      };
    return { name: 'network', ok: true, detail: `${network} is there; each wallet gets a network like it` };
  } catch (error) {
    const detail =
      statusOf(error) === 404 ? `${network} is not there. Make it: network create ${network}` : textOf(error);
    return { name: 'network', ok: false, detail };
  }
}

function checkLimits(info: Info): CheckFinding {
  const missing = Object.entries({ memory: info.MemoryLimit, CPU: info.CpuCfsQuota, processes: info.PidsLimit })
    .filter(([, isThere]) => !isThere)
    .map(([what]) => what);
  if (missing.length)
    return {
      name: 'limits',
      ok: false,
      detail: `the engine cannot limit ${missing.join(' and ')}: a lease could take all. Enable these cgroup controllers`,
    };
  const swap = info.SwapLimit ? '' : '; swap is not limited';
  const detail = `the engine says that it limits memory, CPU and processes${swap}. The trial reads whether it does`;
  return { name: 'limits', ok: true, detail };
}

function checkRestart({ LiveRestoreEnabled }: Info, isPodman: boolean): CheckFinding {
  const detail = isPodman
    ? 'leases outlive a restart of the engine'
    : LiveRestoreEnabled
      ? 'live-restore is on: leases outlive a restart of the engine'
      : 'live-restore is off: restarting the engine ends every lease. Set "live-restore": true in its daemon.json';
  return { name: 'restart', ok: true, detail };
}

/** Returns whether root inside is an unprivileged user outside. */
const hasMappedUsers = ({ SecurityOptions, Rootless }: Info): boolean =>
  Rootless || (SecurityOptions?.some((it) => /^name=(userns|rootless)/.test(it)) ?? false);

function checkUsers(info: Info): CheckFinding {
  const detail = hasMappedUsers(info)
    ? 'root inside is nobody outside'
    : 'not mapped: root inside is root outside, without capabilities. Think of userns-remap';
  return { name: 'users', ok: true, detail };
}

/**
 * The part of a lease's disk that is limited to `disk_gb`. It is `some` where a lease can leave its limit by an `ioctl`, as no
 * engine's own seccomp profile distinguishes these requests: `where` then names the limited part.
 */
type DiskLimit = { limited: 'all' | 'nothing'; detail: string } | { limited: 'some'; where: string; detail: string };

/** Checks whether `disk_gb` is enforced, on a container that is never started and is removed at once. Never throws. */
export async function checkDisk(engine: Engine, image: string): Promise<DiskLimit> {
  const no = (detail: string): DiskLimit => ({ limited: 'nothing', detail });
  try {
    const info = await engine.request<Info>('GET', '/info', undefined, LOOK_MILLISECONDS);
    const status = new Map(info.DriverStatus ?? []);
    // Docker accepts the limit and silently ignores it (moby/moby#51222).
    if (/snapshotter/.test(status.get('driver-type') ?? ''))
      return no(`disk_gb is not enforced: the containerd image store (${info.Driver}) has no limits`);
    const driver = [info.Driver, status.get('Backing Filesystem')].filter(Boolean).join(' on ');
    const error = await tryDisk(engine, image);
    if (error === undefined) return limitBy(driver, info);
    if (lacksImage(error)) return no('whether disk_gb is enforced can be told when the image is there');
    if (!cannotLimitDisk(error)) throw error;
    return no(
      `disk_gb is not enforced: ${driver} has no limits. A lease that wrote more is ended within about two minutes. overlay2 on xfs with pquota and userns-remap has limits, zfs too`,
    );
  } catch (error) {
    return no(`whether disk_gb is enforced cannot be told: ${textOf(error)}`);
  }
}

/** Returns what a storage driver limits that accepts a limit. */
function limitBy(driver: string, info: Info): DiskLimit {
  const some = (where: string, except: string, remedy: string): DiskLimit => ({
    limited: 'some',
    where,
    detail: `disk_gb is enforced by ${driver}, except ${except}: it is ended when its files there are measured, and deleted ones that are still open are not. ${remedy}`,
  });
  // The owner of a directory may make a subvolume there, which has no limit.
  if (info.Driver === 'btrfs')
    return some(
      'outside of subvolumes',
      'in subvolumes, which a lease can make',
      'Nor can the engine remove a subvolume that was made read-only, or too long a path. Use overlay2',
    );
  // Its limits are project quotas. The owner of a file may give it another project, unless its users are mapped (Linux,
  // fileattr_set_prepare in fs/file_attr.c).
  if (info.Driver?.startsWith('overlay') && !hasMappedUsers(info))
    return some(
      'of its project',
      'outside of its project, whose files a lease can give another one',
      'Use userns-remap',
    );
  return { limited: 'all', detail: `disk_gb is enforced by ${driver}` };
}

/** Returns the engine's error for a container with a disk limit, if any. */
async function tryDisk({ ask, docker }: Engine, image: string): Promise<unknown> {
  const name = `purser-disk-${randomBytes(8).toString('hex')}`;
  const limited = { name, Image: image, Cmd: ['/bin/sh'], HostConfig: { StorageOpt: { size: '1G' } } };
  let fault: unknown;
  try {
    await ask('create', (abortSignal) => docker.createContainer({ ...limited, abortSignal }));
  } catch (error) {
    fault = error;
  }
  try {
    // After a failure too: an engine that took too long may have made it.
    await ask('remove', (abortSignal) => docker.getContainer(name).remove({ force: true, v: true, abortSignal }));
  } catch (error) {
    if (statusOf(error) !== 404) fault ??= error;
  }
  return fault;
}

function checkGpus(settings: Exclude<ContainerSettings, { offers: unknown }>): CheckFinding[] {
  if (settings.limits.gpus === 0) return [];
  const types = Object.entries(gpuDevices(settings)).map(([type, devices]) => `${type}: ${devices.join(', ')}`);
  const detail = `${types.join('; ')}. Not tried here: they are counted inside every lease before it is sold`;
  return [
    {
      name: 'gpus',
      ok: types.length > 0,
      detail: types.length ? detail : 'limits.gpus is above 0, and no GPU has a price',
    },
  ];
}
