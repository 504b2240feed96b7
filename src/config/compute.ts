import { userInfo } from 'node:os';
import * as v from 'valibot';
import { parseDecimal } from '../money.ts';

/** Schemas of the settings of the three slots (design, section 4). Alternatives are variants of a schema, not optional fields. */

const NANOS_DECIMALS = 9;
const HOURLY_MAX = 10n ** 15n; // USD 1,000,000 an hour. More is taken for a typing error.

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
const whole = (min: number, max: number) => v.pipe(v.number(), v.integer(), v.minValue(min), v.maxValue(max));
const above0 = v.pipe(v.number(), v.gtValue(0), v.maxValue(1_000_000));
const SECONDS_MAX = 30 * 86_400;
const CONTAINER_PROVISION_SECONDS = 60;
const CLOUD_PROVISION_SECONDS = 900;
/** Default image. It has what every lease needs: a shell, Python and the CUDA runtime. Many of Vast's hosts have it cached. */
const VAST_IMAGE = 'pytorch/pytorch:2.4.1-cuda12.4-cudnn9-runtime';

/** The message for an unknown backend. `local` has its own message: the demo shows that name, and somebody will try it. */
const notThis = ({ expected, received }: v.BaseIssue<unknown>) =>
  received === '"local"'
    ? 'local is for `purser demo` only: it does not isolate a lease from this machine'
    : `Invalid type: Expected ${expected} but received ${received}`;

const container = {
  backend: v.literal('container'),
  socket: v.optional(
    v.pipe(v.string(), v.regex(/^unix:\/\/\//, 'must be unix:///path of the engine’s socket')),
    'unix:///var/run/docker.sock',
  ),
  image: v.pipe(v.string(), v.minLength(1)),
  pull: v.optional(v.picklist(['never', 'missing']), 'never'),
  network: v.optional(
    v.pipe(
      v.string(),
      v.regex(/^(?!host$)[A-Za-z0-9][\w.-]*$/, 'must be none, or the name of a network that you made on the engine'),
    ),
    'none',
  ),
  pids: v.optional(whole(16, 1_000_000), 512),
  provision_seconds: v.optional(whole(1, 86_400), CONTAINER_PROVISION_SECONDS),
};

/** A GPU as its vendor's tools name it: an index, `GPU-` and its UUID, or a part of one. */
const device = v.pipe(
  v.union([v.string(), v.number()], 'must be an index or a UUID'),
  v.transform(String),
  v.regex(/^[A-Za-z0-9][\w:.-]*$/, 'must be an index or a UUID, as nvidia-smi -L shows them'),
);

/** The devices of each GPU type. Each device is leased to one tenant at a time. */
const gpuDevices = v.pipe(
  v.record(v.string(), v.pipe(v.array(device), v.minLength(1, 'has no device'))),
  v.check((types) => {
    const all = Object.values(types).flat();
    return new Set(all).size === all.length;
  }, 'has a device twice'),
);

const ProviderOne = v.pipe(
  v.strictObject({
    ...container,
    prices: v.strictObject({
      cpu_hourly_usd: hourly,
      memory_gib_hourly_usd: hourly,
      gpu_hourly_usd: v.optional(v.record(v.string(), hourly), {}),
    }),
    /** Limits of one lease. */
    limits: v.strictObject({
      cpus: above0,
      memory_gib: above0,
      gpus: v.optional(whole(0, 64), 0),
      max_seconds: v.optional(whole(60, SECONDS_MAX), 86_400),
    }),
    /** Limits of all leases together. */
    capacity: v.optional(v.strictObject({ cpus: above0, memory_gib: above0 })),
    gpu_devices: v.optional(gpuDevices),
    /** How GPUs are requested from Docker. Podman always gets their CDI names. */
    gpu_mode: v.optional(v.picklist(['nvidia', 'cdi']), 'nvidia'),
  }),
  v.forward(
    v.check(
      ({ limits, prices, gpu_devices }) =>
        limits.gpus === 0 || gpu_devices !== undefined || Object.keys(prices.gpu_hourly_usd).length <= 1,
      'several GPU types are priced: say in gpu_devices which devices are of which type',
    ),
    ['prices'],
  ),
  v.forward(
    v.check(
      ({ limits, gpu_devices }) => gpu_devices === undefined || limits.gpus > 0,
      'limits.gpus is 0: nobody can lease these',
    ),
    ['gpu_devices'],
  ),
  v.forward(
    v.check(({ prices, gpu_devices }) => {
      const types = Object.keys(prices.gpu_hourly_usd);
      return gpu_devices === undefined || Object.keys(gpu_devices).sort().join() === types.sort().join();
    }, 'does not name the same GPU types as prices.gpu_hourly_usd'),
    ['gpu_devices'],
  ),
  v.forward(
    v.check(
      ({ limits, capacity }) =>
        capacity === undefined || (limits.cpus <= capacity.cpus && limits.memory_gib <= capacity.memory_gib),
      'one lease may be larger than this: lower its limits',
    ),
    ['capacity'],
  ),
);

const Vast = v.strictObject({
  backend: v.literal('vast'),
  api_key: v.pipe(v.string(), v.minLength(8)),
  base_url: v.optional(
    v.pipe(
      v.string(),
      v.maxLength(500),
      v.check((it) => /^https?:\/\/[^\s'?#]+$/.test(it) && URL.canParse(it), 'not an http:// or https:// address'),
      v.transform((it) => it.replace(/\/+$/, '')),
    ),
    'https://console.vast.ai',
  ),
  /** Added to Vast's price. It has to cover bandwidth, which Vast bills separately. At most two decimals. */
  markup_percent: v.optional(
    v.pipe(
      v.number(),
      v.minValue(0),
      v.maxValue(1000),
      v.check((it) => Number(it.toFixed(2)) === it, 'has more than two decimals'),
    ),
    0,
  ),
  image: v.optional(v.pipe(v.string(), v.minLength(1), v.maxLength(300)), VAST_IMAGE),
  runtype: v.optional(v.picklist(['ssh_direct', 'ssh_proxy']), 'ssh_direct'),
  provision_seconds: v.optional(whole(60, 86_400), CLOUD_PROVISION_SECONDS),
});

const ContainerThree = v.strictObject({
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
        /** How many leases of this offer may run at once. */
        count: v.optional(whole(1, 10_000), 1),
      }),
    ),
    v.minLength(1),
    v.check((offers) => new Set(offers.map(({ id }) => id)).size === offers.length, 'two offers have the same id'),
  ),
});

