import * as v from 'valibot';
import type { Backend, Surroundings } from '../../backend.ts';
import { above0, hourly, limits, maxSeconds, whole } from '../fields.ts';

/** Containers on this machine: the settings, the notes for the operator, and how the backend is opened. */

const shared = {
  backend: v.literal('container'),
  socket: v.optional(
    v.pipe(v.string(), v.regex(/^unix:\/\/\//, 'must be unix:///path of the engine’s socket')),
    'unix:///var/run/docker.sock',
  ),
  image: v.pipe(v.string(), v.minLength(1)),
  pull: v.optional(v.picklist(['never', 'missing']), 'never'),
  network: v.optional(
    v.pipe(
      v.string(),
      v.regex(/^(?!host$)[A-Za-z0-9][\w.-]*$/, 'must be none, or the name of a network that you made on the engine'),
    ),
    'none',
  ),
  pids: v.optional(whole(16, 1_000_000), 512),
  provision_seconds: v.optional(whole(1, 86_400), 60),
};

/** A device as the GPU's vendor names it: an index, a UUID, or a part of a divided GPU. */
const device = v.pipe(
  v.union([v.string(), v.number()], 'must be an index or a UUID'),
  v.transform(String),
  v.regex(/^[A-Za-z0-9][\w:.-]*$/, 'must be an index or a UUID, as nvidia-smi -L shows them'),
);

/** The devices of each GPU type; each is leased to one at a time. */
const gpuDevices = v.pipe(
  v.record(v.string(), v.pipe(v.array(device), v.minLength(1, 'has no device'))),
  v.check((types) => {
    const all = Object.values(types).flat();
    return new Set(all).size === all.length;
  }, 'has a device twice'),
);

const Sized = v.pipe(
  v.strictObject({
    ...shared,
    prices: v.strictObject({
      cpu_hourly_usd: hourly,
      memory_gib_hourly_usd: hourly,
      gpu_hourly_usd: v.optional(v.record(v.string(), hourly), {}),
    }),
    /** Of one lease. */
    limits: v.strictObject({
      cpus: above0,
      memory_gib: above0,
      gpus: v.optional(whole(0, 64), 0),
      max_seconds: maxSeconds,
    }),
    /** Of all leases together. */
    capacity: v.optional(v.strictObject({ cpus: above0, memory_gib: above0 })),
    gpu_devices: v.optional(gpuDevices),
    /** How Docker is asked for GPUs; Podman is always asked by their CDI names. */
    gpu_mode: v.optional(v.picklist(['nvidia', 'cdi']), 'nvidia'),
  }),
  v.forward(
    v.check(
      ({ limits, prices, gpu_devices }) =>
        limits.gpus === 0 || gpu_devices !== undefined || Object.keys(prices.gpu_hourly_usd).length <= 1,
      'several GPU types are priced: say in gpu_devices which devices are of which type',
    ),
    ['prices'],
  ),
  v.forward(
    v.check(
      ({ limits, gpu_devices }) => gpu_devices === undefined || limits.gpus > 0,
      'limits.gpus is 0: nobody can lease these',
    ),
    ['gpu_devices'],
  ),
  v.forward(
    v.check(({ prices, gpu_devices }) => {
      const types = Object.keys(prices.gpu_hourly_usd);
      return gpu_devices === undefined || Object.keys(gpu_devices).sort().join() === types.sort().join();
    }, 'does not name the same GPU types as prices.gpu_hourly_usd'),
    ['gpu_devices'],
  ),
  v.forward(
    v.check(
      ({ limits, capacity }) =>
        capacity === undefined || (limits.cpus <= capacity.cpus && limits.memory_gib <= capacity.memory_gib),
      'one lease may be larger than this: lower its limits',
    ),
    ['capacity'],
  ),
);

const Offers = v.strictObject({
  ...shared,
  limits,
  offers: v.pipe(
    v.array(
      v.strictObject({
        id: v.pipe(v.string(), v.minLength(1), v.maxLength(100)),
        cpus: above0,
        memory_gib: above0,
        max_disk_gb: whole(1, 1_000_000),
        price_hourly_usd: hourly,
        /** How many of it may be leased at once. */
        count: v.optional(whole(1, 10_000), 1),
      }),
    ),
    v.minLength(1),
    v.check((offers) => new Set(offers.map(({ id }) => id)).size === offers.length, 'two offers have the same id'),
  ),
});

export const slots = { provider_one: Sized, provider_three: Offers };
export type SizedSettings = v.InferOutput<typeof Sized>;
export type OffersSettings = v.InferOutput<typeof Offers>;
export type ContainerSettings = SizedSettings | OffersSettings;

export function notes(it: ContainerSettings): string[] {
  return [
    ...(it.network === 'none'
      ? []
      : [`leases reach whatever the network ${it.network} reaches; Purser filters nothing`]),
    ...('prices' in it ? notesOnGpus(it) : []),
    'containers share the kernel of their host, which is no wall against a hostile tenant',
  ];
}

function notesOnGpus({ limits, prices }: SizedSettings): string[] {
  const priced = Object.keys(prices.gpu_hourly_usd).length;
  if (limits.gpus > 0 && priced === 0) return ['limits.gpus has no use: prices.gpu_hourly_usd names no GPU'];
  if (limits.gpus === 0 && priced > 0) return ['no GPU is on offer: limits.gpus is 0'];
  return [];
}

export async function open(settings: ContainerSettings, { prefix }: Surroundings): Promise<Backend> {
  const { openContainerBackend } = await import('./container.ts');
  return openContainerBackend(settings, { prefix });
}
