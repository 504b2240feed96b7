import { parseUsd } from '../base/money.ts';
import type { LocalCompute } from '../compute/settings.ts';

/** Prices in USD per hour, uneven on purpose: some have to be rounded up to a nano-dollar. */
export const HOURLY = { cpu: '0.04', memoryGib: '0.005', chip: '0.36', offer: '0.05' };
export const CHIP = 'demo-chip';
export const OFFER = 'small';

const limits = { max_seconds: 3600 };
const local = { backend: 'local', provision_seconds: 60 } as const;

/** The three slots of the demo: all of them are processes of this machine. */
export const DEMO_COMPUTE: LocalCompute = {
  provider_one: {
    ...local,
    prices: {
      cpu_hourly_usd: parseUsd(HOURLY.cpu),
      memory_gib_hourly_usd: parseUsd(HOURLY.memoryGib),
      gpu_hourly_usd: {},
    },
    limits: { ...limits, cpus: 4, memory_gib: 8, gpus: 0 },
  },
  provider_two: { ...local, limits, chips: { [CHIP]: { price_hourly_usd: parseUsd(HOURLY.chip) } } },
  provider_three: {
    ...local,
    limits,
    offers: [
      { id: OFFER, cpus: 1, memory_gib: 2, max_disk_gb: 10, price_hourly_usd: parseUsd(HOURLY.offer), count: 1 },
    ],
  },
};