/** Each host has one tenant at a time. */
const Ssh = v.strictObject({
  backend: v.literal('ssh'),
  hosts: v.pipe(
    v.array(
      v.strictObject({
        chip: v.pipe(v.string(), v.minLength(1), v.maxLength(100)),
        /** The host is leased only when at least this many GPUs respond. */
        gpus: v.optional(whole(0, 64), 0),
        address: v.pipe(v.string(), v.regex(/^[\w.:-]+$/, 'must be a name or an address')),
        port: v.optional(whole(1, 65_535), 22),
        user: v.optional(v.literal('root', 'must be root: tenants are users that it makes and removes'), 'root'),
        host_key: v.pipe(
          v.string(),
          v.trim(),
          v.regex(
            /^(ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(256|384|521)) [A-Za-z0-9+/]+=*( .*)?$/,
            'must be a public key, as in /etc/ssh/ssh_host_ed25519_key.pub of the host',
          ),
        ),
        identity_file: v.pipe(v.string(), v.minLength(1)),
        /** Where the host records its tenant and the user ids that it has assigned. */
        state_directory: v.optional(
          v.pipe(v.string(), v.regex(/^(\/[\w-][\w.-]*)+$/, 'must be a plain absolute path')),
          '/var/lib/purser-pool',
        ),
        price_hourly_usd: hourly,
      }),
    ),
    v.minLength(1),
    v.check(
      (hosts) => new Set(hosts.map(({ address, port }) => `${address}:${port}`)).size === hosts.length,
      'two hosts have the same address and port',
    ),
    v.check(
      (hosts) => hosts.every((a) => hosts.every((b) => a.chip !== b.chip || a.price_hourly_usd === b.price_hourly_usd)),
      'hosts of one chip have different prices',
    ),
  ),
  limits: v.optional(v.strictObject({ max_seconds: v.optional(whole(60, SECONDS_MAX), 86_400) }), {}),
  provision_seconds: v.optional(whole(1, 86_400), 60),
});

/** Returns the name of the user that this process runs as, or undefined if it has none. */
function ownUser(): string | undefined {
  try {
    return userInfo().username;
  } catch {
    return undefined; // A user id without a name.
  }
}
const notOurs = (name: string) => name !== 'root' && name !== ownUser();
const word = (of: RegExp) => v.pipe(v.string(), v.maxLength(200), v.regex(of, 'has characters that Slurm cannot take'));

