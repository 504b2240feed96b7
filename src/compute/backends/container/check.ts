import { randomBytes } from 'node:crypto';
import type { Finding } from '../../backend.ts';
import { cannotLimitDisk } from './describe.ts';
import { type Engine, podmanOf, statusOf, textOf, type Version } from './engine.ts';
import { gpuDevices } from './gpus.ts';
import { lacksImage } from './image.ts';
import type { ContainerSettings } from './settings.ts';

const LOOK_MILLISECONDS = 5_000;

/** The parts of both engines' answer to `GET /info` that are used. */
type Info = {
  Driver: string;
  DriverStatus?: [string, string][] | null;
  MemoryLimit?: boolean;
  SwapLimit?: boolean;
  CpuCfsQuota?: boolean;
  PidsLimit?: boolean;
  LiveRestoreEnabled?: boolean;
  SecurityOptions?: string[] | null;
  SystemTime?: string;
};
type ImageConfig = { Config?: { Volumes?: Record<string, unknown> | null } | null };

/**
 * Checks what a lease depends on. A detail may also name a limitation that is no fault, such as a missing disk limit.
 */
export async function checkContainers(engine: Engine, settings: ContainerSettings): Promise<Finding[]> {
  const ask = <T>(path: string) => engine.request<T>('GET', path, undefined, LOOK_MILLISECONDS);
  let version: Version;
  let info: Info;
  try {
    version = await ask('/version');
    info = await ask('/info');
  } catch (error) {
    const detail = `${settings.socket} cannot be asked: ${textOf(error)}. Is the engine running, and may this user open its socket?`;
    return [{ name: 'engine', ok: false, detail }];
  }
  const podman = podmanOf(version);
  const name = podman ? `Podman ${podman.Version}` : `Docker Engine ${version.Version}`;
  return [
    { name: 'engine', ok: true, detail: `${name} on ${settings.socket}` },
    await checkImage(ask, settings, podman !== undefined),
    await checkNetwork(ask, settings.network),
    checkLimits(info),
    checkRestart(info, podman !== undefined),
    checkUsers(info),
    ...('offers' in settings
      ? [{ name: 'disk', ok: true, detail: (await checkDisk(engine, settings.image)).detail }]
      : checkGpus(settings)),
  ];
}

type Ask = <T>(path: string) => Promise<T>;

async function checkImage(ask: Ask, settings: ContainerSettings, isPodman: boolean): Promise<Finding> {
  const { image, pull } = settings;
  try {
    const { Config } = await ask<ImageConfig>(`/images/${image}/json`);
    const volumes = Object.keys(Config?.Volumes ?? {});
    const isBeside = 'offers' in settings && !isPodman && volumes.length > 0;
    const beside = isBeside ? `; its volumes ${volumes.join(', ')} lie beside any disk limit` : '';
    return { name: 'image', ok: true, detail: `${image} is there${beside}` };
  } catch (error) {
    if (statusOf(error) !== 404) return { name: 'image', ok: false, detail: textOf(error) };
    if (pull === 'missing')
      return { name: 'image', ok: true, detail: `${image} is not there yet: the first lease pulls it` };
    return { name: 'image', ok: false, detail: `${image} is not there. Pull it, or set pull: missing` };
  }
}

async function checkNetwork(ask: Ask, network: string): Promise<Finding> {
  if (network === 'none') return { name: 'network', ok: true, detail: 'none: leases reach nobody' };
  try {
    await ask(`/networks/${network}`);
    return { name: 'network', ok: true, detail: `${network} is there` };
  } catch (error) {
    const detail =
      statusOf(error) === 404 ? `${network} is not there. Make it: network create ${network}` : textOf(error);
    return { name: 'network', ok: false, detail };
  }
}

function checkLimits(info: Info): Finding {
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
  return { name: 'limits', ok: true, detail: `memory, CPU and processes are limited${swap}` };
}

function checkRestart({ LiveRestoreEnabled }: Info, isPodman: boolean): Finding {
  const detail = isPodman
    ? 'leases outlive a restart of the engine'
    : LiveRestoreEnabled
      ? 'live-restore is on: leases outlive a restart of the engine'
      : 'live-restore is off: restarting the engine ends every lease. Set "live-restore": true in its daemon.json';
  return { name: 'restart', ok: true, detail };
}

function checkUsers({ SecurityOptions }: Info): Finding {
  const isMapped = SecurityOptions?.some((it) => /^name=(userns|rootless)/.test(it));
  const detail = isMapped
    ? 'root inside is nobody outside'
    : 'not mapped: root inside is root outside, without capabilities. Think of userns-remap';
  return { name: 'users', ok: true, detail };
}

/** Tries whether `disk_gb` is enforced, on a container that is never started and removed at once. Never throws. */
export async function checkDisk(engine: Engine, image: string): Promise<{ isEnforced: boolean; detail: string }> {
  const no = (detail: string) => ({ isEnforced: false, detail });
  try {
    const info = await engine.request<Info>('GET', '/info', undefined, LOOK_MILLISECONDS);
    const status = new Map(info.DriverStatus ?? []);
    // Docker accepts the limit and silently ignores it (moby/moby#51222).
    if (/snapshotter/.test(status.get('driver-type') ?? ''))
      return no(`disk_gb is not enforced: the containerd image store (${info.Driver}) has no limits`);
    const driver = [info.Driver, status.get('Backing Filesystem')].filter(Boolean).join(' on ');
    const error = await tryDisk(engine, image);
    if (error === undefined) return { isEnforced: true, detail: `disk_gb is enforced by ${driver}` };
    if (lacksImage(error)) return no('whether disk_gb is enforced can be told when the image is there');
    if (!cannotLimitDisk(error)) throw error;
    return no(`disk_gb is not enforced: ${driver} has no limits. overlay2 on xfs with pquota has, btrfs and zfs`);
  } catch (error) {
    return no(`whether disk_gb is enforced cannot be told: ${textOf(error)}`);
  }
}

/** The engine's error for a container with a disk limit, if any. */
async function tryDisk({ ask, docker }: Engine, image: string): Promise<unknown> {
  const name = `purser-disk-${randomBytes(8).toString('hex')}`;
  const limited = { name, Image: image, Cmd: ['/bin/sh'], HostConfig: { StorageOpt: { size: '1G' } } };
  try {
    await ask('create', (abortSignal) => docker.createContainer({ ...limited, abortSignal }), LOOK_MILLISECONDS);
  } catch (error) {
    return error;
  }
  await ask('remove', (abortSignal) => docker.getContainer(name).remove({ abortSignal }), LOOK_MILLISECONDS);
  return undefined;
}

function checkGpus(settings: Exclude<ContainerSettings, { offers: unknown }>): Finding[] {
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
