import * as v from 'valibot';
import type { Backend, Surroundings } from '../../backend.ts';
import { egress } from '../../kit/egress.ts';
import {
  above0,
  DOUBLE_ID,
  haveOwnIds,
  hourly,
  limits,
  offerCount,
  offerFields,
  sized,
  whole,
} from '../../kit/fields.ts';
import { WATCHDOG_USER } from '../../kit/watchdog-user.ts';
import { checkLxdAddress, lxdAddress } from './address.ts';

/** Containers of LXD or Incus, on this machine, another one or a cluster: the settings, their notes, and how it is opened. */

const UID_MAX = 65_535;

const name = v.pipe(v.string(), v.regex(/^[A-Za-z0-9][\w.-]*$/, 'must be a name'));
/** An alias, or the beginning of a fingerprint. */
const image = v.pipe(v.string(), v.regex(/^[A-Za-z0-9][\w./:-]*$/, 'must be an alias or a fingerprint'));

const shared = {
  backend: v.literal('lxd'),
  ...lxdAddress,
  project: v.optional(name, 'default'),
  /** The storage pool of the root disks. */
  pool: v.optional(name, 'default'),
  image,
  /** The user that tenants' commands run as. Root has no capabilities. */
  user: v.optional(
    v.pipe(
      whole(0, UID_MAX),
      v.check((user) => user !== WATCHDOG_USER, `${WATCHDOG_USER} is the watchdog’s own user`),
    ),
    1000,
  ),
  /** The directory that they start in. It is made, and belongs to that user. */
  directory: v.optional(
    v.pipe(v.string(), v.regex(/^(\/[A-Za-z0-9_-][\w.-]*)+$/, 'must be an absolute path')),
    '/home/lease',
  ),
  egress,
  pids: v.optional(whole(16, 1_000_000), 512),
  provision_seconds: v.optional(whole(1, 86_400), 60),
};

const Sized = v.pipe(
  v.strictObject({
    ...shared,
    /** The prices, without GPUs: this backend leases none. */
    prices: v.strictObject({ ...sized.prices.entries, gpu_hourly_usd: v.optional(v.record(v.never(), hourly), {}) }),
    limits: v.strictObject({ ...sized.limits.entries, gpus: v.optional(v.literal(0), 0) }),
    /** The capacity for all leases together. */
    capacity: v.optional(v.strictObject({ cpus: above0, memory_gib: above0 })),
  }),
  checkLxdAddress(),
  v.forward(
    v.check(
      ({ limits, capacity }) =>
        capacity === undefined || (limits.cpus <= capacity.cpus && limits.memory_gib <= capacity.memory_gib),
      'one lease may be larger than this: lower its limits',
    ),
    ['capacity'],
  ),
);

const Offers = v.pipe(
  v.strictObject({
    ...shared,
    limits,
    /** An offer may have its own image and egress instead of the common ones. */
    offers: v.pipe(
      v.array(v.strictObject({ ...offerFields, count: offerCount, image: v.optional(image), egress })),
      v.minLength(1),
      v.check((offers) => haveOwnIds(offers), DOUBLE_ID),
    ),
  }),
  checkLxdAddress(),
);

export const slots = { provider_one: Sized, provider_three: Offers };
export type LxdSettings = v.InferOutput<typeof Sized> | v.InferOutput<typeof Offers>;

export function notes(_: LxdSettings): string[] {
  return [
    'leases have no network',
    'containers share the kernel of their host, which is no wall against a hostile tenant',
  ];
}

export async function open(settings: LxdSettings, around: Surroundings): Promise<Backend> {
  const { openLxdBackend } = await import('./lxd.ts');
  return openLxdBackend(settings, around);
}
