import { existsSync, readFileSync, statSync } from 'node:fs';
import { isIP } from 'node:net';
import { delimiter, isAbsolute, resolve } from 'node:path';
import * as v from 'valibot';
import { isPair, isScalar, LineCounter, type Node, parseDocument, visit } from 'yaml';
import { Compute } from '../compute/settings.ts';
import type { LogLevel } from '../log.ts';
import { parseAddress } from '../net/listen.ts';
import { parseJson } from '../parse-json.ts';
import { EventSettings } from './events.ts';
import { deepestIn, excessIn, lineAt } from './excess.ts';
import { ConfigurationFault } from './fault.ts';
import { decodeMasterKey, MASTER_KEY_RULE } from './master-key.ts';
import { OpenTelemetry } from './opentelemetry.ts';
import { baseUrl, Router, wholeSeconds } from './router.ts';
import { Secret } from './secret.ts';
import { Billing, Identity, Transfer } from './services.ts';
import { HIDDEN_VARIABLE, hideVariables } from './variables.ts';

/**
 * The only reader of the environment and of purser.yaml (design, section 4). A flag overrides the environment, which
 * overrides the file, which overrides the default. All faults are reported at once, with file and line.
 */

const counted = (min: number, max: number) => v.pipe(v.number(), v.integer(), v.minValue(min), v.maxValue(max));
const perMinute = (standard: number) => v.optional(v.pipe(v.number(), v.integer(), v.minValue(0)), standard);

const address = v.pipe(
  v.string(),
  v.rawTransform(({ dataset, addIssue, NEVER }) => {
    const parsed = parseAddress(dataset.value);
    if (parsed) return parsed;
    addIssue({ message: 'not an address of the form host:port, as 127.0.0.1:7420' });
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

const UNIT_SECONDS: Record<string, number> = { s: 1, m: 60, h: 3600, d: 86_400, w: 604_800 };
/** A duration, as "90s", "30m", "6h", "1d" or "2w", in seconds. */
const duration = v.pipe(
  v.string(),
  v.regex(/^[1-9]\d{0,8}[smhdw]$/, 'not a duration, as 30m, 6h or 1d'),
  v.transform((text) => Number(text.slice(0, -1)) * (UNIT_SECONDS[text.slice(-1)] as number)),
);

const LOG_LEVELS = [
  'fatal',
  'error',
  'warn',
  'info',
  'debug',
  'trace',
  'silent',
] as const satisfies readonly LogLevel[];

/** Default of `drain_seconds` without an upstream: how long requests in flight may take at a stop. */
const DRAIN_SECONDS = 10;

/** The longest upstream timeout, in seconds. By default a stop waits that long, so that no answer is cut off. */
const longestAnswer = (upstreams: readonly { timeout_seconds: number }[]) =>
  Math.max(DRAIN_SECONDS, ...upstreams.map((it) => it.timeout_seconds));

const Settings = v.pipe(
  v.strictObject({
    listen: v.optional(address, '127.0.0.1:7420'),
    /** `{base_url}` of the interface. If unset, it follows from the address the server listens on. */
    public_url: v.optional(baseUrl),
    trusted_proxies: v.optional(v.array(proxy), []),
    close_wait_seconds: v.optional(wholeSeconds(0, 300), 10),
    /** If unset, the longest upstream timeout: no answer is cut off. */
    drain_seconds: v.optional(wholeSeconds(0, 3600)),
    /** How deep wallets may be nested below an account's, and how many open children one may have. */
    child_wallets: v.optional(
      v.strictObject({ depth: v.optional(counted(0, 16), 4), open: v.optional(counted(0, 100_000), 1000) }),
      {},
    ),
    log_level: v.optional(v.picklist(LOG_LEVELS), 'info'),
    /** Of one processor, in percent: a machine that uses at least that much is busy. */
    keep: v.optional(v.strictObject({ cpu_percent: v.optional(counted(1, 100), 5) }), {}),
    /** Backups that the server makes: the seconds between two, how many stay, and where. */
    backup: v.optional(
      v.strictObject({
        every: v.pipe(duration, v.minValue(60, 'less than a minute')),
        keep: v.optional(counted(1, 10_000), 7),
        directory: v.pipe(v.string(), v.check(isAbsolute, 'not an absolute path')),
      }),
    ),
    metrics: v.optional(v.strictObject({ listen: address })),
    opentelemetry: v.optional(OpenTelemetry),
    /** Whether the page is served. */
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
    /** Host names of the ports of leases, one for each: `*.` and what they have in common, which is kept. */
    ports: v.optional(
      v.strictObject({
        host: v.optional(
          v.pipe(
            v.string(),
            v.toLowerCase(),
            v.regex(/^\*\.[0-9a-z-]+(\.[0-9a-z-]+)*(:\d{1,5})?$/, 'not a name such as *.ports.example'),
            v.transform((text) => text.slice('*.'.length)),
          ),
        ),
      }),
      {},
    ),
    compute: v.optional(Compute, {}),
    identity: v.optional(Identity),
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
      }),
      {},
    ),
  }),
  v.transform((it) => ({ ...it, drain_seconds: it.drain_seconds ?? longestAnswer(it.router.upstreams) })),
);
type Parsed = v.InferOutput<typeof Settings>;
/** The names of the settings at the top of purser.yaml. */
export const SETTING_NAMES = Object.keys(Settings.entries) as (keyof Parsed)[];

