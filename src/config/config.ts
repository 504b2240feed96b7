import { existsSync, readFileSync } from 'node:fs';
import { isIP } from 'node:net';
import { delimiter, isAbsolute, resolve } from 'node:path';
import * as v from 'valibot';
import { isPair, isScalar, LineCounter, type Node, parseDocument, visit } from 'yaml';
import { Compute, type ComputeSettings, partSecrets } from '../compute/settings.ts';
import { LOG_LEVELS, type LogLevel } from '../log.ts';
import { type Address, parseAddress } from '../net/listen.ts';
import { ConfigurationFault } from './fault.ts';
import { type ModelConfig, Router, type UncertainPolicy, type UpstreamConfig, url, wholeSeconds } from './router.ts';
import {
  Billing,
  type BillingKeys,
  type BillingSettings,
  Identity,
  type IdentitySettings,
  splitBilling,
  splitTransfer,
  Transfer,
  type TransferKeys,
  type TransferSettings,
} from './services.ts';

/**
 * The only reader of the environment and of purser.yaml (design, section 4). A flag overrides the environment, which
 * overrides the file, which overrides the default. All faults are reported at once, with file and line.
 */

const perMinute = (standard: number) => v.optional(v.pipe(v.number(), v.integer(), v.minValue(0)), standard);

