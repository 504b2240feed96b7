import type Docker from 'dockerode';
import { GIB } from '../../kit/claim.ts';
import { cdiName } from '../../kit/gpus.ts';
import { WATCHDOG_PATH } from '../../kit/watchdog.ts';
import { WATCHDOG_USER } from '../../kit/watchdog-user.ts';
import type { Engine } from './engine.ts';
import { statusOf, textOf } from './engine.ts';
import type { OfferContents } from './settings.ts';
import { WATCHDOG_DIRECTORY } from './watchdog.ts';

export const CPU_PERIOD_MICROSECONDS = 100_000;

/** A container as Purser orders it, for either engine: limited, unprivileged, with its watchdog as PID 1. */
export type ContainerSpec = OfferContents & {
  name: string;
  labels: Record<string, string>;
  cpus: number;
  memoryGib: number;
  pids: number;
  network: string;
  /** Unix seconds. */
  deadline: number;
  devices: string[];
  /** The way in which Docker is asked for devices; Podman knows CDI only. */
  gpuMode: 'nvidia' | 'cdi';
  diskGb: number | undefined;
  /** True if the engine keeps the last output of its first process. */
  keepsLog: boolean;
};

/** The size of the log, enough for the last lines of a trial. A lease keeps none: its tenant may write to the output of process 1. */
const LOG_BYTES = 64 * 1024;

/**
 * Creates a container without starting it. Where the engine's storage driver cannot limit a disk, the container has no disk limit;
 * `check` and `config check` report that.
 */
export async function makeContainer(engine: Engine, wanted: ContainerSpec): Promise<void> {
  const isPodman = await engine.isPodman();
  const volumes = isPodman ? [] : await volumesOf(engine, wanted.image);
  const make = (it: ContainerSpec) =>
    isPodman
      ? engine.request('POST', '/v4.0.0/libpod/containers/create', forPodman(it))
      : engine.ask('create', (abortSignal) =>
          engine.docker.createContainer({ ...forDocker(it, volumes), abortSignal }),
        );
  if (withoutQuotas.has(engine)) return void (await make({ ...wanted, diskGb: undefined }));
  try {
    await make(wanted);
  } catch (error) {
    if (!cannotLimitDisk(error)) throw error;
    withoutQuotas.add(engine);
    await make({ ...wanted, diskGb: undefined });
  }
}

/** Returns the directories that an image declares as volumes. */
async function volumesOf({ ask, docker }: Engine, image: string): Promise<string[]> {
  const { Config } = await ask('inspect', () => docker.getImage(image).inspect());
  return Object.keys(Config?.Volumes ?? {});
}

/** Engines that have reported this; they are not asked again. */
const withoutQuotas = new WeakSet<Engine>();

/** Both engines' error messages for a storage driver or file system without quotas. */
export const cannotLimitDisk = (error: unknown) =>
  statusOf(error) !== undefined && /storage-opt|quota/i.test(textOf(error));

/** Describes why Podman makes no container with a runtime. */
export const ONE_RUNTIME =
  'Podman runs all its containers under one runtime, which its containers.conf names: leave `runtime` out';

/** Docker's error messages for a runtime that its configuration does not name, of several versions. */
export const lacksRuntime = (error: unknown) =>
  statusOf(error) !== undefined && /unknown (or invalid )?runtime/i.test(textOf(error));

/**
 * An image may ask for all GPUs in its environment, and a default runtime would give them: "void" asks for none (documentation of
 * the NVIDIA Container Toolkit). Leased devices are requested by name.
 */
const NO_GPU = { NVIDIA_VISIBLE_DEVICES: 'void' };

/** An eighth of the default CPU weight (1024): under load Purser comes before the leases. */
const CPU_SHARES = 128;
/** When memory runs out, the kernel kills leased processes before Purser (proc(5), oom_score_adj). */
const OOM_SCORE = 500;

const USER = `${WATCHDOG_USER}:${WATCHDOG_USER}`;

/**
 * The watchdog's directory is a mount, which root without capabilities can neither enter, rename nor cover: only its owner may
 * change anything below it. It has room for two files on a kernel with pages of 64 KiB.
 */
const PRIVATE_MOUNT = {
  [WATCHDOG_DIRECTORY]: `rw,exec,nosuid,nodev,size=256k,mode=0700,uid=${WATCHDOG_USER},gid=${WATCHDOG_USER}`,
};