/** The settings in force, by their names in purser.yaml. */
export type Config = Readonly<Parsed> & {
  readonly dataDirectory: string;
  /** The YAML file that was read, if any. */
  readonly file: string | undefined;
  readonly masterKey: MasterKeySource;
};

/** Where the master key is: its text, or the path of its file. */
export type MasterKeySource = {
  from: 'environment' | 'file' | 'data directory';
  text: Secret | undefined;
  path: string | undefined;
};

export type Flags = {
  data?: string | undefined;
  config?: string | undefined;
  /** Leaves the master key unread: it is lost, known already, or examined by the caller. */
  withoutKey?: boolean | undefined;
};
type Environment = Readonly<Record<string, string | undefined>>;

/** Returns the absolute path of the data directory: from the flag, the environment, or the default. */
export function dataDirectoryOf(flags: Flags, env: Environment = process.env): string {
  return resolve(flags.data ?? (env.PURSER_DATA || undefined) ?? './purser-data');
}

/** Returns the path of the settings: what the flag or the environment name, or purser.yaml in the data directory if it is there. */
export function settingsFile(flags: Flags, env: Environment = process.env): string | undefined {
  const asked = flags.config ?? (env.PURSER_CONFIG || undefined);
  const standard = resolve(dataDirectoryOf(flags, env), 'purser.yaml');
  return asked ? resolve(asked) : existsSync(standard) ? standard : undefined;
}

/** Returns the environment of this process, for programs that it starts. */
export const inheritedEnvironment = (): Environment => process.env;

/** Returns the absolute directories of PATH. */
export function searchPath(): string[] {
  return (process.env.PATH ?? '').split(delimiter).filter(isAbsolute);
}

/**
 * Reads flags, environment and YAML into one frozen Config.
 * Throws ConfigurationFault with every fault found, each as `file:line: path: what is wrong`.
 */
export function readConfig(flags: Flags, env: Environment = process.env): Config {
  const dataDirectory = dataDirectoryOf(flags, env);
  const file = settingsFile(flags, env);
  const faults: string[] = [];

  let settings: Parsed | undefined;
  if (file === undefined) settings = v.parse(Settings, {});
  else settings = readYaml(file, env, faults);

  const listen = fromEnvironment(env, 'PURSER_LISTEN', address, faults);
  const publicUrl = fromEnvironment(env, 'PURSER_PUBLIC_URL', baseUrl, faults);
  const logLevel = fromEnvironment(env, 'PURSER_LOG_LEVEL', v.picklist(LOG_LEVELS), faults);
  const faultOfKey = faultOfMasterKey(env, flags.withoutKey ?? false);
  if (faultOfKey) faults.push(`environment: ${faultOfKey}`);
  const config = settings && {
    ...settings,
    listen: listen ?? settings.listen,
    public_url: publicUrl ?? settings.public_url,
    log_level: logLevel ?? settings.log_level,
    dataDirectory,
    file,
    masterKey: masterKeySource(env, dataDirectory),
  };
  const metrics = config?.metrics?.listen;
  if (metrics?.port && metrics.port === config?.listen.port && metrics.host === config.listen.host)
    faults.push(`metrics.listen: ${metrics.host}:${metrics.port} is the address of \`listen\`: give it one of its own`);
  if (faults.length || !config) throw new ConfigurationFault(faults);
  return Object.freeze(config);
}

