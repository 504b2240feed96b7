import { formatUsd, Nanos } from '../base/money.ts';
import { parseJson } from '../base/parse-json.ts';
import { Refusal } from '../base/refusal.ts';
import type { Backend, Slot } from './backend.ts';
import type { WarmOrder } from './kit/warm.ts';
import type { Fill } from './settings.ts';

/** A configured backend of a slot (design, section 7). */
export type ConfiguredBackend = {
  slot: Slot;
  /** The unique name: the slot, and its own name where the slot has several. */
  slotPath: string;
  backend: Backend;
  provisionSeconds: number;
  /** The machines that are kept made for the next leases. */
  warm: readonly WarmOrder[];
  /** Identifies its settings, without their secrets: doctor asks a server only about a backend with the settings of the file. */
  digest: string;
};

export type Slots = {
  /** The backends in slot order, those of a slot in the order of its list. */
  list: readonly ConfiguredBackend[];
  /** The backends of a slot, and which is asked first. Refuses with `provider_not_configured`. */
  find(slot: Slot): { fill: Fill; backends: readonly [ConfiguredBackend, ...ConfiguredBackend[]] };
  /** The configured backend of a resource, or undefined when its slot no longer has one of that name. */
  configuredOf(resource: { slot: string; backend: string }): ConfiguredBackend | undefined;
  /** The backend of a live resource, or undefined when its slot no longer has one of that name. */
  backendOf(resource: { slot: string; backend: string }): Backend | undefined;
};

/** provider_one cannot be extended; the others can (interface, section 4, rule 1). */
export const canExtend = (slot: string): boolean => slot !== 'provider_one';

/** Creates the look-up of the configured slots. */
export function createSlots(list: readonly ConfiguredBackend[], fills: ReadonlyMap<Slot, Fill> = new Map()): Slots {
  const configuredOf: Slots['configuredOf'] = ({ slot, backend }) =>
    list.find((it) => it.slot === slot && it.backend.name === backend);
  return {
    list,
    find(slot) {
      const [first, ...others] = list.filter((it) => it.slot === slot);
      if (!first)
        throw new Refusal('provider_not_configured', `This installation has nothing configured behind ${slot}.`);
      return { fill: fills.get(slot) ?? 'in_order', backends: [first, ...others] };
    },
    configuredOf,
    backendOf: (resource) => configuredOf(resource)?.backend,
  };
}

const SECONDS_PER_HOUR = 3600n;

/** Returns the price of `seconds`, rounded up to a whole nano-dollar, once (design 2.1). */
export function priceOfSeconds(priceHourly: bigint, seconds: number): Nanos {
  return Nanos((priceHourly * BigInt(seconds) + SECONDS_PER_HOUR - 1n) / SECONDS_PER_HOUR);
}

/** Returns the price of a lease as JSON, kept on the operation's row. */
export function leasePriceSnapshot(priceHourly: bigint, seconds: number): string {
  return JSON.stringify({ price_hourly_usd: formatUsd(Nanos(priceHourly)), seconds });
}

/** Returns the seconds that the price of a lease or an extension is for. */
export const secondsIn = (snapshot: string): number => (parseJson(snapshot) as { seconds: number }).seconds;
