import { formatUsd, Nanos } from '../../../base/money.ts';
import { Refusal } from '../../../base/refusal.ts';
import type { MachineQuote, Offer, SpecThree } from '../../backend.ts';
import { hasFailed, type VastApi } from './api.ts';
import type { VastSettings } from './settings.ts';

const OFFER_COUNT_MAX = 64;
/** The smallest disk that Vast rents. Disks cannot grow later. */
const DISK_GB_MIN = 8;
/** The disk that the list of offers is priced with; a quote is for the requested disk. */
const DISK_GB_LISTED = 16;
const SECONDS_LISTED = 3600;
const SECONDS_MIN = 60;
const SECONDS_MAX = 30 * 86_400;
/** The list is cached, because it is requested often; only a quote's price is binding. */
const LIST_KEPT_MILLISECONDS = 5_000;
const HOURLY_MAX = 10n ** 15n; // USD 1,000,000 an hour is a typing error.
const EXPONENT_MAX = 40;
const NANOS_PER_USD = 10n ** 9n;
const HUNDREDTHS_OF_A_PERCENT = 10_000n;

/** An ask at Vast, as far as this backend reads it. Its price is still the digits that were sent. */
type VastAsk = {
  id?: unknown;
  dph_total?: unknown;
  duration?: unknown;
  end_date?: unknown;
  disk_space?: unknown;
  gpu_name?: unknown;
  gpu_ram?: unknown;
  num_gpus?: unknown;
  cpu_cores_effective?: unknown;
  geolocation?: unknown;
};

/** Creates access to the machines for rent, and their prices. */
export function createVastOffers(settings: VastSettings, api: VastApi, now: () => number) {
  let listed: { at: number; offers: Promise<Offer[]> } | undefined;

  async function search(diskGb: number, filters: Record<string, unknown>): Promise<VastAsk[]> {
    const answer = await api.read('search', 'POST', '/api/v0/bundles/', {
      verified: { eq: true },
      rentable: { eq: true },
      ...(settings.runtype === 'ssh_direct' ? { direct_port_count: { gte: 1 } } : {}),
      type: 'on-demand',
      allocated_storage: diskGb, // `dph_total` contains the disk only for this much.
      limit: OFFER_COUNT_MAX,
      ...filters,
    });
    const asks = (answer.json as { offers?: unknown } | undefined)?.offers;
    if (answer.status !== 200 || hasFailed(answer) || !Array.isArray(asks))
      throw new Error(`vast: no list of offers: ${answer.words}`);
    return asks.slice(0, OFFER_COUNT_MAX).filter((it) => typeof it === 'object' && it !== null);
  }

  /** Returns the Unix seconds at which the contract of this ask would end. They are fixed when the ask is rented. */
  function endOf(ask: VastAsk): number | undefined {
    const ends = [numberOf(ask.end_date), addTo(now(), numberOf(ask.duration))].filter((it) => it !== undefined);
    return ends.length ? Math.floor(Math.min(...ends)) : undefined;
  }
  const rentableSeconds = (ask: VastAsk) => Math.min(SECONDS_MAX, (endOf(ask) ?? Number.POSITIVE_INFINITY) - now());

  async function list(): Promise<Offer[]> {
    const seconds = SECONDS_LISTED + settings.provision_seconds;
    const asks = await search(DISK_GB_LISTED, { duration: { gte: seconds }, order: [['dph_total', 'asc']] });
    return asks.flatMap((ask): Offer[] => {
      const priceHourly = priceOf(ask, settings.markup_percent);
      const offerId = idOf(ask.id);
      const maxSeconds = Math.floor(rentableSeconds(ask) - settings.provision_seconds);
      if (priceHourly === undefined || offerId === undefined || maxSeconds < SECONDS_MIN) return [];
      const spec: SpecThree = {
        offer_id: offerId,
        disk_gb: DISK_GB_LISTED,
        max_seconds: Math.min(SECONDS_LISTED, maxSeconds),
      };
      const description = `${wordsOf(ask)}, ${DISK_GB_LISTED} GB of disk, ${formatUsd(Nanos(priceHourly))} USD an hour`;
      return [{ offerId, description, spec, priceHourly, minSeconds: SECONDS_MIN, maxSeconds, available: true }];
    });
  }

  return {
    offers(): Promise<Offer[]> {
      const at = performance.now();
      if (!listed || at - listed.at > LIST_KEPT_MILLISECONDS) {
        const offers = list();
        const mine = { at, offers };
        listed = mine;
        offers.catch(() => {
          if (listed === mine) listed = undefined;
        });
      }
      return listed.offers;
    },

    /**
     * Returns a quote. Refuses with `offer_not_found` if the machine cannot be rented (any more), and with `invalid_request` for an
     * impossible disk.
     */
    async quote(spec: SpecThree): Promise<MachineQuote> {
      const { offer_id: offerId, disk_gb: diskGb } = spec;
      if (!/^\d{1,15}$/.test(offerId)) throw new Refusal('offer_not_found');
      if (diskGb < DISK_GB_MIN) throw new Refusal('invalid_request', `spec.disk_gb: at least ${DISK_GB_MIN} here.`);
      const ask = (await search(diskGb, { id: { eq: Number(offerId) } })).find((it) => idOf(it.id) === offerId);
      const priceHourly = ask && priceOf(ask, settings.markup_percent);
      if (!ask || priceHourly === undefined) throw new Refusal('offer_not_found');
      const space = numberOf(ask.disk_space);
      if (space !== undefined && diskGb > space)
        throw new Refusal('invalid_request', `spec.disk_gb: this offer has at most ${Math.floor(space)}.`);
      const endsBy = endOf(ask);
      const maxSeconds = Math.max(0, Math.floor(rentableSeconds(ask)));
      return { spec, priceHourly, maxSeconds, ...(endsBy === undefined ? {} : { endsBy }) };
    },
  };
}