function masterKeySource(env: Environment, dataDirectory: string): MasterKeySource {
  if (env.PURSER_MASTER_KEY)
    return { from: 'environment', text: new Secret(env.PURSER_MASTER_KEY.trim()), path: undefined };
  if (env.PURSER_MASTER_KEY_FILE) return { from: 'file', text: undefined, path: resolve(env.PURSER_MASTER_KEY_FILE) };
  return { from: 'data directory', text: undefined, path: resolve(dataDirectory, 'master.key') };
}

/** Says what is wrong with the master key that the environment gives; never contains the key. */
function faultOfMasterKey(env: Environment, isUnread: boolean): string | undefined {
  const { PURSER_MASTER_KEY: text, PURSER_MASTER_KEY_FILE: file } = env;
  if (text && file) return 'give PURSER_MASTER_KEY or PURSER_MASTER_KEY_FILE, not both';
  if (isUnread) return undefined;
  if (text) return decodeMasterKey(text) ? undefined : `PURSER_MASTER_KEY: ${MASTER_KEY_RULE}`;
  if (!file) return undefined;
  const path = resolve(file);
  try {
    // A pipe, as of `<(pass show key)`, can be read only once.
    if (statSync(path).isFIFO() || decodeMasterKey(readFileSync(path, 'utf8'))) return undefined;
    return `PURSER_MASTER_KEY_FILE: what is in ${path} ${MASTER_KEY_RULE}`;
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code !== 'ENOENT') return `PURSER_MASTER_KEY_FILE: ${path} cannot be read (${code})`;
    return `PURSER_MASTER_KEY_FILE: there is no file ${path}. Put your copy of the master key there; for a new installation, or where the key is lost, a fresh one, for example of \`openssl rand -hex 32\``;
  }
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

function readYaml(file: string, env: Environment, faults: string[]): Parsed | undefined {
  let text: string;
  try {
    text = readFileSync(file, 'utf8');
  } catch (error) {
    faults.push(`${file}: cannot be read (${(error as NodeJS.ErrnoException).code})`);
    return undefined;
  }
  return parseSettings(file, text, env, faults);
}

/** Throws ConfigurationFault with every fault of a settings file that is to be written. */
export function checkSettings(file: string, text: string, env: Environment = process.env): void {
  const faults: string[] = [];
  parseSettings(file, text, env, faults);
  if (faults.length) throw new ConfigurationFault(faults);
}

