import { isIP } from 'node:net';
import { isAbsolute } from 'node:path';
import * as v from 'valibot';
import type { LogFormat, LogLevel } from '../base/log.ts';
import { ed25519KeyOf } from '../base/ssh-signature.ts';
import { writtenAs } from '../base/written.ts';
import { Compute } from '../compute/settings.ts';
import { formatAddress, parseAddress } from '../net/listen.ts';
import { Accounts } from './accounts.ts';
import { EventSettings } from './events.ts';
import { OpenTelemetry } from './opentelemetry.ts';
import { baseUrl, Router, wholeSeconds } from './router.ts';
import { Billing, Identity, Transfer } from './services.ts';

const counted = (min: number, max: number) => v.pipe(v.number(), v.integer(), v.minValue(min), v.maxValue(max));
const perMinute = (standard: number) => v.optional(v.pipe(v.number(), v.integer(), v.minValue(0)), standard);

/** An address to listen on. */
export const address = v.pipe(
  v.string(),
  v.rawTransform(({ dataset, addIssue, NEVER }) => {
    const parsed = parseAddress(dataset.value);
    if (parsed) return parsed;
    addIssue({ message: 'not an address of the form host:port, as 127.0.0.1:7420' });
    return NEVER;
  }),
  writtenAs(formatAddress),
);
const proxy = v.pipe(
  v.string(),
  v.check((text) => {
    const [ip, bits, ...rest] = text.split('/');
    const version = isIP(ip ?? '');
    if (!version || rest.length) return false;
    return bits === undefined || (/^\d{1,3}$/.test(bits) && Number(bits) <= (version === 4 ? 32 : 128));
  }, 'not an IP address or a network in CIDR notation'),
);

const releaseKey = v.pipe(
  v.string(),
  v.check((text) => ed25519KeyOf(text) !== undefined, 'not a public key of the form ssh-ed25519 AAAA…'),
);

const absolutePath = v.pipe(v.string(), v.check(isAbsolute, 'not an absolute path'));

const UNIT_SECONDS: Record<string, number> = { s: 1, m: 60, h: 3600, d: 86_400, w: 604_800 };
const DURATION_RULE = 'not a duration, as 30m, 6h or 1d';
/** A duration, as "90s", "30m", "6h", "1d" or "2w", in seconds. */
const duration = v.pipe(
  v.string(DURATION_RULE),
  v.regex(/^[1-9]\d{0,8}[smhdw]$/, DURATION_RULE),
  v.transform((text) => Number(text.slice(0, -1)) * (UNIT_SECONDS[text.slice(-1)] as number)),
  writtenAs(formatDuration),
);

function formatDuration(seconds: number): string {
  const [unit, size] = Object.entries(UNIT_SECONDS).findLast(([, it]) => seconds % it === 0) as [string, number];
  return `${seconds / size}${unit}`;
}

export const LOG_LEVELS = [
  'fatal',
  'error',
  'warn',
  'info',
  'debug',
  'trace',
  'silent',
] as const satisfies readonly LogLevel[];

const LOG_FORMATS = ['text', 'json'] as const satisfies readonly LogFormat[];

/** Default of `drain_seconds` without an upstream: how long requests in flight may take at a stop. */
const DRAIN_SECONDS = 10;

/** Returns the longest upstream timeout, in seconds. By default a stop waits this long, so that no answer is cut off. */
const longestAnswer = (upstreams: readonly { timeout_seconds: number }[]) =>
  Math.max(DRAIN_SECONDS, ...upstreams.map((it) => it.timeout_seconds));

