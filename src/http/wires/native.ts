import type { Native } from '../../router/bound.ts';
import { cachedAs, type Forwards, withoutCacheControl } from '../../router/cache-control.ts';
import { contextOf, type Model } from '../../router/catalogue.ts';
import { type Forwarded, forwardedFrom, writtenAgain } from '../../router/forwarded.ts';
import { changeNested } from '../../router/nested.ts';
import { TooDeep, valueBytes } from '../../router/rendered.ts';
import type { Sent } from '../endpoint.ts';
import { givenBut, invalid, type Json, objectOf } from './json.ts';
import type { NativeRequest, Wire } from './wire.ts';

/**
 * Bounds and writes a request for model servers that speak its API. `sent` is the body as it came. `byRoute` are members that
 * those get whose settings name them.
 */
export function nativeOf(
  { name: wire }: Wire,
  model: Model,
  raw: Json,
  sent: Sent | undefined,
  byRoute: Json,
  { value, names, written, parts, headers }: NativeRequest,
): Native {
  const plain = withoutCacheControl(value, parts);
  const named = givenBut(byRoute, new Set(names)); // The others go to every route.
  const own = (list: readonly string[]) =>
    sent && value === raw ? forwardedFrom(sent.bytes, { outline: sent.outline, value: raw }, list) : undefined;
  return {
    wire,
    bytes: bytesOf(
      { ...plain, ...named },
      [...names, ...Object.keys(named)],
      parts,
      Math.max(...model.routes.map(contextOf)),
    ),
    forwards:
      plain === value
        ? { plain: own(names) ?? writtenAgain(plain, names) }
        : markedForms(value, plain, names, parts, own),
    byRoute: named,
    written,
    headers,
  };
}

/** Returns what is passed on of a request with marks for prompt caches. Where all of them may stay, that is the body as it came. */
function markedForms(
  value: Json,
  plain: Json,
  names: readonly string[],
  parts: readonly string[],
  own: (names: readonly string[]) => Forwarded | undefined,
): Forwards {
  const forms: Forwards = { plain: writtenAgain(plain, names), ...cachedAs(value, names, parts) };
  const all = value.cache_control === undefined ? names : [...names, 'cache_control'];
  const fullest = forms.cachedForHour ? 'cachedForHour' : 'cached';
  const isWhole = forms[fullest]?.bytes.equals(writtenAgain(value, all).bytes);
  return { ...forms, ...(isWhole ? { [fullest]: own(all) ?? forms[fullest] } : {}) };
}

/** Returns the bytes of what is passed on, as values that a template writes. Images are counted apart. */
function bytesOf(value: Json, names: readonly string[], parts: readonly string[], enough: number): number {
  const seen = changeNested(Object.fromEntries(names.map((name) => [name, value[name]])), parts, withoutImage);
  try {
    return valueBytes(seen, enough);
  } catch (error) {
    if (error instanceof TooDeep) throw invalid('body', 'holds arguments of a call that are nested too deep');
    throw error;
  }
}

function withoutImage(part: Readonly<Json>): Readonly<Json> {
  if (part.type === 'image') return { ...part, source: { ...objectOf(part.source), data: '' } };
  return part.type === 'input_image' ? { ...part, image_url: '' } : part;
}
