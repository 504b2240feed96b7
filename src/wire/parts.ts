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
/** A text in a request, with its limits in words. Lengths count UTF-16 units, as JSON Schema's readers mostly do. */
export function text(least: number, most: number) {
  const message = `must be a string of ${least} to ${most} characters`;
  return v.pipe(v.string(message), v.minLength(least, message), v.maxLength(most, message));
}

/** A name that a person gives: one line of printable text. */
export function name() {
  return v.pipe(
    text(1, 80),
    v.check((it) => !/\p{Cc}/u.test(it) && it.isWellFormed(), 'must not contain control characters'),
  );
}

/** An id in a request body: any short string; what it does not find is a 404. */
export const Id = text(1, 200);
