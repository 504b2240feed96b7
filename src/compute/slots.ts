import { formatUsd, Nanos } from '../money.ts';
import { Refusal } from '../refusal.ts';
import type { Backend, Slot } from './backend.ts';

/** One configured slot and its backend (design, section 7). */
export type ConfiguredSlot = {
  slot: Slot;
  backend: Backend;
  provisionSeconds: number;
};

export type Slots = {
  /** In slot order. */
  list: readonly ConfiguredSlot[];
  /** The slot, or a refusal with `provider_not_configured`. */
  find(slot: Slot): ConfiguredSlot;
  /** The backend of a live resource, or undefined when its slot is no longer configured with it. */
  backendOf(resource: { slot: string; backend: string }): Backend | undefined;
};

/** provider_one cannot be extended; the others can (interface, section 4, rule 1). */
export const canExtend = (slot: string): boolean => slot !== 'provider_one';

export function createSlots(list: readonly ConfiguredSlot[]): Slots {
  return {
    list,
    find(slot) {
      const found = list.find((it) => it.slot === slot);
      if (!found)
        throw new Refusal('provider_not_configured', `This installation has nothing configured behind ${slot}.`);
      return found;
    },
    backendOf: ({ slot, backend }) => list.find((it) => it.slot === slot && it.backend.name === backend)?.backend,
  };
}

const SECONDS_PER_HOUR = 3600n;

/** The price of `seconds`, rounded up to a whole nano-dollar, once (design 2.1). */
export function priceOfSeconds(priceHourly: bigint, seconds: number): Nanos {
  return Nanos((priceHourly * BigInt(seconds) + SECONDS_PER_HOUR - 1n) / SECONDS_PER_HOUR);
}

/** The price of a lease as JSON, kept on the operation's row. */
export function leasePriceSnapshot(priceHourly: bigint, seconds: number): string {
  return JSON.stringify({ price_hourly_usd: formatUsd(Nanos(priceHourly)), seconds });
}
