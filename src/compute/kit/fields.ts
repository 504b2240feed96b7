import * as v from 'valibot';
import { formatUsd, Nanos, parseDecimal } from '../../base/money.ts';
import { writtenAs } from '../../base/written.ts';

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
  writtenAs((nanos: bigint) => formatUsd(Nanos(nanos))),
);

/** The path of a file that is read when it is needed. */
export const file = v.pipe(v.string(), v.minLength(1, 'must be the path of a file'));

export const whole = (min: number, max: number) => v.pipe(v.number(), v.integer(), v.minValue(min), v.maxValue(max));
export const above0 = v.pipe(v.number(), v.gtValue(0), v.maxValue(1_000_000));

/** The longest lease, in seconds. */
const maxSeconds = v.optional(whole(60, SECONDS_MAX), 86_400);
export const limits = v.optional(v.strictObject({ max_seconds: maxSeconds }), {});

/** The disk space in GB that a lease of provider_one may write unless the operator sets another. */
export const DISK_GB = 20;

/** The prices and limits of a lease that is sold by its size, as provider_one's are. */
export const sized = {
  prices: v.strictObject({
    cpu_hourly_usd: hourly,
    memory_gib_hourly_usd: hourly,
    gpu_hourly_usd: v.optional(v.record(v.string(), hourly), {}),
  }),
  /** The limits of one lease. */
  limits: v.strictObject({
    cpus: above0,
    memory_gib: above0,
    gpus: v.optional(whole(0, 64), 0),
    /** The disk space that a lease may write. It is not sold separately. */
    disk_gb: v.optional(whole(1, 1_000_000), DISK_GB),
    max_seconds: maxSeconds,
  }),
};

type Size = { cpus: number; memory_gib: number };
/** The capacity for all leases together. */
export const capacity = v.optional(v.strictObject({ cpus: above0, memory_gib: above0 }));
/** Checks that a lease of the largest size has room. */
export const checkCapacity = <S extends { limits: Size; capacity?: Size | undefined }>() =>
  v.check<S, string>(
    ({ limits, capacity: all = limits }) => limits.cpus <= all.cpus && limits.memory_gib <= all.memory_gib,
    'one lease may be larger than this: lower its limits',
  );

const offerFields = {
  id: v.pipe(v.string(), v.minLength(1), v.maxLength(100)),
  cpus: above0,
  memory_gib: above0,
  max_disk_gb: whole(1, 1_000_000),
  price_hourly_usd: hourly,
};
/** The number of leases that an offer takes at once. */
export const offerCount = v.optional(whole(1, 10_000), 1);
/** Describes offers of a size, each with an id of its own; `entries` are the fields that they have beside those of every engine. */
export const offersOf = <E extends v.ObjectEntries>(entries: E) =>
  v.pipe(
    v.array(v.strictObject({ ...offerFields, ...entries })),
    v.minLength(1),
    v.check(
      (offers) => new Set(offers.map((it) => (it as { id: string }).id)).size === offers.length,
      'two offers have the same id',
    ),
  );

/** The time a machine may take from its order to its first answer, in seconds. */
export const CLOUD_PROVISION_SECONDS = 900;

/** The public key of an SSH host. */
export const hostKey = v.pipe(
  v.string(),
  v.trim(),
  v.regex(
    /^(ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(256|384|521)) [A-Za-z0-9+/]+=*( .*)?$/,
    'must be a public key, as in /etc/ssh/ssh_host_ed25519_key.pub of the host',
  ),
);
