import { existsSync, readFileSync, statSync } from 'node:fs';
import { delimiter, isAbsolute, resolve } from 'node:path';
import * as v from 'valibot';
import { isPair, isScalar, LineCounter, type Node, parseDocument, stringify, visit } from 'yaml';
import { suggestion } from '../base/near-names.ts';
import { Secret } from '../base/secret.ts';
import { asWritten } from '../base/written.ts';
import { deepestIn, excessIn, lineAt } from './excess.ts';
import { ConfigurationFault } from './fault.ts';
import { decodeMasterKey, MASTER_KEY_RULE } from './master-key.ts';
import { baseUrl } from './router.ts';
import { address, LOG_LEVELS, type Parsed, Settings } from './schema.ts';
import { HIDDEN_VARIABLE, hideVariables } from './variables.ts';

/**
 * The only reader of the environment and of purser.yaml (design, section 4). A flag overrides the environment, which
 * overrides the file, which overrides the default. All faults are reported at once, with file and line.
 */

/** The settings in force, by their names in purser.yaml. */
export type Config = Readonly<Parsed> & {
  readonly dataDirectory: string;
  /** The YAML file that was read, if any. */
  readonly file: string | undefined;
  readonly masterKey: MasterKeySource;
};

/** The source of the master key: its text, or the path of its file. */
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

/**
 * Returns the path of the settings: the one that the flag or the environment names, or purser.yaml in the data directory if it
 * exists.
 */
export function settingsFile(flags: Flags, env: Environment = process.env): string | undefined {
  const named = flags.config ?? (env.PURSER_CONFIG || undefined);
  const standard = resolve(dataDirectoryOf(flags, env), 'purser.yaml');
  return named ? resolve(named) : existsSync(standard) ? standard : undefined;
}

/** Returns the absolute path of the data directory that a flag or the environment names; undefined where none does. */
export const namedDataDirectory = (flags: Flags): string | undefined =>
  flags.data || process.env.PURSER_DATA ? dataDirectoryOf(flags) : undefined;

/** Takes over the service's home and those of its variables that this process was not given. */
export function adoptEnvironment(variables: Environment, home: string): void {
  for (const [name, value] of Object.entries(variables)) process.env[name] ||= value;
  process.env.HOME = home; // Clients of engines look there for their credentials.
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

/** Returns the fault of the master key that the environment gives; never contains the key. */
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
    const tabs = document.errors.filter((it) => it.code === 'TAB_AS_INDENT'); // Further errors follow from these.
    const line = hidden.split('\n')[lines.linePos(first.pos[0]).line - 1] as string;
    // Its errors follow from the brace of `${NAME:-default}`, too.
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
    if (error instanceof RangeError) return tooDeep(); // The stack has overflowed.
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
  // Of a member that is missing, valibot expects its name.
  if (issue.received === 'undefined')
    return issue.expected === JSON.stringify(issue.path?.at(-1)?.key)
      ? 'is required'
      : `is required: ${String(issue.expected).replace(/^\((.*)\)$/, '$1')}`;
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

/** Describes an unknown setting, and suggests the one beside it that may be meant. */
function unknownSetting(path: readonly unknown[]): string {
  const name = String(path.at(-1));
  let at: SettingSchema[] = [Settings as unknown as SettingSchema];
  for (const step of path.slice(0, -1))
    at = at.flatMap(forms).flatMap((it) => it.item ?? it.entries?.[String(step)] ?? []);
  const names = at.flatMap(forms).flatMap((it) => Object.keys(it.entries ?? {}));
  return `unknown setting${suggestion(name, names)}`;
}

/** The members by which a valibot schema holds others. */
type SettingSchema = {
  entries?: Record<string, SettingSchema>;
  wrapped?: SettingSchema;
  item?: SettingSchema;
  options?: unknown[];
};

/** Returns the schemas that a value may have: the one inside an optional one, and each of several. */
function forms(schema: SettingSchema): SettingSchema[] {
  if (schema.wrapped) return forms(schema.wrapped);
  const options = schema.options?.filter((it): it is SettingSchema => typeof it === 'object' && it !== null);
  return options?.length ? options.flatMap(forms) : [schema];
}

/** The settings in force, without the text of a secret. */
type PrintedConfig = {
  data_directory: string;
  file: string | null;
  /** The source of the master key. */
  master_key: MasterKeySource['from'];
  /** The settings in the names and units of purser.yaml, with `[set]` for each secret. */
  settings: Record<string, unknown>;
};

/** Returns the settings in force, to be printed. */
export const printable = (config: Config): PrintedConfig => ({
  data_directory: config.dataDirectory,
  file: config.file ?? null,
  master_key: config.masterKey.from,
  settings: asWritten(Settings, config) as Record<string, unknown>,
});

/** Returns the settings in force as the text of a purser.yaml: with `[set]` replaced, it gives the same settings. */
export function printedText(config: Config): string {
  const { data_directory, file, master_key, settings } = printable(config);
  return `# file: ${file ?? 'none'}
# data directory: ${data_directory}
# master key: from the ${master_key}
${stringify(settings, { lineWidth: 0 })}`;
}
