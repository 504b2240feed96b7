import type { Outline } from '../../base/json-text.ts';
import type { Json } from '../../base/parse-json.ts';
import type { Native } from '../../router/bound.ts';
import { cachedAs, type Forwards, withoutCacheControl } from '../../router/cache-control.ts';
import { type Forwarded, forwardedFrom, writtenAgain } from '../../router/forwarded.ts';
import type { MeasuredFor } from '../../router/measure.ts';
import { changeNested } from '../../router/nested.ts';
import { TooDeep, valueBytes } from '../../router/rendered.ts';
import type { Dialect, KeptState } from './dialect.ts';
import { givenBut, invalid, objectOf } from './json.ts';

/** A request in its own API, measured and in the form that is passed on. Plain data, as another thread may have read it. */
export type MeasuredNative = Omit<Native, 'written' | 'headers' | 'isOnly'> & { kept: KeptState };

/**
 * Bounds and writes a request for model servers that speak its API. `bytes` is the received body, and `outline` the
 * positions of its members. `byRoute` are members for the routes whose settings name them.
 */
export function nativeOf(
  { name: wire, native }: Dialect,
  raw: Json,
  { bytes, outline }: { bytes: Buffer; outline: Outline },
  byRoute: Json,
  model: Pick<MeasuredFor, 'imageUrls' | 'enough'>,
): MeasuredNative {
  const { value, names, kept, parts, addedTokens } = native(raw, model);
  const plain = withoutCacheControl(value, parts);
  const named = givenBut(byRoute, new Set(names)); // The others go to every route.
  const own = (list: readonly string[]) =>
    value === raw ? forwardedFrom(bytes, { outline, value: raw }, list) : undefined;
  return {
    wire,
    bytes: bytesOf({ ...plain, ...named }, [...names, ...Object.keys(named)], parts, model.enough),
    addedTokens,
    forwards:
      plain === value
        ? { plain: own(names) ?? writtenAgain(plain, names) }
        : markedForms(value, plain, names, parts, own),
    byRoute: named,
    kept,
  };
}

/** Returns the forwarded part of a request with marks for prompt caches. If all of them may stay, that is the received body. */
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

/** Returns the bytes of the forwarded members, as values that a template writes. Images and PDFs are counted apart. */
function bytesOf(value: Json, names: readonly string[], parts: readonly string[], enough: number): number {
  const seen = changeNested(Object.fromEntries(names.map((name) => [name, value[name]])), parts, withoutMedia);
  try {
    return valueBytes(seen, enough);
  } catch (error) {
    if (error instanceof TooDeep) throw invalid('body', 'holds arguments of a call that are nested too deep');
    throw error;
  }
}

function withoutMedia(part: Readonly<Json>): Readonly<Json> {
  const isPdf = part.type === 'document' && objectOf(part.source).type === 'base64';
  if (part.type === 'image' || isPdf) return { ...part, source: { ...objectOf(part.source), data: '' } };
  if (part.type === 'input_file') return { ...part, file_data: '' };
  return part.type === 'input_image' ? { ...part, image_url: '' } : part;
}
