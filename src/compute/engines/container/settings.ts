import * as v from 'valibot';
import type { Backend, Surroundings } from '../../backend.ts';
import { checkOneWayOut, egress, egressVariables } from '../../kit/egress.ts';
import {
  above0,
  capacity,
  checkCapacity,
  hourly,
  limits,
  offerCount,
  offersOf,
  sized,
  whole,
} from '../../kit/fields.ts';
import { checkNoNetwork, warmCount, warmSizes } from '../../kit/warm.ts';
import { checkEngineAddress, engineAddress, notesOnAddress } from './address.ts';

/** Containers of an engine, on this machine or another: the settings, the notes for the operator, and how the backend is opened. */

/** The size of /dev/shm in GiB, if not the engine's own 64 MB. Its content counts as the lease's memory. */
const shmGib = v.optional(above0);
const image = v.pipe(v.string(), v.minLength(1));
/** The runtime that containers run under, by the engine's name for it, if not the engine's default. */
const runtime = v.optional(
  v.pipe(
    v.string(),
    v.maxLength(100),
    v.regex(/^[A-Za-z0-9][\w.-]*$/, 'must be the name of a runtime that the engine knows: runc, runsc, kata'),
  ),
);

const shared = {
  backend: v.literal('container'),
  ...engineAddress,
  image,
  pull: v.optional(v.picklist(['never', 'missing']), 'never'),
  network: v.optional(
    v.pipe(
      v.string(),
      v.regex(/^(?!host$)[A-Za-z0-9][\w.-]*$/, 'must be none, or the name of a network that you made on the engine'),
    ),
    'none',
  ),
  egress,
  runtime,
  pids: v.optional(whole(16, 1_000_000), 512),
  shm_gib: shmGib,
  provision_seconds: v.optional(whole(1, 86_400), 60),
  /** The price of a GiB of a snapshot for a day. Without it none are sold. */
  snapshot_gib_day_usd: v.optional(hourly),
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
    ...sized,
    capacity,
    gpu_devices: v.optional(gpuDevices),
    /** The way in which Docker is asked for GPUs; Podman is always asked by their CDI names. */
    gpu_mode: v.optional(v.picklist(['nvidia', 'cdi']), 'nvidia'),
    warm: warmSizes,
  }),
  checkEngineAddress(),
  checkOneWayOut(),
  checkNoNetwork(),
  v.forward(
    v.check(
      ({ limits, warm = [] }) => warm.every((it) => it.cpus <= limits.cpus && it.memory_gib <= limits.memory_gib),
      'is larger than limits: no lease is of this size',
    ),
    ['warm'],
  ),
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
  v.forward(checkCapacity(), ['capacity']),
);

/** Variables that Purser sets itself and settings may not change: it finds processes and assigns GPUs by them. */
const OURS = /^(PURSER_|NVIDIA_VISIBLE_DEVICES$)/;
const environment = v.pipe(
  v.record(
    v.pipe(v.string(), v.regex(/^[A-Za-z_]\w*$/, 'is no name of a variable')),
    v.pipe(
      v.string(),
      v.maxLength(32_768),
      v.check((it) => !it.includes('\0'), 'has a NUL character'),
    ),
  ),
  v.check((it) => !Object.keys(it).some((name) => OURS.test(name)), 'has a variable that Purser sets itself'),
);

const Offers = v.pipe(
  v.strictObject({
    ...shared,
    limits,
    offers: v.pipe(
      offersOf({
        count: offerCount,
        /** The image of this offer, if not the common one. */
        image: v.optional(image),
        shm_gib: shmGib,
        runtime,
        /** The targets that its leases reach, if not those of the backend's settings. */
        egress,
        /** Variables that every process of the lease has. */
        env: v.optional(environment),
        warm: warmCount,
      }),
      v.check(
        (offers) => offers.every((it) => (it.warm ?? 0) <= it.count),
        'an offer has more warm machines than its count',
      ),
    ),
  }),
  checkEngineAddress(),
  checkOneWayOut(),
  checkNoNetwork(),
);

export const slots = { provider_one: Sized, provider_three: Offers };
export type SizedSettings = v.InferOutput<typeof Sized>;
export type OffersSettings = v.InferOutput<typeof Offers>;
export type ContainerSettings = SizedSettings | OffersSettings;

/** The contents that an offer is made from. */
export type OfferContents = {
  image: string;
  runtime: string | undefined;
  shmGib: number | undefined;
  env: Readonly<Record<string, string>>;
};

/** Returns the contents that a lease is made from: those of its offer, else those of the backend's settings. */
export function contentsOf(settings: ContainerSettings, offerId: string | undefined): OfferContents {
  const offer = 'offers' in settings ? settings.offers.find(({ id }) => id === offerId) : undefined;
  return {
    image: offer?.image ?? settings.image,
    runtime: offer?.runtime ?? settings.runtime,
    shmGib: offer?.shm_gib ?? settings.shm_gib,
    env: { ...offer?.env, ...egressVariables(settings, offerId) },
  };
}

/** Returns the contents of everything on offer. */
const allContents = (settings: ContainerSettings): OfferContents[] =>
  'offers' in settings ? settings.offers.map(({ id }) => contentsOf(settings, id)) : [contentsOf(settings, undefined)];

/** Returns every image that leases are made from, each once. */
export const imagesOf = (settings: ContainerSettings): string[] => [
  ...new Set(allContents(settings).map((it) => it.image)),
];

/** Returns every runtime that leases are made with, each once; the engine's default, which is not named, as undefined. */
export const runtimesOf = (settings: ContainerSettings): (string | undefined)[] => [
  ...new Set(allContents(settings).map((it) => it.runtime)),
];

/** Runtimes whose containers run on the kernel of their host, as settings and engines name them. `oci` is Podman's word for any. */
const SHARE_THE_KERNEL = ['', 'runc', 'io.containerd.runc.v2', 'oci', 'crun', 'youki', 'nvidia'];

/**
 * Returns whether containers under a runtime run on the kernel of their host. An engine's default (undefined) most often is such a
 * one.
 */
export const sharesKernel = (runtime: string | undefined): boolean => SHARE_THE_KERNEL.includes(runtime ?? '');

export function notes(it: ContainerSettings): string[] {
  return [
    ...notesOnAddress(it),
    ...(it.network === 'none'
      ? []
      : [`each wallet’s leases get a network like ${it.network} and reach what it reaches; Purser filters nothing`]),
    ...('prices' in it ? notesOnGpus(it) : []),
    ...(runtimesOf(it).some(sharesKernel)
      ? [
          'containers share the kernel of their host, which is no wall against a hostile tenant; name a `runtime` (gVisor, Kata) where one is installed',
        ]
      : []),
  ];
}

function notesOnGpus({ limits, prices }: SizedSettings): string[] {
  const priced = Object.keys(prices.gpu_hourly_usd).length;
  if (limits.gpus > 0 && priced === 0) return ['limits.gpus has no use: prices.gpu_hourly_usd names no GPU'];
  if (limits.gpus === 0 && priced > 0) return ['no GPU is on offer: limits.gpus is 0'];
  return [];
}

export async function open(
  settings: ContainerSettings,
  { prefix, dataDirectory, now, isPaused, isWarm, rooms }: Surroundings,
): Promise<Backend> {
  const { openContainerBackend } = await import('./container.ts');
  return openContainerBackend(settings, { prefix, isPaused, isWarm, rooms, books: dataDirectory, now });
}
