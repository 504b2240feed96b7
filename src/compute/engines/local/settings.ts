import type { Backend, Surroundings } from '../../backend.ts';
import type { PricedSettings } from '../../kit/priced.ts';

/** Plain processes on this machine: `purser demo` writes these settings in its own code, and no file can. */
export type LocalSettings = { backend: 'local'; provision_seconds: number } & PricedSettings;

export async function open(settings: LocalSettings, { leases, now }: Surroundings): Promise<Backend> {
  const { openLocalBackend } = await import('./local.ts');
  return openLocalBackend(settings, { leases, now });
}
