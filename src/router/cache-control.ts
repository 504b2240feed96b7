import type { Json } from '../base/parse-json.ts';
import type { Route } from './catalogue.ts';
import { type Forwarded, writtenAgain } from './forwarded.ts';
import { changeNested } from './nested.ts';

/**
 * Members that hold objects which may have a `cache_control`, by their position. A name in a tool's schema, or a quote in a
 * text, is not among them.
 */
const MARKED = [
  'messages',
  'system',
  'content',
  'source',
  'tools',
  'functions',
  'tool_calls',
  'function_call',
  'function',
  'custom',
  'image_url',
];

/**
 * The forwarded bytes in three forms: without marks for prompt caches; with the marks for the shortest time, if the request
 * has any; and unchanged, if some marks ask for an hour.
 */
export type Forwards = {
  plain: Forwarded;
  cached?: Forwarded | undefined;
  cachedForHour?: Forwarded | undefined;
};

/** Returns the form for a route: marks are included only if writing to its cache has a price. */
export const forwardedBy = (
  { cachesPrompts, cachesForHour }: Pick<Route, 'cachesPrompts' | 'cachesForHour'>,
  { plain, cached, cachedForHour }: Forwards,
): Forwarded => (cachesForHour && cachedForHour) || (cachesPrompts && cached) || plain;

/**
 * Returns the request without its marks for prompt caches: the same object where it has none. `parts` are further members
 * through which marked objects are reached.
 */
export const withoutCacheControl = <T extends Readonly<Json>>(request: T, parts: readonly string[] = []): T =>
  marked(request, parts, () => undefined) as T;

/**
 * Returns the members of these names with their marks, for servers whose cache writes have a price: with marks for the
 * shortest time alone, and with those for an hour if there are any. `parts` as for `withoutCacheControl`.
 */
export function cachedAs(
  request: Readonly<Json>,
  names: readonly string[],
  parts: readonly string[] = [],
): Pick<Forwards, 'cached' | 'cachedForHour'> {
  let asksForHour = false;
  const isMark = (mark: unknown): mark is Readonly<Json> => (mark as Readonly<Json> | null)?.type === 'ephemeral';
  const written = (keep: (mark: Readonly<Json>) => Readonly<Json>) => {
    const value = marked(request, parts, (mark) => (isMark(mark) ? keep(mark) : undefined));
    return writtenAgain(value, value.cache_control === undefined ? names : [...names, 'cache_control']);
  };
  const cachedForHour = written(({ ttl }) => {
    if (ttl !== HOUR) return EPHEMERAL;
    asksForHour = true;
    return { ...EPHEMERAL, ttl };
  });
  if (!asksForHour) return { cached: cachedForHour };
  return { cached: written(() => EPHEMERAL), cachedForHour };
}

const HOUR = '1h';
const EPHEMERAL = { type: 'ephemeral' };

/** Replaces each `cache_control` by the result of `change`. Copies only what changes. */
const marked = (value: Readonly<Json>, parts: readonly string[], change: (mark: unknown) => unknown): Readonly<Json> =>
  changeNested(value, parts.length ? [...new Set([...MARKED, ...parts])] : MARKED, (it) => {
    if (!Object.hasOwn(it, 'cache_control')) return it;
    const { cache_control: mark, ...rest } = it;
    const kept = change(mark);
    return kept === undefined ? rest : { ...it, cache_control: kept };
  });
