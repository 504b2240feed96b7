import type { Json } from '../base/parse-json.ts';

/**
 * Applies `change` to the value and to every object below it that is reached through members of these names only, in lists or not:
 * inner ones first. Copies only changes. Names must be distinct: each level would double the work.
 */
export function changeNested(
  value: Readonly<Json>,
  names: readonly string[],
  change: (it: Readonly<Json>) => Readonly<Json>,
): Readonly<Json> {
  let copy: Record<string, unknown> | undefined;
  for (const name of names) {
    if (!Object.hasOwn(value, name)) continue;
    const before = value[name];
    const after = Array.isArray(before)
      ? changeList(before, names, change)
      : isObject(before)
        ? changeNested(before, names, change)
        : before;
    if (after === before) continue;
    copy ??= { ...value };
    copy[name] = after;
  }
  return change(copy ?? value);
}

function changeList(
  list: readonly unknown[],
  names: readonly string[],
  change: (it: Readonly<Json>) => Readonly<Json>,
): readonly unknown[] {
  let copy: unknown[] | undefined;
  for (const [i, before] of list.entries()) {
    const after = isObject(before) ? changeNested(before, names, change) : before;
    if (after === before) continue;
    copy ??= [...list];
    copy[i] = after;
  }
  return copy ?? list;
}

const isObject = (value: unknown): value is Readonly<Json> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);