const jobUser = v.pipe(
  word(/^[A-Za-z_][\w.-]*$/),
  v.check(notOurs, 'must be neither root nor the user that Purser runs as: what is leased runs as this user'),
);

/** Jobs on a Slurm cluster. Each chip names the resources that a job requests. */
const SlurmSlot = v.strictObject({
  backend: v.literal('slurm'),
  /** The user that all leases run as. */
  job_user: v.optional(jobUser),
  /** The users that leases run as. Each user has one lease at a time. */
  job_users: v.optional(
    v.pipe(
      v.array(jobUser),
      v.minLength(1, 'names nobody'),
      v.maxLength(1000),
      v.check((names) => new Set(names).size === names.length, 'has a user twice'),
    ),
  ),
  /** Whether the job users run nothing but Purser's jobs. If so, any other job of theirs is ended like an orphan. */
  exclusive_user: v.optional(v.boolean(), false),
  partition: v.optional(word(/^[\w.][\w.,-]*$/)),
  /** Path of Slurm's configuration, if Slurm does not find it by itself. */
  slurm_conf: v.optional(v.pipe(v.string(), v.regex(/^\//, 'must be an absolute path'))),
  chips: v.pipe(
    v.record(
      v.pipe(v.string(), v.minLength(1), v.maxLength(100)),
      v.strictObject({
        gres: v.optional(word(/^[A-Za-z][\w.:,-]*$/)),
        cpus: whole(1, 100_000),
        memory_gib: above0,
        price_hourly_usd: hourly,
      }),
    ),
    v.check((chips) => Object.keys(chips).length > 0, 'has no chip'),
  ),
  limits: v.optional(v.strictObject({ max_seconds: v.optional(whole(60, SECONDS_MAX), 86_400) }), {}),
  provision_seconds: v.optional(whole(1, 86_400), CLOUD_PROVISION_SECONDS),
});

const Slurm = v.pipe(
  SlurmSlot,
  v.forward(
    v.check(
      ({ job_user, job_users }) => (job_user === undefined) !== (job_users === undefined),
      'give either job_user or job_users',
    ),
    ['job_user'],
  ),
);

export const Compute = v.strictObject({
  provider_one: v.optional(v.variant('backend', [ProviderOne], notThis)),
  provider_two: v.optional(v.variant('backend', [Ssh, Slurm], notThis)),
  provider_three: v.optional(v.variant('backend', [ContainerThree, Vast], notThis)),
});

export type ProviderOneSettings = v.InferOutput<typeof ProviderOne>;
export type ProviderThreeSettings = v.InferOutput<typeof ContainerThree>;
export type VastSettings = WithoutKey<v.InferOutput<typeof Vast>>;

type Parsed = v.InferOutput<typeof Compute>;
type WithoutKey<S> = S extends { api_key: string } ? Omit<S, 'api_key'> : S;
export type SshSettings = v.InferOutput<typeof Ssh>;
export type SlurmSettings = v.InferOutput<typeof Slurm>;
export type ComputeSettings = { [K in keyof Parsed]: WithoutKey<Parsed[K]> };

/** Settings of the `local` backend: plain processes on this machine. Only the code of `purser demo` can set it; no file can. */
export type LocalSettings = { backend: 'local'; provision_seconds: number } & (
  | Pick<ProviderOneSettings, 'prices' | 'limits'>
  | { chips: Record<string, { price_hourly_usd: bigint }>; limits: { max_seconds: number } }
  | Pick<ProviderThreeSettings, 'offers' | 'limits'>
);
export type LocalCompute = { [K in keyof Parsed]: LocalSettings };

/** Separates the settings from their secrets. Returns the secrets by slot. */
export function splitSecrets(parsed: Parsed): { compute: ComputeSettings; slotKeys: ReadonlyMap<string, string> } {
  const slotKeys = new Map<string, string>();
  const plain = Object.entries(parsed).map(([slot, settings]) => {
    if (!settings || !('api_key' in settings)) return [slot, settings];
    const { api_key: key, ...rest } = settings;
    slotKeys.set(slot, key);
    return [slot, rest];
  });
  return { compute: Object.fromEntries(plain) as ComputeSettings, slotKeys };
}
