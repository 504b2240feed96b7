import type { Spec, SpecOne, SpecThree } from '../../backend.ts';
import { offerOf } from '../priced.ts';
import type { Capacity } from './engine.ts';
import { gpuDevices } from './gpus.ts';
import type { ContainerSettings } from './settings.ts';

/** The size of a spec's container. */
export type Size = {
  cpus: number;
  memoryGib: number;
  gpu: string | null;
  gpus: number;
  offer: string | undefined;
  diskGb: number | undefined;
};

export function sizeOf(settings: ContainerSettings, spec: Spec): Size {
  if ('offers' in settings) {
    const { offer_id: id, disk_gb: diskGb } = spec as SpecThree;
    const { cpus, memory_gib: memoryGib } = offerOf(settings, id);
    return { cpus, memoryGib, gpu: null, gpus: 0, offer: id, diskGb };
  }
  const { cpus, memory_gib: memoryGib, gpu, gpus } = spec as SpecOne;
  return { cpus, memoryGib, gpu, gpus, offer: undefined, diskGb: undefined };
}

/** What one container takes of its engine. Recorded as labels on the container, and nowhere else. */
export type Claim = { tag: string; cpus: number; memoryGib: number; offer: string | undefined; devices: string[] };

export const TAG_LABEL = 'purser.tag';
const CPUS_LABEL = 'purser.cpus';
const MEMORY_LABEL = 'purser.memory_gib';
const OFFER_LABEL = 'purser.offer';
const DEVICES_LABEL = 'purser.gpus';

export function labelsOf({ tag, cpus, memoryGib, offer, devices }: Claim): Record<string, string> {
  return {
    [TAG_LABEL]: tag,
    [CPUS_LABEL]: String(cpus),
    [MEMORY_LABEL]: String(memoryGib),
    ...(offer === undefined ? {} : { [OFFER_LABEL]: offer }),
    ...(devices.length ? { [DEVICES_LABEL]: devices.join(',') } : {}),
  };
}

export function claimOf(labels: Record<string, string | undefined>): Claim {
  return {
    tag: labels[TAG_LABEL] ?? '',
    cpus: Number(labels[CPUS_LABEL] ?? 0),
    memoryGib: Number(labels[MEMORY_LABEL] ?? 0),
    offer: labels[OFFER_LABEL],
    devices: labels[DEVICES_LABEL]?.split(',') ?? [],
  };
}

/**
 * Fits one more container of `size` beside what is `taken`. Returns the devices it gets, or what is lacking, in words.
 * Offers and `capacity` count this installation's containers (`prefix`); devices count those of every installation.
 */
export function fit(
  settings: ContainerSettings,
  prefix: string,
  taken: Claim[],
  size: Size,
  capacity: Capacity | undefined,
): { devices: string[] } | { lacking: string } {
  const ours = taken.filter((it) => it.tag.startsWith(prefix));
  if ('offers' in settings) {
    const { id, count } = offerOf(settings, size.offer as string);
    if (ours.filter((it) => it.offer === id).length < count) return { devices: [] };
    return { lacking: count === 1 ? `${id} is leased` : `all ${count} of ${id} are leased` };
  }
  // Hundredths are exact: the API admits at most two decimals.
  const hundredths = (value: number) => Math.round(value * 100);
  for (const [name, key] of [
    ['cpus', 'cpus'],
    ['memory_gib', 'memoryGib'],
  ] as const) {
    const all = capacity?.[name];
    const used = ours.reduce((sum, it) => sum + (it.offer === undefined ? hundredths(it[key]) : 0), 0);
    if (all !== undefined && used + hundredths(size[key]) > hundredths(all))
      return { lacking: `${used / 100} of ${all} ${name} are leased` };
  }
  const held = new Set(taken.flatMap((it) => it.devices));
  const all = size.gpu === null ? [] : (gpuDevices(settings)[size.gpu] ?? []);
  const free = all.filter((it) => !held.has(it));
  if (free.length < size.gpus)
    return { lacking: `${all.length - free.length} of ${all.length} ${size.gpu} are leased` };
  return { devices: free.slice(0, size.gpus) };
}
