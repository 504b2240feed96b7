import * as v from 'valibot';
import { parseDecimal } from '../../money.ts';

/** Settings that several backends have. */

const NANOS_DECIMALS = 9;
const HOURLY_MAX = 10n ** 15n; // USD 1,000,000 an hour is a typing error.
const SECONDS_MAX = 30 * 86_400;

/** An exact decimal price per hour, as nano-dollars. */
export const hourly = v.pipe(
  v.string(),
  v.rawTransform(({ dataset, addIssue, NEVER }) => {
    try {
      const parsed = parseDecimal(dataset.value, NANOS_DECIMALS);
      if (parsed <= HOURLY_MAX) return parsed;
      addIssue({ message: `not a believable price: ${dataset.value}` });
    } catch (error) {
      addIssue({ message: `not an exact price: ${(error as Error).message}` });
    }
    return NEVER;
  }),
);

export const whole = (least: number, most: number) =>
  v.pipe(v.number(), v.integer(), v.minValue(least), v.maxValue(most));
export const above0 = v.pipe(v.number(), v.gtValue(0), v.maxValue(1_000_000));

/** The longest lease, in seconds. */
export const maxSeconds = v.optional(whole(60, SECONDS_MAX), 86_400);
export const limits = v.optional(v.strictObject({ max_seconds: maxSeconds }), {});

/** The time a machine may take from its order to its first answer, in seconds. */
export const CLOUD_PROVISION_SECONDS = 900;
