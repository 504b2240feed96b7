import * as v from 'valibot';
import type { Spec } from '../backend.ts';
import { above0, whole } from './fields.ts';

/** The machines that are kept made for the next leases: the setting `warm` of an offer, and of a slot without offers. */

const COUNT_MAX = 100;
/** The number of machines of an offer that are kept made. */
export const warmCount = v.optional(whole(0, COUNT_MAX));
/** The sizes of machines that are kept made, where leases are sold by size. */
export const warmSizes = v.optional(
  v.pipe(
    v.array(v.strictObject({ count: whole(1, COUNT_MAX), cpus: above0, memory_gib: above0 })),
    v.check(
      (sizes) => new Set(sizes.map((it) => `${it.cpus} ${it.memory_gib}`)).size === sizes.length,
      'has a size twice',
    ),
  ),
);

type WarmSetting = {
  limits: { max_seconds: number };
  warm?: v.InferOutput<typeof warmSizes>;
  offers?: { id: string; max_disk_gb: number; warm?: number | undefined }[];
};

/** Refuses warm machines with a network: that of a lease is its wallet's, and is there before the machine. */
export function checkNoNetwork<S extends WarmSetting & { network: string }>() {
  return v.check<S, string>(
    (it) => it.network === 'none' || warmOf(it).length === 0,
    'has both network and warm: with a network each wallet’s leases get one of their own. Leave one of them out',
  );
}

/** A number of machines that are kept made. */
export type WarmOrder = { spec: Spec; count: number };

/** Returns the machines that a backend keeps made: none by default. */
export function warmOf({ limits: { max_seconds }, warm = [], offers = [] }: WarmSetting): WarmOrder[] {
  const sized = warm.map(({ count, ...size }) => ({ count, spec: { gpu: null, gpus: 0, ...size, max_seconds } }));
  const offered = offers.map((it) => {
    return { count: it.warm ?? 0, spec: { offer_id: it.id, disk_gb: it.max_disk_gb, max_seconds } };
  });
  return [...sized, ...offered].filter(({ count }) => count > 0);
}
