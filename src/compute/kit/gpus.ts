import type { Sized } from './priced.ts';

/** The settings of GPUs that are sold one by one. */
export type SoldDevices = Sized & { gpu_devices?: Record<string, string[]> | undefined };

/**
 * Returns the devices of each GPU type. Without `gpu_devices`, the one type with a price gets the first `limits.gpus` indexes; the
 * configuration refuses several types without it.
 */
export function gpuDevices(settings: SoldDevices): Record<string, string[]> {
  if (settings.gpu_devices) return settings.gpu_devices;
  const [type] = Object.keys(settings.prices.gpu_hourly_usd);
  return type === undefined
    ? {}
    : { [type]: Array.from({ length: settings.limits.gpus }, (_, index) => String(index)) };
}

/** Returns the name of a device in the vendor's Container Device Interface specification. */
export const cdiName = (device: string) => `nvidia.com/gpu=${device}`;
