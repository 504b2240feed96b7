import * as v from 'valibot';
import { type Backend, type CheckFinding, SLOTS, type Slot, type Surroundings } from './backend.ts';
import * as backends from './engines/index.ts';
import type { LocalSettings } from './engines/local/settings.ts';
import { note } from './finding.ts';
import { firstOtherPrice } from './same-prices.ts';
import { firstSharedUser } from './same-users.ts';
import { Templates } from './templates.ts';

/** The settings of the three slots (design, section 4), made from the table of backends. */

/** The exports of a backend's settings.ts. */
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
type SettingsFor<S extends Slot> = v.InferOutput<SchemaFor<S>>;

/** The backend of a slot that is asked first: the first in the list, or the one with the most free. */
const FILLS = ['in_order', 'most_free'] as const;
export type Fill = (typeof FILLS)[number];

/** A slot with several backends. A name may be left out once for each kind of backend: it is then that kind. */
type Several<One> = { backend?: undefined; fill: Fill; backends: (One & { name?: string })[] };

/** The fault of an unknown backend. `local` has its own message: the demo shows it, so operators will try it. */
const notThis = ({ expected, received }: v.BaseIssue<unknown>) =>
  received === '"local"'
    ? 'local is for `purser demo` only: it puts no wall between a lease and this machine'
    : `Invalid type: Expected ${expected} but received ${received}`;

/** The name of a backend. It is a label of metrics, and names a directory. */
const backendName = v.pipe(
  v.string(),
  v.maxLength(60),
  v.regex(/^[A-Za-z0-9][\w.-]*$/, 'must be letters, digits, dots, dashes and underscores'),
);

type Entries = { entries: v.ObjectEntries; pipe?: readonly [Entries, ...v.GenericPipeAction[]] };

/** A backend's schema with one more setting: its name in a list of backends. Its checks stay. */
function withName(schema: Entries): v.GenericSchema {
  const [object, ...checks] = schema.pipe ?? [schema];
  const named = v.strictObject({ name: v.optional(backendName), ...object.entries });
  return (checks.length ? v.pipe(named, ...(checks as [])) : named) as v.GenericSchema;
}

const nameOf = (it: { name?: string; backend: string }) => it.name ?? it.backend;

/** The settings of one backend that can serve `slot`, or of several. */
function backendsFor<S extends Slot>(slot: S) {
  const schemas = Object.values(BACKENDS).flatMap(({ slots }) =>
    slot in slots ? [slots[slot as keyof typeof slots] as SchemaFor<S>] : [],
  );
  const one = v.variant('backend', schemas, notThis);
  const named = schemas.map((it) => withName(it as unknown as Entries)) as unknown as SchemaFor<S>[];
  const several = v.strictObject({
    fill: v.optional(v.picklist(FILLS), 'in_order'),
    backends: v.pipe(
      v.array(v.variant('backend', named, notThis)),
      v.minLength(1, 'names no backend'),
      v.check(
        (list) => new Set(list.map(nameOf)).size === list.length,
        'two backends have the same name: give each a `name` of its own',
      ),
      // The rows of leases of a backend without a name have its kind: another kind must not be asked for them.
      v.check(
        (list) => list.every((it) => nameOf(it) === it.backend || !Object.hasOwn(BACKENDS, nameOf(it))),
        'a backend has the name of another kind: give it another `name`',
      ),
      v.rawCheck(({ dataset, addIssue }) => {
        if (!dataset.typed) return;
        const named = dataset.value.map((it) => [nameOf(it), it] as const);
        for (const message of [firstOtherPrice(named), firstSharedUser(named)]) if (message) addIssue({ message });
      }),
    ),
  });
  const both = v.custom(() => false, 'give either backend or backends');
  const has = (input: unknown, key: string) => typeof input === 'object' && input !== null && key in input;
  const either = v.lazy((input) => (!has(input, 'backends') ? one : has(input, 'backend') ? both : several));
  // Where a setting is not known, similar names are looked up in the options (config.ts).
  const options = [one, several];
  return v.optional(
    Object.assign(either, { options }) as v.GenericSchema<unknown, SettingsFor<S> | Several<SettingsFor<S>>>,
  );
}

export const Compute = v.strictObject({
  provider_one: backendsFor('provider_one'),
  provider_two: backendsFor('provider_two'),
  provider_three: backendsFor('provider_three'),
  templates: v.optional(Templates),
});

/** The settings of the slots. */
export type ComputeSettings = Omit<v.InferOutput<typeof Compute>, 'templates'>;
export type LocalCompute = { [S in Slot]?: LocalSettings | undefined };

type BackendSettings = { [S in Slot]: SettingsFor<S> }[Slot] | LocalSettings;
/** A backend as configured. `slotPath` names it in logs and files: its slot, and its name where the slot has several. */
export type PlacedSettings = { slot: Slot; name: string; slotPath: string; settings: BackendSettings };

/** Returns the backends of every slot, in slot order, each slot's in the order of its list. */
export function listBackends(compute: ComputeSettings | LocalCompute): PlacedSettings[] {
  return SLOTS.flatMap((slot): PlacedSettings[] => {
    const backends = compute[slot];
    if (!backends) return [];
    if (!('backends' in backends)) return [{ slot, name: backends.backend, slotPath: slot, settings: backends }];
    return backends.backends.map((settings) => {
      const name = nameOf(settings);
      return { slot, name, slotPath: `${slot} ${name}`, settings };
    });
  });
}

/** Returns the limits that a backend does not enforce, as far as the settings show. They are no faults. */
export function findUnenforced(compute: ComputeSettings): CheckFinding[] {
  return listBackends(compute).flatMap(({ slotPath, settings }) => {
    const { notes } = BACKENDS[settings.backend as keyof Backends];
    return notes(settings as never).map((text) => note(`compute.${slotPath}`, `${text}.`));
  });
}
