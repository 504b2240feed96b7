import * as v from 'valibot';
import { Secret } from './secret.ts';

/** The text of settings in purser.yaml: the inverse of what their schemas make of it. */

/** Ends a pipe that transforms: `write` inverts the transformation, and returns the value for the file. */
export const writtenAs = <T>(write: (value: T) => unknown) => v.metadata<T, { write: typeof write }>({ write });

/** The members by which a schema holds others. */
type WrittenSchema = v.GenericSchema & {
  wrapped?: WrittenSchema;
  getter?: (value: unknown) => WrittenSchema;
  item?: WrittenSchema;
  value?: WrittenSchema;
  entries?: Record<string, WrittenSchema & { literal?: unknown }>;
  key?: string;
  options?: WrittenSchema[];
};
type Members = Readonly<Record<string, unknown>>;

/** Returns the value in the file from which `schema` makes `value`, with `[set]` for each secret. */
export function asWritten(schema: v.GenericSchema, value: unknown): unknown {
  const { type, wrapped, getter, item, value: each, entries, key = '', options } = schema as WrittenSchema;
  if (wrapped) return asWritten(wrapped, value);
  if (getter) return asWritten(getter(value), value);
  if (type === 'variant') {
    const one = options?.find((it) => it.entries?.[key]?.literal === (value as Members)[key]);
    return asWritten(one as WrittenSchema, value);
  }
  const { write } = v.getMetadata(schema) as { write?: (value: unknown) => unknown };
  const own = write ? write(value) : value;
  if (own instanceof Secret) return own.toString();
  if (typeof own !== 'object' || own === null) return own;
  const taken = type === 'union' && options?.find((it) => v.is(it, own));
  if (taken) return asWritten(taken, own);
  if (item) return (own as unknown[]).map((it) => asWritten(item, it));
  // In the order of the schema, without members that the file does not have.
  const members = Object.keys(entries ?? own).map((name) => {
    const member = (own as Members)[name];
    return [
      name,
      member === undefined ? undefined : asWritten((entries?.[name] ?? each) as WrittenSchema, member),
    ] as const;
  });
  return Object.fromEntries(members.filter(([, it]) => it !== undefined));
}