/** The schema of purser.yaml (design, section 4). */
export const Settings = v.pipe(
  v.strictObject({
    listen: v.optional(address, '127.0.0.1:7420'),
    /** `{base_url}` of the interface. If unset, it follows from the address the server listens on. */
    public_url: v.optional(baseUrl),
    /** The certificate with which `listen` speaks TLS, and its private key, in PEM. */
    tls: v.optional(v.strictObject({ cert: absolutePath, key: absolutePath })),
    trusted_proxies: v.optional(v.array(proxy), []),
    close_wait_seconds: v.optional(wholeSeconds(0, 300), 10),
    /** Defaults to the longest upstream timeout: no answer is cut off. */
    drain_seconds: v.optional(wholeSeconds(0, 3600)),
    /** The depth to which wallets may be nested below an account's, and the most open children of one. */
    child_wallets: v.optional(
      v.strictObject({ depth: v.optional(counted(0, 16), 4), open: v.optional(counted(0, 100_000), 1000) }),
      {},
    ),
    log_level: v.optional(v.picklist(LOG_LEVELS), 'info'),
    /** If unset, text on a terminal, JSON elsewhere. */
    log_format: v.optional(v.picklist(LOG_FORMATS)),
    /** A machine that uses at least this many percent of one processor is busy. */
    keep: v.optional(v.strictObject({ cpu_percent: v.optional(counted(1, 100), 5) }), {}),
    /** Backups that the server makes: the seconds between two, how many are kept, and where. */
    backup: v.optional(
      v.strictObject({
        every: v.pipe(duration, v.minValue(60, 'less than a minute')),
        keep: v.optional(counted(1, 10_000), 7),
        directory: absolutePath,
      }),
    ),
    /** The longest that a commit may take before Purser ends: its disk is gone, or another server's by now. */
    storage: v.optional(v.strictObject({ stall_seconds: v.optional(wholeSeconds(2, 300), 10) }), {}),
    metrics: v.optional(v.strictObject({ listen: address })),
    opentelemetry: v.optional(OpenTelemetry),
    /** True if the page is served. */
    ui: v.optional(v.boolean(), true),
    router: v.optional(Router, {}),
    /** The SSH server, opened only when a slot is configured. The public host and port default to the address it listens on. */
    ssh: v.optional(
      v.strictObject({
        listen: v.optional(address, '127.0.0.1:7422'),
        public_host: v.optional(v.pipe(v.string(), v.minLength(1))),
        public_port: v.optional(v.pipe(v.number(), v.integer(), v.minValue(1), v.maxValue(65535))),
      }),
      {},
    ),
    /** Host names of the ports of leases, one for each: `*.` before their common part, which is stored. */
    ports: v.optional(
      v.strictObject({
        host: v.optional(
          v.pipe(
            v.string(),
            v.toLowerCase(),
            v.regex(/^\*\.[0-9a-z-]+(\.[0-9a-z-]+)*(:\d{1,5})?$/, 'not a name such as *.ports.example'),
            v.transform((text) => text.slice('*.'.length)),
            writtenAs((host: string) => `*.${host}`),
          ),
        ),
      }),
      {},
    ),
    compute: v.optional(Compute, {}),
    accounts: v.optional(Accounts, {}),
    identity: v.optional(Identity),
    /** Public keys, of which one has to have signed what `purser upgrade` installs. */
    upgrade: v.optional(v.strictObject({ trusted_keys: v.optional(v.array(releaseKey), []) }), {}),
    billing: v.optional(Billing),
    transfer: v.optional(Transfer),
    events: v.optional(EventSettings, {}),
    limits: v.optional(
      v.strictObject({
        wallet_requests_per_minute: perMinute(0),
        account_requests_per_minute: perMinute(0),
        failed_auth_per_minute: perMinute(600),
        released_per_minute: perMinute(60),
        funds_wait_seconds: v.optional(v.pipe(v.number(), v.integer(), v.minValue(0), v.maxValue(600)), 30),
        download_bytes: v.optional(v.pipe(v.number(), v.safeInteger(), v.minValue(1)), 1024 ** 3),
      }),
      {},
    ),
  }),
  v.transform((it) => ({ ...it, drain_seconds: it.drain_seconds ?? longestAnswer(it.router.upstreams) })),
);
export type Parsed = v.InferOutput<typeof Settings>;

/** The names of the settings at the top of purser.yaml. */
export const SETTING_NAMES = Object.keys(Settings.entries) as (keyof Parsed)[];
