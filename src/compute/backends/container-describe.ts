import type Docker from 'dockerode';
import type { Engine } from './container-engine.ts';
import { statusOf, textOf } from './container-engine.ts';
import { cdiName } from './container-gpus.ts';
import { DEADLINE_MOUNT, WATCHDOG } from './watchdog.ts';

const GIB = 1024 ** 3;
const CPU_PERIOD_MICROSECONDS = 100_000;

/** A container as we want it, whatever the engine: limited, unprivileged, with its watchdog as PID 1. */
export type Wanted = {
  name: string;
  image: string;
  labels: Record<string, string>;
  cpus: number;
  memoryGib: number;
  pids: number;
  network: string;
  /** The directory of its deadline file. */
  directory: string;
  devices: string[];
  /** How Docker is asked for devices; Podman knows CDI only. */
  gpuMode: 'nvidia' | 'cdi';
  diskGb: number | undefined;
};

/**
 * Makes it, without starting it. Where the storage driver cannot limit a disk the engine says so, and the container is
 * made without: `check` and `config check` tell the operator.
 */
export async function makeContainer(engine: Engine, wanted: Wanted): Promise<void> {
  const isPodman = await engine.isPodman();
  const make = (it: Wanted) =>
    isPodman
      ? engine.request('POST', '/v4.0.0/libpod/containers/create', forPodman(it))
      : engine.ask('create', (abortSignal) => engine.docker.createContainer({ ...forDocker(it), abortSignal }));
  try {
    await make(wanted);
  } catch (error) {
    if (wanted.diskGb === undefined || !cannotLimitDisk(error)) throw error;
    await make({ ...wanted, diskGb: undefined });
  }
}

/** Both engines' words for a storage driver or file system without quotas. */
export const cannotLimitDisk = (error: unknown) =>
  statusOf(error) !== undefined && /storage-opt|quota/i.test(textOf(error));

/**
 * An image may ask for all GPUs in its environment, and a default runtime would give them: "void" asks for none
 * (documentation of the NVIDIA Container Toolkit). What is leased comes by name.
 */
const NO_GPU = { NVIDIA_VISIBLE_DEVICES: 'void' };

/**
 * Whom the watchdog runs as: nobody else's number, so that no tenant can signal it, stop its helpers or look into it. Not
 * even one who is root in there: without capabilities root may signal its own processes only (kill(2), ptrace(2)).
 */
const WATCHDOG_USER = '63541:63541';

/** For `POST /containers/create` of the Docker Engine API. */
function forDocker(it: Wanted): Docker.ContainerCreateOptions {
  const memory = Math.round(it.memoryGib * GIB);
  const byName = it.devices.length > 0 && it.gpuMode === 'nvidia';
  return {
    name: it.name,
    Image: it.image,
    Hostname: 'lease',
    Entrypoint: ['/bin/sh'],
    Cmd: ['-c', WATCHDOG],
    User: WATCHDOG_USER,
    WorkingDir: '/',
    Labels: it.labels,
    ...(byName ? {} : { Env: Object.entries(NO_GPU).map(([name, value]) => `${name}=${value}`) }),
    HostConfig: {
      NanoCpus: Math.round(it.cpus * 1e9),
      Memory: memory,
      MemorySwap: memory,
      PidsLimit: it.pids,
      CapDrop: ['ALL'],
      SecurityOpt: ['no-new-privileges'],
      NetworkMode: it.network,
      Binds: [`${it.directory}:${DEADLINE_MOUNT}:ro`],
      RestartPolicy: { Name: 'no' },
      // PID 1 says nothing, but a tenant may write to its output: that would fill the host's disk.
      LogConfig: { Type: 'none', Config: {} },
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
 * For `POST /libpod/containers/create` of Podman: its Docker API takes a DeviceRequest and leaves the device out without
 * a word (podman-container-tools/podman#22645).
 */
function forPodman(it: Wanted): object {
  const memory = Math.round(it.memoryGib * GIB);
  const cpu = { period: CPU_PERIOD_MICROSECONDS, quota: Math.round(it.cpus * CPU_PERIOD_MICROSECONDS) };
  return {
    name: it.name,
    image: it.image,
    hostname: 'lease',
    entrypoint: ['/bin/sh'],
    command: ['-c', WATCHDOG],
    user: WATCHDOG_USER,
    work_dir: '/',
    labels: it.labels,
    env: NO_GPU,
    resource_limits: { cpu, memory: { limit: memory, swap: memory }, pids: { limit: it.pids } },
    cap_drop: ['ALL'],
    no_new_privileges: true,
    ...(it.network === 'none'
      ? { netns: { nsmode: 'none' } }
      : { netns: { nsmode: 'bridge' }, networks: { [it.network]: {} } }),
    mounts: [{ type: 'bind', source: it.directory, destination: DEADLINE_MOUNT, options: ['rbind', 'ro'] }],
    restart_policy: 'no',
    log_configuration: { driver: 'none' },
    // A volume of the image would lie beside the disk limit.
    image_volume_mode: 'ignore',
    ...(it.diskGb === undefined ? {} : { storage_opts: { size: `${it.diskGb}G` } }),
    devices: it.devices.map((device) => ({ path: cdiName(device) })),
  };
}
