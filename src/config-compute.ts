import * as v from 'valibot';
import { parseDecimal } from './money.ts';

/** The settings of the three slots (design, section 4). Alternatives are variants of a schema, not optional fields. */

const NANOS_DECIMALS = 9;
const HOURLY_MAX = 10n ** 15n; // USD 1,000,000 an hour is a slip of the pen.

/** An exact decimal price per hour, as nano-dollars. */
const hourly = v.pipe(
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
const whole = (least: number, most: number) => v.pipe(v.number(), v.integer(), v.minValue(least), v.maxValue(most));
const above0 = v.pipe(v.number(), v.gtValue(0), v.maxValue(1_000_000));
const SECONDS_MAX = 30 * 86_400;
const CONTAINER_PROVISION_SECONDS = 60;

const container = {
  backend: v.literal('container'),
  socket: v.optional(
    v.pipe(v.string(), v.regex(/^unix:\/\/\//, 'must be unix:///path of the engine’s socket')),
    'unix:///var/run/docker.sock',
  ),
  image: v.pipe(v.string(), v.minLength(1)),
  pull: v.optional(v.picklist(['never', 'missing']), 'never'),
  network: v.optional(v.pipe(v.string(), v.minLength(1)), 'none'),
  pids: v.optional(whole(16, 1_000_000), 512),
  provision_seconds: v.optional(whole(1, 86_400), CONTAINER_PROVISION_SECONDS),
};

const ProviderOne = v.strictObject({
  ...container,
  prices: v.strictObject({
    cpu_hourly_usd: hourly,
    memory_gib_hourly_usd: hourly,
    gpu_hourly_usd: v.optional(v.record(v.string(), hourly), {}),
  }),
  limits: v.strictObject({
    cpus: above0,
    memory_gib: above0,
    gpus: v.optional(whole(0, 64), 0),
    max_seconds: v.optional(whole(60, SECONDS_MAX), 86_400),
  }),
});

const ProviderThree = v.strictObject({
  ...container,
  limits: v.optional(v.strictObject({ max_seconds: v.optional(whole(60, SECONDS_MAX), 86_400) }), {}),
  offers: v.pipe(
    v.array(
      v.strictObject({
        id: v.pipe(v.string(), v.minLength(1), v.maxLength(100)),
        cpus: above0,
        memory_gib: above0,
        max_disk_gb: whole(1, 1_000_000),
        price_hourly_usd: hourly,
        /** How many of it may be leased at once. */
        count: v.optional(whole(1, 10_000), 1),
      }),
    ),
    v.minLength(1),
    v.check((offers) => new Set(offers.map(({ id }) => id)).size === offers.length, 'two offers have the same id'),
  ),
});

export const Compute = v.strictObject({
  provider_one: v.optional(ProviderOne),
  provider_two: v.optional(v.never('this version of Purser has no backend for provider_two yet: remove this section')),
  provider_three: v.optional(ProviderThree),
});

export type ProviderOneSettings = v.InferOutput<typeof ProviderOne>;
export type ProviderThreeSettings = v.InferOutput<typeof ProviderThree>;
export type ComputeSettings = v.InferOutput<typeof Compute>;
