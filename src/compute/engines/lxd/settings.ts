import * as v from 'valibot';
import type { Backend, Surroundings } from '../../backend.ts';
import { egress, haveWayOut } from '../../kit/egress.ts';
import { capacity, checkCapacity, hourly, limits, offerCount, offersOf, sized, whole } from '../../kit/fields.ts';
import { WATCHDOG_USER } from '../../kit/watchdog-user.ts';
import { checkLxdAddress, lxdAddress } from './address.ts';

/** LXD or Incus, on this machine, another one or a cluster: the settings, their notes, and how it is opened. */

const UID_MAX = 65_535;

const name = v.pipe(v.string(), v.regex(/^[A-Za-z0-9][\w.-]*$/, 'must be a name'));
/** An alias, or the beginning of a fingerprint. */
const image = v.pipe(v.string(), v.regex(/^[A-Za-z0-9][\w./:-]*$/, 'must be an alias or a fingerprint'));

/** The type of the instances. */
const type = v.picklist(['container', 'virtual-machine']);

const shared = {
  backend: v.literal('lxd'),
  ...lxdAddress,
  project: v.optional(name, 'default'),
  /** The storage pool of the root disks. */
  pool: v.optional(name, 'default'),
  image,
  type: v.optional(type, 'container'),
  /** The user that tenants' commands run as. Root of a container has no capabilities. */
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
  /** The price of a GiB of a snapshot for a day. Without it none are sold. */
  snapshot_gib_day_usd: v.optional(hourly),
};

/** Drivers of storage pools that hold a root disk to its size, and copy one by reference. */
export const COPYING_DRIVERS = ['btrfs', 'zfs', 'lvm', 'ceph'];

/** The parts of the settings that depend on the type. */
type Parts = {
  type: v.InferOutput<typeof type>;
  egress?: v.InferOutput<typeof egress>;
  snapshot_gib_day_usd?: bigint | undefined;
  limits: { max_seconds: number; cpus?: number };
  offers?: {
    id: string;
    cpus: number;
    type?: v.InferOutput<typeof type> | undefined;
    egress?: v.InferOutput<typeof egress>;
  }[];
};

/** Refuses what no virtual machine can have. */
function checkMachines<S extends Parts>() {
  return v.rawCheck<S>(({ dataset, addIssue }) => {
    if (!dataset.typed) return;
    const { value } = dataset;
    const ids = value.offers?.map(({ id }) => id) ?? [undefined];
    if (value.snapshot_gib_day_usd !== undefined && !ids.some((id) => typeOf(value, id) === 'container'))
      addIssue({ message: 'virtual machines have no snapshots: leave snapshot_gib_day_usd out' });
    const sold = value.offers?.map(({ id, cpus }) => ({ id, cpus })) ?? [
      { id: undefined, cpus: value.limits.cpus ?? 0 },
    ];
    for (const { id, cpus } of sold) {
      if (typeOf(value, id) === 'container') continue;
      const name = id === undefined ? '' : `${id}: `;
      // By its size, whole ones are leased up to the limit.
      if (cpus < 1 || (id !== undefined && !Number.isInteger(cpus)))
        addIssue({ message: `${name}a virtual machine has whole cpus` });
      if (waysOutOf(value, id))
        addIssue({ message: `${name}a virtual machine has no egress: leave egress out, or set type: container` });
    }
  });
}

/** Returns whether the leases of an offer have a way out. */
const waysOutOf = ({ egress, offers }: Parts, id: string | undefined) =>
  haveWayOut({ egress, ...(offers ? { offers: offers.filter((it) => it.id === id) } : {}) });

const Sized = v.pipe(
  v.strictObject({
    ...shared,
    /** The prices, without GPUs: this backend leases none. */
    prices: v.strictObject({ ...sized.prices.entries, gpu_hourly_usd: v.optional(v.record(v.never(), hourly), {}) }),
    limits: v.strictObject({ ...sized.limits.entries, gpus: v.optional(v.literal(0), 0) }),
    capacity,
  }),
  checkLxdAddress(),
  checkMachines(),
  v.forward(checkCapacity(), ['capacity']),
);

const Offers = v.pipe(
  v.strictObject({
    ...shared,
    limits,
    /** An offer may have its own image, type and egress instead of the common ones. */
    offers: offersOf({ count: offerCount, image: v.optional(image), type: v.optional(type), egress }),
  }),
  checkLxdAddress(),
  checkMachines(),
);

export const slots = { provider_one: Sized, provider_three: Offers };
export type LxdSettings = v.InferOutput<typeof Sized> | v.InferOutput<typeof Offers>;

/** The contents that leases are made from. */
export type Contents = { image: string; type: v.InferOutput<typeof type> };

/** Returns the contents of everything on offer, each once. */
export function allContents(settings: LxdSettings): Contents[] {
  const ids = 'offers' in settings ? settings.offers.map(({ id }) => id) : [undefined];
  const all = ids.map((id) => contentsOf(settings, id));
  return all.filter((it, at) => all.findIndex(({ image, type }) => image === it.image && type === it.type) === at);
}

/** Returns the contents of an offer's lease; of an unnamed one, those of the settings. */
export function contentsOf(settings: LxdSettings, offer: string | undefined): Contents {
  const image = 'offers' in settings ? settings.offers.find(({ id }) => id === offer)?.image : undefined;
  return { image: image ?? settings.image, type: typeOf(settings, offer) };
}

const typeOf = ({ type, offers }: Parts, offer: string | undefined): Contents['type'] =>
  offers?.find(({ id }) => id === offer)?.type ?? type;

export function notes(settings: LxdSettings): string[] {
  return [
    'leases have no network',
    ...(allContents(settings).some(({ type }) => type === 'container')
      ? ['containers share the kernel of their host, which is no wall against a hostile tenant']
      : []),
  ];
}

export async function open(settings: LxdSettings, around: Surroundings): Promise<Backend> {
  const { openLxdBackend } = await import('./lxd.ts');
  return openLxdBackend(settings, around);
}
