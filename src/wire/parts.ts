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

/** A whole number in a request, with its limits in words. */
export function wholeNumber(least: number, most: number) {
  const message = `must be a whole number from ${least} to ${most}`;
  return v.pipe(v.number(message), v.safeInteger(message), v.minValue(least, message), v.maxValue(most, message));
}
/**
 * A check in code, with what JSON Schema can say of it: the API document writes `keywords` where the check stands
 * (http/openapi.ts).
 */
export function checked<T>(requirement: (input: T) => boolean, message: string, keywords: Record<string, unknown>) {
  return Object.assign(v.check(requirement, message), { keywords });
}

/**
 * A text in a request, with its limits in words. Lengths count characters, which are code points, as JSON Schema counts
 * them (2020-12 validation, 6.3); JavaScript's `length` counts most emoji as two.
 */
export function text(least: number, most: number) {
  const message = `must be a string of ${least} to ${most} characters`;
  return v.pipe(
    v.string(message),
    checked((it: string) => hasLength(it, least, most), message, { minLength: least, maxLength: most }),
  );
}

function hasLength(text: string, least: number, most: number): boolean {
  if (text.length > 2 * most) return false; // No code point takes more than two units: a long text is not walked.
  let count = 0;
  for (const _ of text) count++;
  return count >= least && count <= most;
}

/** A name that a person gives: one line of text without control characters (Unicode category Cc). */
export function name() {
  const keywords = { pattern: '^[^\\u0000-\\u001f\\u007f-\\u009f]*$', description: 'no control characters' };
  return v.pipe(
    text(1, 80),
    checked((it: string) => !/\p{Cc}/u.test(it) && it.isWellFormed(), 'must not contain control characters', keywords),
  );
}

/** An id in a request body: any short string; what it does not find is a 404. */
export const Id = text(1, 200);