const address = v.pipe(
  v.string(),
  v.rawTransform(({ dataset, addIssue, NEVER }) => {
    const parsed = parseAddress(dataset.value);
    if (parsed) return parsed;
    addIssue({ message: 'not an address of the form host:port' });
    return NEVER;
  }),
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

const Settings = v.strictObject({
  listen: v.optional(address),
  public_url: v.optional(url),
  trusted_proxies: v.optional(v.array(proxy), []),
  close_wait_seconds: v.optional(wholeSeconds(0, 300), 10),
  drain_seconds: v.optional(wholeSeconds(0, 3600)),
  log_level: v.optional(v.picklist(LOG_LEVELS)),
  metrics: v.optional(v.strictObject({ listen: address })),
  router: v.optional(Router, {}),
  ssh: v.optional(
    v.strictObject({
      listen: v.optional(address),
      public_host: v.optional(v.pipe(v.string(), v.minLength(1))),
      public_port: v.optional(v.pipe(v.number(), v.integer(), v.minValue(1), v.maxValue(65535))),
    }),
    {},
  ),
  compute: v.optional(Compute, {}),
  identity: v.optional(Identity),
  billing: v.optional(Billing),
  transfer: v.optional(Transfer),
  limits: v.optional(
    v.strictObject({
      wallet_requests_per_minute: perMinute(0),
      account_requests_per_minute: perMinute(0),
      failed_auth_per_minute: perMinute(600),
      released_per_minute: perMinute(60),
    }),
    {},
  ),
});
type Parsed = v.InferOutput<typeof Settings>;

export type Config = {
  dataDirectory: string;
  /** The YAML file that was read, if any. */
  file: string | undefined;
  listen: Address;
  /** `{base_url}` of the interface. If undefined, it follows from the address the server listens on. */
  publicUrl: string | undefined;
  logLevel: LogLevel;
  metrics: { listen: Address } | undefined;
  trustedProxies: readonly string[];
  closeWaitSeconds: number;
  drainSeconds: number;
  router: { upstreams: readonly UpstreamConfig[]; models: readonly ModelConfig[]; uncertain: UncertainPolicy };
  /** The SSH server, opened only when a slot is configured. The public host and port default to the address it listens on. */
  ssh: { listen: Address; publicHost: string | undefined; publicPort: number | undefined };
  compute: ComputeSettings;
  identity: IdentitySettings | undefined;
  billing: BillingSettings | undefined;
  transfer: TransferSettings | undefined;
  limits: Parsed['limits'];
};

/** Values that must never be printed, kept apart from the configuration. */
export type Secrets = {
  masterKey: { from: 'environment' | 'file' | 'data directory'; text: string | undefined; path: string | undefined };
  /** API keys by upstream name. */
  upstreamKeys: ReadonlyMap<string, string>;
  /** The providers' API keys by slot. */
  slotKeys: ReadonlyMap<string, string>;
  transferKeys: TransferKeys | undefined;
  billingKeys: BillingKeys | undefined;
};

export type Flags = { data?: string | undefined; config?: string | undefined };
type Environment = Readonly<Record<string, string | undefined>>;

/** Returns the absolute path of the data directory: from the flag, the environment, or the default. */
export function dataDirectoryOf(flags: Flags, env: Environment = process.env): string {
  return resolve(flags.data ?? (env.PURSER_DATA || undefined) ?? './purser-data');
}

/** Returns the absolute directories of PATH. */
export function searchPath(env: Environment = process.env): string[] {
  return (env.PATH ?? '').split(delimiter).filter(isAbsolute);
}

/** Default of `drain_seconds` without an upstream: how long requests in flight may take at a stop. */
const DRAIN_SECONDS = 10;

/** The longest upstream timeout, in seconds. By default a stop waits that long, so that no answer is cut off. */
const longestAnswer = (upstreams: readonly { timeout_seconds: number }[]) =>
  Math.max(DRAIN_SECONDS, ...upstreams.map((it) => it.timeout_seconds));

/**
 * Reads flags, environment and YAML into one frozen Config, and the secrets beside it.
 * Throws ConfigurationFault with every fault found, each as `file:line: path: what is wrong`.
 */
export function readConfig(flags: Flags, env: Environment = process.env): { config: Config; secrets: Secrets } {
  const dataDirectory = dataDirectoryOf(flags, env);
  const asked = flags.config ?? (env.PURSER_CONFIG || undefined);
  const standard = resolve(dataDirectory, 'purser.yaml');
  const file = asked ? resolve(asked) : existsSync(standard) ? standard : undefined;
  const faults: string[] = [];

  let settings: Parsed | undefined;
  if (file === undefined) settings = v.parse(Settings, {});
  else settings = readYaml(file, env, faults);

  const listen = fromEnvironment(env, 'PURSER_LISTEN', address, faults);
  const publicUrl = fromEnvironment(env, 'PURSER_PUBLIC_URL', url, faults);
  const logLevel = fromEnvironment(env, 'PURSER_LOG_LEVEL', v.picklist(LOG_LEVELS), faults);
  if (env.PURSER_MASTER_KEY && env.PURSER_MASTER_KEY_FILE)
    faults.push('environment: give PURSER_MASTER_KEY or PURSER_MASTER_KEY_FILE, not both');
  if (faults.length || !settings) throw new ConfigurationFault(faults);

  const { compute, slotKeys } = partSecrets(settings.compute);
  const { transfer, transferKeys } = splitTransfer(settings.transfer);
  const { billing, billingKeys } = splitBilling(settings.billing);
  const config: Config = {
    dataDirectory,
    file,
    listen: listen ?? settings.listen ?? { host: '127.0.0.1', port: 7420 },
    publicUrl: publicUrl ?? settings.public_url,
    logLevel: logLevel ?? settings.log_level ?? 'info',
    metrics: settings.metrics,
    trustedProxies: settings.trusted_proxies,
    closeWaitSeconds: settings.close_wait_seconds,
    drainSeconds: settings.drain_seconds ?? longestAnswer(settings.router.upstreams),
    router: {
      upstreams: settings.router.upstreams.map(({ api_key: _, ...upstream }) => upstream),
      models: settings.router.models,
      uncertain: settings.router.uncertain,
    },
    ssh: {
      listen: settings.ssh.listen ?? { host: '127.0.0.1', port: 7422 },
      publicHost: settings.ssh.public_host,
      publicPort: settings.ssh.public_port,
    },
    compute,
    identity: settings.identity,
    billing,
    transfer,
    limits: settings.limits,
  };
  const keys = settings.router.upstreams.flatMap((it) => (it.api_key ? [[it.name, it.api_key] as const] : []));
  return {
    config: Object.freeze(config),
    secrets: {
      masterKey: masterKeySource(env, dataDirectory),
      upstreamKeys: new Map(keys),
      slotKeys,
      transferKeys,
      billingKeys,
    },
  };
}

function masterKeySource(env: Environment, dataDirectory: string): Secrets['masterKey'] {
  if (env.PURSER_MASTER_KEY) return { from: 'environment', text: env.PURSER_MASTER_KEY, path: undefined };
  if (env.PURSER_MASTER_KEY_FILE) return { from: 'file', text: undefined, path: resolve(env.PURSER_MASTER_KEY_FILE) };
  return { from: 'data directory', text: undefined, path: resolve(dataDirectory, 'master.key') };
}

function fromEnvironment<S extends v.GenericSchema>(
  env: Environment,
  name: string,
  schema: S,
  faults: string[],
): v.InferOutput<S> | undefined {
  const text = env[name];
  if (text === undefined || text === '') return undefined;
  const parsed = v.safeParse(schema, text);
  if (parsed.success) return parsed.output;
  for (const issue of parsed.issues) faults.push(`environment: ${name}: ${issue.message}`);
  return undefined;
}

/**
 * The braces of `${NAME}` would end a YAML flow mapping. While YAML is parsed, two private-use characters stand in for
 * them.
 */
const [OPEN, CLOSE] = ['\ue000', '\ue001'];
const hideVariables = (text: string) => text.replace(/\$\{([A-Za-z_][A-Za-z0-9_]*)\}/g, `${OPEN}$1${CLOSE}`);
const HIDDEN = new RegExp(`${OPEN}([A-Za-z0-9_]+)${CLOSE}`, 'g');

function readYaml(file: string, env: Environment, faults: string[]): Parsed | undefined {
  let text: string;
  try {
    text = readFileSync(file, 'utf8');
  } catch (error) {
    faults.push(`${file}: cannot be read (${(error as NodeJS.ErrnoException).code})`);
    return undefined;
  }
  const lines = new LineCounter();
  const document = parseDocument(hideVariables(text), { lineCounter: lines, prettyErrors: false });
  const at = (offset: number | undefined) => `${file}:${offset === undefined ? 1 : lines.linePos(offset).line}`;
  for (const error of document.errors) faults.push(`${at(error.pos[0])}: ${error.message}`);
  if (document.errors.length) return undefined;

  let isResolved = true;
  visit(document, {
    Alias(_, node) {
      if (node.resolve(document)) return;
      isResolved = false;
      faults.push(`${at(node.range?.[0])}: *${node.source} names no anchor before it`);
    },
    Scalar(_, node, path) {
      if (typeof node.value === 'string')
        node.value = node.value.replace(HIDDEN, (_whole, name: string) => {
          const value = env[name];
          if (value === undefined) faults.push(`${at(node.range?.[0])}: \${${name}} is not set in the environment`);
          return value ?? '';
        });
      // Prices are exact: an unquoted one is taken from the source text, never through a floating-point number.
      const priced = path.some((step) => isPair(step) && isScalar(step.key) && /^pric/.test(String(step.key.value)));
      if (priced && typeof node.value === 'number' && node.source !== undefined) node.value = node.source;
    },
  });

  if (!isResolved) return undefined;

  const parsed = v.safeParse(Settings, document.toJS() ?? {});
  if (parsed.success) return parsed.output;
  for (const issue of parsed.issues) {
    const path = (issue.path ?? []).map((step) => step.key);
    let node: unknown;
    for (let depth = path.length; depth >= 0 && !node; depth--) node = document.getIn(path.slice(0, depth), true);
    const where = at((node as Node | undefined)?.range?.[0]);
    const name = path.join('.') || 'the file';
    // The value is left out on purpose: it may be a secret in the wrong place.
    const what = issue.type === 'strict_object' && issue.expected === 'never' ? 'unknown setting' : plain(issue);
    faults.push(`${where}: ${name}: ${what}`);
  }
  return undefined;
}

function plain(issue: v.BaseIssue<unknown>): string {
  if (issue.received === 'undefined') return `is required (${issue.expected})`;
  return issue.message.replace(/ but received .*$/, '');
}

/** Returns the configuration in force, as JSON without secrets: `[set]` stands for each of them. */
export function printable(config: Config, secrets: Secrets): Record<string, unknown> {
  const { router, compute, ...rest } = config;
  const slots = Object.entries(compute).map(([slot, settings]) => [
    slot,
    { ...settings, ...(secrets.slotKeys.has(slot) ? { api_key: '[set]' } : {}) },
  ]);
  return JSON.parse(
    JSON.stringify(
      {
        ...rest,
        masterKey: secrets.masterKey.from,
        ...(config.transfer
          ? { transfer: { ...config.transfer, access_key_id: '[set]', secret_access_key: '[set]' } }
          : {}),
        ...(config.billing
          ? {
              billing: {
                stripe: {
                  ...config.billing.stripe,
                  secret_key: '[set]',
                  webhook_secrets: secrets.billingKeys?.webhook_secrets.map(() => '[set]'),
                },
              },
            }
          : {}),
        compute: Object.fromEntries(slots),
        router: {
          ...router,
          upstreams: router.upstreams.map((it) => ({
            ...it,
            ...(secrets.upstreamKeys.has(it.name) ? { api_key: '[set]' } : {}),
          })),
        },
      },
      (_, value) => (typeof value === 'bigint' ? value.toString() : value),
    ),
  );
}