/** Keeps a directory in memory: as a volume it would lie on the engine's disk, where nothing measures it. */
const inMemory = (directories: readonly string[], bytes: number) =>
  Object.fromEntries(directories.map((it) => [it, `rw,exec,nosuid,nodev,mode=1777,size=${bytes}`]));

/** Builds the options for `POST /containers/create` of the Docker Engine API. */
function forDocker(it: ContainerSpec, volumes: readonly string[]): Docker.ContainerCreateOptions {
  const memory = Math.round(it.memoryGib * GIB);
  const byName = it.devices.length > 0 && it.gpuMode === 'nvidia';
  return {
    name: it.name,
    Image: it.image,
    Hostname: 'lease',
    Entrypoint: [WATCHDOG_PATH],
    Cmd: [String(it.deadline), ...(it.runtime === undefined ? [] : [WATCHDOG_DIRECTORY])],
    User: USER,
    WorkingDir: '/',
    Labels: it.labels,
    Env: Object.entries({ ...it.env, ...(byName ? {} : NO_GPU) }).map(([name, value]) => `${name}=${value}`),
    HostConfig: {
      Init: false, // Whatever the engine's default is: the watchdog is process 1.
      CpuShares: CPU_SHARES,
      OomScoreAdj: OOM_SCORE,
      NanoCpus: Math.round(it.cpus * 1e9),
      Memory: memory,
      MemorySwap: memory,
      PidsLimit: it.pids,
      ...(it.shmGib === undefined ? {} : { ShmSize: Math.round(it.shmGib * GIB) }),
      CapDrop: ['ALL'],
      SecurityOpt: ['no-new-privileges'],
      NetworkMode: it.network,
      ...(it.runtime === undefined ? {} : { Runtime: it.runtime }),
      Tmpfs: { ...inMemory(volumes, memory), ...(it.runtime === undefined ? {} : PRIVATE_MOUNT) },
      RestartPolicy: { Name: 'no' },
      LogConfig: it.keepsLog
        ? { Type: 'json-file', Config: { 'max-size': String(LOG_BYTES), 'max-file': '1' } }
        : { Type: 'none', Config: {} },
      ...(it.diskGb === undefined ? {} : { StorageOpt: { size: `${it.diskGb}G` } }),
      ...(it.devices.length
        ? {
            DeviceRequests: [
              byName
                ? { Driver: 'nvidia', DeviceIDs: it.devices, Capabilities: [['gpu']] }
                : { Driver: 'cdi', DeviceIDs: it.devices.map(cdiName) },
            ],
          }
        : {}),
    },
  };
}

/**
 * Builds the body for `POST /libpod/containers/create` of Podman: its Docker API takes a DeviceRequest and silently leaves the
 * device out (podman-container-tools/podman#22645). Of a runtime neither of its APIs takes notice (4.3.1), so none is asked for.
 */
function forPodman(it: ContainerSpec): object {
  const memory = Math.round(it.memoryGib * GIB);
  const quota = Math.round(it.cpus * CPU_PERIOD_MICROSECONDS);
  const cpu = { period: CPU_PERIOD_MICROSECONDS, quota, shares: CPU_SHARES };
  return {
    name: it.name,
    image: it.image,
    hostname: 'lease',
    entrypoint: [WATCHDOG_PATH],
    command: [String(it.deadline)],
    init: false,
    oom_score_adj: OOM_SCORE,
    user: USER,
    work_dir: '/',
    labels: it.labels,
    env: { ...it.env, ...NO_GPU },
    resource_limits: { cpu, memory: { limit: memory, swap: memory }, pids: { limit: it.pids } },
    ...(it.shmGib === undefined ? {} : { shm_size: Math.round(it.shmGib * GIB) }),
    cap_drop: ['ALL'],
    no_new_privileges: true,
    ...(it.network === 'none'
      ? { netns: { nsmode: 'none' } }
      : { netns: { nsmode: 'bridge' }, networks: { [it.network]: {} } }),
    restart_policy: 'no',
    log_configuration: it.keepsLog ? { driver: 'k8s-file', size: LOG_BYTES } : { driver: 'none' },
    // The image's volumes are then plain directories of its disk.
    image_volume_mode: 'ignore',
    ...(it.diskGb === undefined ? {} : { storage_opts: { size: `${it.diskGb}G` } }),
    devices: it.devices.map((device) => ({ path: cdiName(device) })),
  };
}
