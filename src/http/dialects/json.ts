import { parseNested, UncountedJson } from '../../base/json-text.ts';
import type { Json } from '../../base/parse-json.ts';
import { Refusal } from '../../base/refusal.ts';

export const isObject = (value: unknown): value is Json =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

/** Returns the value as an object; an empty one for anything else. For data from a model server, which is not refused. */
export const objectOf = (value: unknown): Json => (isObject(value) ? value : {});

export function invalid(param: string, what: string): Refusal {
  return new Refusal('invalid_request', `${param}: ${what}.`, { param });
}

/** Returns the refusal of a feature that is not offered. `why` is a whole sentence. */
export function notOffered(param: string, why: string): Refusal {
  const name = param.slice(0, 80);
  return new Refusal('unsupported_parameter', `${name}: ${why}`, { param: name });
}

/** Returns a list of objects. Throws `invalid_request` for anything else. */
export function objectsOf(value: unknown, param: string): Json[] {
  if (!Array.isArray(value)) throw invalid(param, 'must be an array');
  const at = value.findIndex((it) => !isObject(it));
  if (at !== -1) throw invalid(`${param}.${at}`, 'must be an object');
  return value;
}

/** Returns a non-empty list. Throws `invalid_request` for an empty one. */
export function filled<T>(list: T[], param: string): T[] {
  if (!list.length) throw invalid(param, 'must have at least one message');
  return list;
}

/** Returns a string. Throws `invalid_request` for anything else. */
export function textOf(value: unknown, param: string): string {
  if (typeof value !== 'string') throw invalid(param, 'must be a string');
  return value;
}

/** Returns the members that are set, except those of these names. */
export const givenBut = (members: Json, names: ReadonlySet<string>): Json =>
  given(Object.fromEntries(Object.entries(members).filter(([name]) => !names.has(name))));

/** Returns the members of these names. */
export const pick = (members: Json, names: readonly string[]): Json =>
  Object.fromEntries(names.map((name) => [name, members[name]]));

/** Returns those of the names that are set. */
export const namesGiven = (members: Json, names: readonly string[]): string[] =>
  names.filter((name) => members[name] !== undefined && members[name] !== null);

/** Returns the members that are set, without null and undefined. */
export const given = (members: Json): Json =>
  Object.fromEntries(Object.entries(members).filter(([, value]) => value !== undefined && value !== null));

/** Parses an object inside a string; undefined if it is none, or has more levels or values than a body may have. */
export function parseObject(text: string): Json | undefined {
  try {
    const value = parseNested(text)?.value;
    return isObject(value) ? value : undefined;
  } catch (error) {
    if (error instanceof UncountedJson) return undefined;
    throw error;
  }
}

/** Cuts a text into pieces of at most `length` units, without splitting a surrogate pair. */
export function* piecesOf(text: string, length: number): Generator<string> {
  for (let at = 0; at < text.length; ) {
    const isInside = /[\ud800-\udbff]/.test(text.charAt(at + length - 1));
    const end = at + length - (isInside ? 1 : 0);
    yield text.slice(at, end);
    at = end;
  }
}
