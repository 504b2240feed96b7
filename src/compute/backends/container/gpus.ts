import type { SizedSettings } from './settings.ts';

/**
 * The devices of each GPU type. Without `gpu_devices`, the one type with a price gets the first `limits.gpus` indexes;
 * the configuration refuses several types without it.
 */
export function gpuDevices(
  settings: Pick<SizedSettings, 'prices' | 'limits' | 'gpu_devices'>,
): Record<string, string[]> {
  if (settings.gpu_devices) return settings.gpu_devices;
  const [type] = Object.keys(settings.prices.gpu_hourly_usd);
  return type === undefined
    ? {}
    : { [type]: Array.from({ length: settings.limits.gpus }, (_, index) => String(index)) };
}

/** The name of a device in the vendor's Container Device Interface specification. */
export const cdiName = (device: string) => `nvidia.com/gpu=${device}`;

export const LIST_GPUS = 'nvidia-smi -L';

/** Counts the GPUs in the output of `nvidia-smi -L`: one per line; of a divided GPU each part counts instead. */
export function countGpus(listed: string): number {
  let count = 0;
  for (const [block] of listed.matchAll(/^GPU \d+:.*(?:\n\s+MIG .*)*/gm))
    count += Math.max(1, block.split('\n').length - 1);
  return count;
}
