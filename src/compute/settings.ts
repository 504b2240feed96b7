import * as v from 'valibot';
import type { Backend, Slot, Surroundings } from './backend.ts';
import * as backends from './backends/index.ts';
import type { LocalSettings } from './backends/local/settings.ts';

/** The settings of the three slots (design, section 4), made from the table of backends. */

/** What the settings.ts of a backend exports. */
type BackendModule = {
  slots: Partial<Record<Slot, v.GenericSchema>>;
  notes(settings: never): string[];
  open(settings: never, around: Surroundings): Promise<Backend>;
};
const BACKENDS = { ...backends } satisfies Record<string, BackendModule>;

type Backends = typeof BACKENDS;
type SchemaFor<S extends Slot> = {
  [B in keyof Backends]: Backends[B]['slots'] extends Record<S, infer Schema> ? Schema : never;
}[keyof Backends];

/** The fault of an unknown backend. `local` has its own message: the demo shows it, and somebody will try it. */
const notThis = ({ expected, received }: v.BaseIssue<unknown>) =>
  received === '"local"'
    ? 'local is for `purser demo` only: it puts no wall between a lease and this machine'
    : `Invalid type: Expected ${expected} but received ${received}`;

/** The settings of any backend that can serve `slot`. */
const backendsFor = <S extends Slot>(slot: S) =>
  v.optional(
    v.variant(
      'backend',
      Object.values(BACKENDS).flatMap(({ slots }) =>
        slot in slots ? [slots[slot as keyof typeof slots] as SchemaFor<S>] : [],
      ),
      notThis,
    ),
  );

export const Compute = v.strictObject({
  provider_one: backendsFor('provider_one'),
  provider_two: backendsFor('provider_two'),
  provider_three: backendsFor('provider_three'),
});

type Parsed = v.InferOutput<typeof Compute>;
type WithoutKey<S> = S extends { api_key: string } ? Omit<S, 'api_key'> : S;
export type ComputeSettings = { [K in keyof Parsed]: WithoutKey<Parsed[K]> };
export type LocalCompute = { [K in keyof Parsed]: LocalSettings };

/** Separates the settings from their secrets. `slotKeys` are the providers' keys, by slot. */
export function partSecrets(parsed: Parsed): { compute: ComputeSettings; slotKeys: ReadonlyMap<string, string> } {
  const slotKeys = new Map<string, string>();
  const plain = Object.entries(parsed).map(([slot, settings]) => {
    if (!settings || !('api_key' in settings)) return [slot, settings];
    const { api_key: key, ...rest } = settings;
    slotKeys.set(slot, key);
    return [slot, rest];
  });
  return { compute: Object.fromEntries(plain) as ComputeSettings, slotKeys };
}

/** What a backend does not enforce, as far as the settings alone tell. Notes for the operator, not faults. */
export function adviceOn(compute: ComputeSettings): string[] {
  return Object.entries(compute).flatMap(([slot, settings]) => {
    if (!settings) return [];
    const { notes } = BACKENDS[settings.backend];
    return notes(settings as never).map((note) => `compute.${slot}: ${note}.`);
  });
}
