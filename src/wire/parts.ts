import * as v from 'valibot';

/** Unix seconds. */
export const Time = v.pipe(v.number(), v.integer(), v.description('Unix seconds'));
/** Whole US cents. */
export const Cents = v.pipe(v.number(), v.integer(), v.description('US cents'));
/** An exact decimal USD string: plain notation, at least two decimals, at most nine. */
export const Usd = v.pipe(v.string(), v.regex(/^\d+\.\d{2,9}$/), v.description('exact decimal USD'));
/** An exact decimal price per token or per request. */
export const PriceUsd = v.pipe(v.string(), v.regex(/^\d+\.\d{2,15}$/), v.description('exact decimal USD'));

/** The `{error, request_id}` body of every refusal (interface, section 2). */
export const ErrorBody = v.object({
  error: v.object({ code: v.string(), message: v.string() }),
  request_id: v.string(),
});

/** Returns the schema of a whole number in a request; the error message states its limits. */
export function wholeNumber(min: number, max: number) {
  const message = `must be a whole number from ${min} to ${max}`;
  return v.pipe(v.number(message), v.safeInteger(message), v.minValue(min, message), v.maxValue(max, message));
}
/**
 * Returns a schema action that checks in code. The API document contains `keywords` in its place, the JSON Schema
 * equivalent (http/openapi.ts).
 */
export function checked<T>(
  requirement: (input: T) => boolean,
  message: v.ErrorMessage<v.CheckIssue<T>>,
  keywords: Record<string, unknown>,
) {
  return Object.assign(v.check(requirement, message), { keywords });
}

/**
 * Returns the schema of a string in a request; the error message states its limits. Lengths are in code points, as in JSON
 * Schema (2020-12 validation, 6.3); JavaScript's `length` counts most emoji as two.
 */
export function text(min: number, max: number) {
  const message = `must be a string of ${min} to ${max} characters`;
  return v.pipe(
    v.string(message),
    checked((it: string) => hasLength(it, min, max), message, { minLength: min, maxLength: max }),
  );
}

function hasLength(text: string, min: number, max: number): boolean {
  if (text.length > 2 * max) return false; // A code point has at most two code units, so a long string need not be counted.
  let count = 0;
  for (const _ of text) count++;
  return count >= min && count <= max;
}

/** Returns the schema of a whole number in a query, where every value is text. */
export function numberInQuery(min: number, max: number, message = `must be a whole number from ${min} to ${max}`) {
  return v.pipe(
    v.string(message),
    checked((it: string) => /^\d{1,15}$/.test(it) && Number(it) >= min && Number(it) <= max, message, {
      pattern: '^[0-9]+$',
    }),
    v.transform(Number),
  );
}

/** Returns the schema of a name: 1 to 80 characters without control characters (Unicode category Cc). */
export function name() {
  const keywords = { pattern: '^[^\\u0000-\\u001f\\u007f-\\u009f]*$', description: 'no control characters' };
  return v.pipe(
    text(1, 80),
    checked((it: string) => !/\p{Cc}/u.test(it) && it.isWellFormed(), 'must not contain control characters', keywords),
  );
}

/** An id in a request body: any short string. An unknown id is a 404. */
export const Id = text(1, 200);
