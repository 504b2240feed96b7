import { deadline } from '../net/deadline.ts';
import type { Backend, Offer, Spec, SpecOne, SpecThree, SpecTwo } from './backend.ts';
import type { Fill } from './settings.ts';

/** The time in which a backend has to report its free capacity. */
const ASK_MILLISECONDS = 2000;

/**
 * Returns the candidates for a new machine in the order in which they are asked. `in_order` is the order of the settings; with
 * `most_free` the backend with room for the most machines of this spec comes first. One that cannot report its room counts as full,
 * and the settings decide between equals. One that currently fails comes last.
 */
export async function ordered<C extends { backend: Backend }>(
  candidates: readonly [C, ...C[]],
  fill: Fill,
  spec: Spec,
  isFailing: (candidate: C) => boolean,
): Promise<[C, ...C[]]> {
  if (candidates.length === 1) return [candidates[0]];
  const counted = await Promise.all(
    candidates.map(async (it) => ({ it, free: fill === 'most_free' ? await freeFor(it.backend, spec) : 0 })),
  );
  return counted
    .sort((a, b) => Number(isFailing(a.it)) - Number(isFailing(b.it)) || b.free - a.free)
    .map(({ it }) => it) as [C, ...C[]];
}

/** Returns how many more machines of the spec the backend has room for; 0 when it does not answer in time. */
export async function freeFor(backend: Backend, spec: Spec): Promise<number> {
  const requests = backend.freeFor
    ? backend.freeFor(spec)
    : backend.offers().then((offers) => offers.filter((it) => it.available && isOf(it, spec)).length);
  return deadline(
    requests.catch(() => 0),
    ASK_MILLISECONDS,
    () => 0,
  );
}

/** Returns whether an offer is of the kind that the spec requests. */
const isOf = ({ spec: offered }: Offer, spec: Spec): boolean => kindOf(offered) === kindOf(spec);

/** Returns the kind of machine that a spec is for, beside its size: an offer, a chip, or a GPU; null without one. */
export const kindOf = (spec: Spec): string | null =>
  (spec as SpecThree).offer_id ?? (spec as SpecTwo).chip ?? (spec as SpecOne).gpu;
