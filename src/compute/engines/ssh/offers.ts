import { formatUsd, Nanos } from '../../../base/money.ts';
import { Refusal } from '../../../base/refusal.ts';
import type { MachineQuote, Offer, Spec, SpecTwo } from '../../backend.ts';
import type { HostHealth, Pool } from './pool.ts';
import type { SshSettings } from './settings.ts';

const MIN_SECONDS = 60;

/** Creates the offers of a pool: one for each chip, with its price and the hosts that are free. */
export function createPoolOffers(settings: SshSettings, { health }: Pool) {
  function quoteOf(spec: Spec): MachineQuote {
    const host = settings.hosts.find((it) => it.chip === (spec as SpecTwo).chip);
    if (!host) throw new Refusal('offer_not_found');
    return { spec, priceHourly: host.price_hourly_usd, maxSeconds: settings.limits.max_seconds };
  }

  /** Returns the number of hosts of a chip that take a tenant now. */
  const countFree = (all: readonly HostHealth[], chip: string) =>
    all.filter((it) => it.chip === chip && it.state === 'free' && it.faults.length === 0).length;

  return {
    async offers(waitMilliseconds?: number): Promise<Offer[]> {
      const all = await health(waitMilliseconds);
      return [...new Set(settings.hosts.map((it) => it.chip))].map((chip) => {
        const spec = { chip, max_seconds: Math.min(3600, settings.limits.max_seconds) };
        const { priceHourly, maxSeconds } = quoteOf(spec);
        return {
          offerId: null,
          description: `a whole host with ${chip}, ${formatUsd(Nanos(priceHourly))} USD an hour`,
          spec,
          priceHourly,
          minSeconds: MIN_SECONDS,
          maxSeconds,
          available: countFree(all, chip) > 0,
        };
      });
    },
    quote: async (spec: Spec) => quoteOf(spec),
    freeFor: async (spec: Spec) => countFree(await health(), (spec as SpecTwo).chip),
  };
}