/**
 * Returns the price in nano-dollars per hour with the operator's markup, rounded up once. It is exact: computed from the digits in
 * the JSON text, which may have an exponent. Undefined for a price that cannot be right.
 */
function priceOf({ dph_total: digits }: VastAsk, markupPercent: number): bigint | undefined {
  const match = /^(\d{1,20})(?:\.(\d{1,60}))?(?:[eE]([+-]?\d{1,4}))?$/.exec(String(digits));
  if (!match) return undefined;
  const [, whole = '', fraction = '', exponent = '0'] = match;
  const decimals = fraction.length - Number(exponent);
  if (Math.abs(Number(exponent)) > EXPONENT_MAX) return undefined;
  const markup = HUNDREDTHS_OF_A_PERCENT + BigInt(Math.round(markupPercent * 100));
  const up = BigInt(whole + fraction) * NANOS_PER_USD * markup * 10n ** BigInt(Math.max(0, -decimals));
  const down = HUNDREDTHS_OF_A_PERCENT * 10n ** BigInt(Math.max(0, decimals));
  const price = (up + down - 1n) / down;
  return price > 0n && price <= HOURLY_MAX ? price : undefined;
}

function wordsOf(ask: VastAsk): string {
  const memory = numberOf(ask.gpu_ram);
  const cores = numberOf(ask.cpu_cores_effective);
  return [
    `${numberOf(ask.num_gpus) ?? 1} × ${textOf(ask.gpu_name) ?? 'GPU'}`,
    ...(memory === undefined ? [] : [`${Math.round(memory / 1024)} GiB each`]),
    ...(cores === undefined ? [] : [`${Math.floor(cores)} CPUs`]),
    ...(textOf(ask.geolocation) ? [textOf(ask.geolocation)] : []),
  ].join(', ');
}

/** Returns an id at Vast as text, or undefined if it is not a whole number. */
export function idOf(value: unknown): string | undefined {
  const text = typeof value === 'number' && Number.isSafeInteger(value) ? String(value) : value;
  return typeof text === 'string' && /^[1-9]\d{0,18}$/.test(text) ? text : undefined;
}
export function numberOf(value: unknown): number | undefined {
  return typeof value === 'number' && Number.isFinite(value) ? value : undefined;
}
export function textOf(value: unknown): string | undefined {
  return typeof value === 'string' && value ? value.slice(0, 100) : undefined;
}
const addTo = (now: number, seconds: number | undefined) => (seconds === undefined ? undefined : now + seconds);