function parseSettings(file: string, text: string, env: Environment, faults: string[]): Parsed | undefined {
  const lines = new LineCounter();
  const hidden = hideVariables(text);
  const tooMuch = excessIn(hidden);
  if (tooMuch) {
    faults.push(`${file}:${lineAt(hidden, tooMuch.at)}: ${tooMuch.what}`);
    return undefined;
  }
  const tooDeep = () => void faults.push(`${file}:${lineAt(hidden, deepestIn(hidden))}: nested too deep to be read`);
  let document: ReturnType<typeof parseDocument>;
  try {
    document = parseDocument(hidden, { lineCounter: lines, prettyErrors: false });
  } catch {
    return tooDeep();
  }
  const at = (offset: number | undefined) => `${file}:${offset === undefined ? 1 : lines.linePos(offset).line}`;
  const [first] = document.errors;
  if (first) {
    const tabs = document.errors.filter((it) => it.code === 'TAB_AS_INDENT'); // Further errors follow from them.
    const line = hidden.split('\n')[lines.linePos(first.pos[0]).line - 1] as string;
    // They follow from its brace, too.
    if (SHELL_DEFAULT.test(line)) faults.push(`${at(first.pos[0])}: ${NO_DEFAULT}`);
    else for (const error of tabs.length ? tabs : document.errors) faults.push(`${at(error.pos[0])}: ${error.message}`);
    return undefined;
  }

  let isResolved = true;
  let lastAlias: number | undefined;
  visit(document, {
    Alias(_, node) {
      lastAlias = node.range?.[0];
      if (node.resolve(document)) return;
      isResolved = false;
      faults.push(`${at(node.range?.[0])}: *${node.source} names no anchor before it`);
    },
    Scalar(_, node, path) {
      if (typeof node.value === 'string' && SHELL_DEFAULT.test(node.value))
        faults.push(`${at(node.range?.[0])}: ${NO_DEFAULT}`);
      if (typeof node.value === 'string')
        node.value = node.value.replace(HIDDEN_VARIABLE, (_whole, name: string) => {
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

  let settings: unknown;
  try {
    settings = document.toJS() ?? {};
  } catch (error) {
    if (error instanceof RangeError) return tooDeep(); // Of the stack.
    faults.push(`${at(lastAlias)}: the aliases up to here stand for too much text`);
    return undefined;
  }
  if (typeof settings !== 'object' || Array.isArray(settings)) {
    faults.push(`${at(0)}: not a map of settings, as \`listen: 127.0.0.1:7420\``);
    return undefined;
  }
  const parsed = v.safeParse(Settings, settings);
  if (parsed.success) return parsed.output;
  for (const issue of parsed.issues) {
    const path = (issue.path ?? []).map((step) => step.key);
    let node: unknown;
    for (let depth = path.length; depth >= 0 && !node; depth--) node = document.getIn(path.slice(0, depth), true);
    const where = at((node as Node | undefined)?.range?.[0]);
    const name = path.join('.') || 'the file';
    // The value is left out on purpose: it may be a secret in the wrong place.
    const what = issue.type === 'strict_object' && issue.expected === 'never' ? unknownSetting(path) : plain(issue);
    faults.push(`${where}: ${name}: ${what}`);
  }
  return undefined;
}

function plain(issue: v.BaseIssue<unknown>): string {
  if (issue.received === 'undefined') return `is required (${issue.expected})`;
  const type = /^Invalid type: Expected (\w+)/.exec(issue.message)?.[1];
  return type !== undefined && Object.hasOwn(TYPES, type)
    ? `must be ${TYPES[type]}`
    : issue.message.replace(/ but received .*$/, '');
}

const TYPES: Record<string, string> = {
  number: 'a number',
  string: 'text',
  boolean: 'true or false',
  Array: 'a list',
  Object: 'a map of settings',
};
/** `${NAME:-default}` and its kin, as shells and Compose know them. */
const SHELL_DEFAULT = /\$\{[A-Za-z_]\w*:?[-+?=]/;
const NO_DEFAULT = `only \${NAME} is known, without a default`;

/** Says that a setting is not known, and which one beside it may be meant. */
function unknownSetting(path: readonly unknown[]): string {
  const name = String(path.at(-1));
  let at: Schema[] = [Settings as unknown as Schema];
  for (const step of path.slice(0, -1))
    at = at.flatMap(forms).flatMap((it) => it.item ?? it.entries?.[String(step)] ?? []);
  const names = at.flatMap(forms).flatMap((it) => Object.keys(it.entries ?? {}));
  const near = names.find((it) => isNear(it, name));
  return near === undefined ? 'unknown setting' : `unknown setting. Did you mean ${near}?`;
}

/** The members by which a valibot schema holds others. */
type Schema = { entries?: Record<string, Schema>; wrapped?: Schema; item?: Schema; options?: unknown[] };

/** The schemas that a value may have: without what makes it optional, and each of several. */
function forms(schema: Schema): Schema[] {
  if (schema.wrapped) return forms(schema.wrapped);
  const options = schema.options?.filter((it): it is Schema => typeof it === 'object' && it !== null);
  return options?.length ? options.flatMap(forms) : [schema];
}

/** Whether two names differ by at most two letters that are missing, too many or wrong (Levenshtein's distance). */
function isNear(a: string, b: string): boolean {
  let row = Array.from({ length: b.length + 1 }, (_, i) => i);
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    for (let j = 1; j <= b.length; j++)
      next.push(
        Math.min(
          (row[j] as number) + 1,
          (next[j - 1] as number) + 1,
          (row[j - 1] as number) + (a[i - 1] === b[j - 1] ? 0 : 1),
        ),
      );
    row = next;
  }
  return (row[b.length] as number) <= Math.min(2, Math.floor(Math.max(a.length, b.length) / 3));
}

/** Returns the configuration in force, as JSON. Each of its secrets is `[set]`. */
export function printable(config: Config): Record<string, unknown> {
  const shown = { ...config, masterKey: config.masterKey.from };
  return parseJson(
    JSON.stringify(shown, (_, value) => (typeof value === 'bigint' ? value.toString() : value)),
  ) as Record<string, unknown>;
}
