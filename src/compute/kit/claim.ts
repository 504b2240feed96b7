import type { Spec, SpecOne, SpecThree } from '../backend.ts';
import { gpuDevices, type SoldDevices } from './gpus.ts';
import { type Fixed, type FixedOffer, offerOf } from './priced.ts';

/** Bytes in a GiB. */
export const GIB = 1024 ** 3;

/** The settings that define what a backend sells: by size, or as offers. */
export type SoldSize =
  | (SoldDevices & { limits: { disk_gb: number }; capacity?: Capacity | undefined })
  | { offers: (FixedOffer & { count: number })[]; limits: Fixed['limits'] };

/** The size of a whole engine, or of all its leases together. */
export type Capacity = { cpus: number; memory_gib: number };

/** The size of a spec's container. */
export type LeaseSize = {
  cpus: number;
  memoryGib: number;
  gpu: string | null;
  gpus: number;
  offer: string | undefined;
  diskGb: number;
};

export function sizeOf(settings: SoldSize, spec: Spec): LeaseSize {
  if ('offers' in settings) {
    const { offer_id: id, disk_gb: diskGb } = spec as SpecThree;
    const { cpus, memory_gib: memoryGib } = offerOf(settings, id);
    return { cpus, memoryGib, gpu: null, gpus: 0, offer: id, diskGb };
  }
  const { cpus, memory_gib: memoryGib, gpu, gpus } = spec as SpecOne;
  return { cpus, memoryGib, gpu, gpus, offer: undefined, diskGb: settings.limits.disk_gb };
}

/** The share of its engine that one container takes. Recorded as labels on the container, and nowhere else. */
export type Claim = {
  tag: string;
  cpus: number;
  memoryGib: number;
  offer: string | undefined;
  devices: string[];
  /** Undefined for a container without the label. */
  diskGb: number | undefined;
};

export const TAG_LABEL = 'purser.tag';
const CPUS_LABEL = 'purser.cpus';
const MEMORY_LABEL = 'purser.memory_gib';
const OFFER_LABEL = 'purser.offer';
const DEVICES_LABEL = 'purser.gpus';
const DISK_LABEL = 'purser.disk_gb';

export function labelsOf({ tag, cpus, memoryGib, offer, devices, diskGb }: Claim): Record<string, string> {
  return {
    [TAG_LABEL]: tag,
    [CPUS_LABEL]: String(cpus),
    [MEMORY_LABEL]: String(memoryGib),
    ...(offer === undefined ? {} : { [OFFER_LABEL]: offer }),
    ...(devices.length ? { [DEVICES_LABEL]: devices.join(',') } : {}),
    ...(diskGb === undefined ? {} : { [DISK_LABEL]: String(diskGb) }),
  };
}

export function claimOf(labels: Record<string, string | undefined>): Claim {
  return {
    tag: labels[TAG_LABEL] ?? '',
    cpus: Number(labels[CPUS_LABEL] ?? 0),
    memoryGib: Number(labels[MEMORY_LABEL] ?? 0),
    offer: labels[OFFER_LABEL],
    devices: labels[DEVICES_LABEL]?.split(',') ?? [],
    diskGb: labels[DISK_LABEL] === undefined ? undefined : Number(labels[DISK_LABEL]),
  };
}

/**
 * Fits one more container of `size` beside what is `taken`. Returns the devices it gets, or what is lacking, in words.
 * Offers and `capacity` count this installation's containers (`prefix`); devices count those of every installation.
 */
export function fit(
  settings: SoldSize,
  prefix: string,
  usedIds: Claim[],
  size: LeaseSize,
  capacity: Capacity | undefined,
): { devices: string[] } | { lacking: string } {
  const ours = usedIds.filter((it) => it.tag.startsWith(prefix));
  if ('offers' in settings) {
    const { id, count } = offerOf(settings, size.offer as string);
    if (ours.filter((it) => it.offer === id).length < count) return { devices: [] };
    return { lacking: count === 1 ? `${id} is leased` : `all ${count} of ${id} are leased` };
  }
  for (const [name, key] of SHARED) {
    const all = capacity?.[name];
    const used = usedOf(ours, key);
    if (all !== undefined && used + hundredths(size[key]) > hundredths(all))
      return { lacking: `${used / 100} of ${all} ${name} are leased` };
  }
  const { all, free } = devicesFor(settings, usedIds, size.gpu);
  if (free.length < size.gpus)
    return { lacking: `${all.length - free.length} of ${all.length} ${size.gpu} are leased` };
  return { devices: free.slice(0, size.gpus) };
}

/** Returns how many more containers of `size` fit beside what is `taken`, counted as in `fit`. */
export function countFree(
  settings: SoldSize,
  prefix: string,
  used: Claim[],
  size: LeaseSize,
  capacity: Capacity | undefined,
): number {
  const ours = used.filter((it) => it.tag.startsWith(prefix));
  if ('offers' in settings) {
    const { id, count } = offerOf(settings, size.offer as string);
    return Math.max(0, count - ours.filter((it) => it.offer === id).length);
  }
  const counts = SHARED.map(([name, key]) => {
    const all = capacity?.[name];
    return all === undefined ? Infinity : Math.floor((hundredths(all) - usedOf(ours, key)) / hundredths(size[key]));
  });
  if (size.gpus > 0) counts.push(Math.floor(devicesFor(settings, used, size.gpu).free.length / size.gpus));
  return Math.max(0, Math.min(...counts));
}

/** The capacities that all leases of provider_one share: each with its name in the settings, and in a size. */
const SHARED = [
  ['cpus', 'cpus'],
  ['memory_gib', 'memoryGib'],
] as const;

/** Hundredths are exact: the API admits at most two decimals. */
const hundredths = (value: number) => Math.round(value * 100);

const usedOf = (claims: Claim[], key: 'cpus' | 'memoryGib') =>
  claims.reduce((sum, it) => sum + (it.offer === undefined ? hundredths(it[key]) : 0), 0);

function devicesFor(settings: SoldDevices, used: Claim[], gpu: string | null) {
  const held = new Set(used.flatMap((it) => it.devices));
  const all = gpu === null ? [] : (gpuDevices(settings)[gpu] ?? []);
  return { all, free: all.filter((it) => !held.has(it)) };
}
