import { formatUsd, Nanos } from '../../base/money.ts';
import { Refusal } from '../../base/refusal.ts';
import type { MachineQuote, Offer, Spec, SpecOne, SpecThree, SpecTwo } from '../backend.ts';

/** Prices and limits from the configuration: a backend quotes them without a call. */

const MIN_SECONDS = 60;

export type Sized = {
  prices: { cpu_hourly_usd: bigint; memory_gib_hourly_usd: bigint; gpu_hourly_usd: Record<string, bigint> };
  limits: { cpus: number; memory_gib: number; gpus: number; max_seconds: number };
};
/** A fixed shape that is sold under its id. */
export type FixedOffer = {
  id: string;
  cpus: number;
  memory_gib: number;
  max_disk_gb: number;
  price_hourly_usd: bigint;
};
export type Fixed = { offers: (FixedOffer & { count?: number })[]; limits: { max_seconds: number } };
type ByChip = { chips: Record<string, { price_hourly_usd: bigint }>; limits: { max_seconds: number } };
export type PricedSettings = Sized | ByChip | Fixed;

/** Returns one of the fixed shapes. Refuses with `offer_not_found`. */
export function offerOf<O extends { id: string }>({ offers }: { offers: O[] }, id: string): O {
  const offer = offers.find((it) => it.id === id);
  if (!offer) throw new Refusal('offer_not_found');
  return offer;
}

/** Returns a chip by its name. Refuses with `offer_not_found`. */
export function chipOf<C>({ chips }: { chips: Record<string, C> }, name: string): C {
  const chip = Object.hasOwn(chips, name) ? chips[name] : undefined;
  if (!chip) throw new Refusal('offer_not_found', `There is no chip ${JSON.stringify(name)} on offer.`);
  return chip;
}

/** Returns the price and limits of a spec, by its size, chip or offer. Refuses with `offer_not_found` and `invalid_request`. */
export function quoteOf(settings: PricedSettings, spec: Spec): MachineQuote {
  if ('chips' in settings) {
    const { price_hourly_usd: priceHourly } = chipOf(settings, (spec as SpecTwo).chip);
    return { spec, priceHourly, maxSeconds: settings.limits.max_seconds };
  }
  if ('offers' in settings) {
    const three = spec as SpecThree;
    const offer = offerOf(settings, three.offer_id);
    if (three.disk_gb > offer.max_disk_gb)
      throw new Refusal('invalid_request', `spec.disk_gb: this offer has at most ${offer.max_disk_gb}.`);
    return { spec, priceHourly: offer.price_hourly_usd, maxSeconds: settings.limits.max_seconds };
  }
  const one = spec as SpecOne;
  const { limits, prices } = settings;
  const exceeded = (['cpus', 'memory_gib', 'gpus'] as const).find((name) => one[name] > limits[name]);
  if (exceeded) throw new Refusal('invalid_request', `spec.${exceeded}: at most ${limits[exceeded]} here.`);
  const has = (gpu: string) => Object.hasOwn(prices.gpu_hourly_usd, gpu); // An own property, not an inherited one.
  const gpuPrice = one.gpu === null ? 0n : has(one.gpu) ? prices.gpu_hourly_usd[one.gpu] : undefined;
  if (gpuPrice === undefined)
    throw new Refusal('offer_not_found', `There is no GPU ${JSON.stringify(one.gpu)} on offer.`);
  // Hundredths are exact: the API admits at most two decimals.
  const hundredths = (value: number) => BigInt(Math.round(value * 100));
  const fractional =
    hundredths(one.cpus) * prices.cpu_hourly_usd + hundredths(one.memory_gib) * prices.memory_gib_hourly_usd;
  return { spec, priceHourly: (fractional + 99n) / 100n + gpuPrice * BigInt(one.gpus), maxSeconds: limits.max_seconds };
}

/** Returns what can be leased; `noun` is the word for a machine of this backend, or returns that of an offer. */
export function offersOf(settings: PricedSettings, noun: string | ((offer: string | undefined) => string)): Offer[] {
  const nounOf = typeof noun === 'string' ? () => noun : noun;
  const describeOffer = (
    offerId: string | null,
    spec: Spec,
    words: string,
    size?: Pick<Offer, 'size' | 'unitPrices'>,
  ): Offer => {
    const { priceHourly, maxSeconds } = quoteOf(settings, spec);
    return {
      offerId,
      description: `${words}, ${formatUsd(Nanos(priceHourly))} USD an hour`,
      spec,
      ...size,
      priceHourly,
      minSeconds: MIN_SECONDS,
      maxSeconds,
      available: true,
    };
  };
  const seconds = Math.min(3600, settings.limits.max_seconds);
  if ('chips' in settings)
    return Object.keys(settings.chips).map((chip) =>
      describeOffer(null, { chip, max_seconds: seconds }, `${nounOf(undefined)} with a ${chip}`),
    );
  if ('offers' in settings)
    return settings.offers.map((it) =>
      describeOffer(
        it.id,
        { offer_id: it.id, disk_gb: it.max_disk_gb, max_seconds: seconds },
        `${nounOf(it.id)} with ${it.cpus} CPUs, ${it.memory_gib} GiB and ${it.max_disk_gb} GB of disk`,
        { size: { cpus: it.cpus, memoryGib: it.memory_gib, gpus: 0 } },
      ),
    );
  const { limits, prices } = settings;
  const small = { cpus: Math.min(1, limits.cpus), memory_gib: Math.min(1, limits.memory_gib), max_seconds: seconds };
  const sized = {
    size: { cpus: limits.cpus, memoryGib: limits.memory_gib, gpus: limits.gpus },
    unitPrices: { cpu: prices.cpu_hourly_usd, memoryGib: prices.memory_gib_hourly_usd },
  };
  const plain = describeOffer(
    null,
    { gpu: null, gpus: 0, ...small },
    `${nounOf(undefined)}, up to ${limits.cpus} CPUs and ${limits.memory_gib} GiB`,
    sized,
  );
  const gpus = limits.gpus > 0 ? Object.keys(prices.gpu_hourly_usd) : [];
  return [
    plain,
    ...gpus.map((gpu) => describeOffer(null, { gpu, gpus: 1, ...small }, `${nounOf(undefined)} with a ${gpu}`, sized)),
  ];
}
