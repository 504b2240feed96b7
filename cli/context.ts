import { readFileSync } from 'node:fs';
import { type Command, InvalidArgumentError, Option } from 'commander';
import { systemTime } from '../src/base/clock.ts';
import type { Log } from '../src/base/log.ts';
import { nanosToCentsDown, parseUsd } from '../src/base/money.ts';
import { Refusal } from '../src/base/refusal.ts';
import { redactedTexts } from '../src/base/secret.ts';
import { type Config, dataDirectoryOf } from '../src/config/config.ts';
import type { CommandInput, CommandName, CommandOutput } from '../src/operator/commands.ts';
import { print, say, show } from './report.ts';
import { lines, table, type View } from './table.ts';
import { piecesOf, terminalWidth, wrap } from './terminal.ts';

export type Globals = { data?: string; config?: string; json?: boolean };

/** Returns the global options that the next command needs as well, each after a space, to be shown. */
export function repeated(globals: Globals): string {
  const data = dataDirectoryOf(globals);
  return [
    ...(data === dataDirectoryOf({}, {}) ? [] : [` --data ${data}`]),
    ...(globals.config === undefined ? [] : [` --config ${globals.config}`]),
  ].join('');
}

/** Reads a file that the command line names. Throws `not_found` where it cannot be read. */
export function readGiven(path: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch (error) {
    throw new Refusal('not_found', `${path} cannot be read (${(error as NodeJS.ErrnoException).code}).`);
  }
}

/** The configuration in force, and a log that shows warnings and errors unless the configured level is other than `info`. */
type CommandContext = { config: Config; log: Log; globals: Globals };

/**
 * Reads the configuration from the global options, the environment and purser.yaml; `withoutKey` leaves the master key
 * unread. Throws ConfigurationFault.
 */
export async function readContext(command: Command, { withoutKey = false } = {}): Promise<CommandContext> {
  const globals = command.optsWithGlobals<Globals>();
  const [{ readConfig }, { createLog }] = await Promise.all([
    import('../src/config/config.ts'),
    import('../src/base/log.ts'),
  ]);
  const config = readConfig({ ...globals, withoutKey });
  const log = createLog(config.log_level === 'info' ? 'warn' : config.log_level, redactedTexts(config), sayLogLine);
  return { config, globals, log };
}

const WARN = 40;
const ERROR = 50;

/** Prints a line of the log as a sentence, as a person reads the output of a command, not a log collector. */
function sayLogLine(line: string): void {
  const { level, msg, event } = JSON.parse(line) as { level: number; msg?: string; event?: string };
  say(`${level >= ERROR ? 'error' : level >= WARN ? 'warning' : 'note'}: ${msg ?? event}`);
}

/** Prints a result: with --json as one JSON value, else formatted for people, a list as its options ask. */
export function output<T>(command: Command, value: T, format: (value: T, view: View) => string): void {
  const { output: form, columns } = command.opts<ListView>();
  if (command.optsWithGlobals<Globals>().json) print(JSON.stringify(value));
  else show(format(value, { wide: form === 'wide', ...(columns ? { columns } : {}) }));
}

export type ListView = { output?: 'wide' | 'json'; columns?: string[] };

/** Returns the program that a command belongs to. */
export function rootOf(command: Command): Command {
  return command.parent ? rootOf(command.parent) : command;
}

/** Adds the options that say how a list is shown: --output and --columns. */
export function listOptions(command: Command): Command {
  return command
    .addOption(new Option('-o, --output <form>', 'all columns, or JSON as by --json').choices(['wide', 'json']))
    .option('--columns <names>', 'these columns alone, by their names in the JSON: id,name', (it) => it.split(','))
    .on('option:output', (form: string) => {
      if (form === 'json') rootOf(command).setOptionValue('json', true);
    });
}

/** Returns the options of a command without those of `listOptions`, which are for this side alone. */
export const withoutView = <T extends object>({ output: _, columns: __, ...input }: T & ListView) => input as T;

/** Ends with a usage error if --json is given to a command whose stdout is not its own result. */
export function refuseJson(command: Command, prints: string): void {
  if (command.optsWithGlobals<Globals>().json)
    command.error(`error: --json is not for this command: it prints ${prints}`);
}

/** Runs an operator command and prints its result, as JSON or formatted for people. Throws like `ask`. */
export async function askAndPrint<N extends CommandName>(
  command: Command,
  name: N,
  input: CommandInput<N>,
  format: (value: CommandOutput<N>, view: View) => string,
): Promise<void> {
  const { ask } = await import('./operator-client.ts');
  output(command, await ask(command, name, withoutView(input)), format);
}

/** The options of a list command. */
export type ListOptions<N extends CommandName> = Omit<CommandInput<N>, 'limit' | 'before' | 'since'> & PageOptions;

/** Runs a list command and prints the requested page, or with `all` every page as one. Throws like `ask`. */
export async function askAndPrintList<N extends CommandName, M extends keyof CommandOutput<N>>(
  command: Command,
  name: N,
  member: M,
  { all, ...options }: ListOptions<N>,
  format: (value: CommandOutput<N>, view: View) => string,
): Promise<void> {
  if (!all) return askAndPrint(command, name, options as CommandInput<N>, format);
  if (options.limit !== undefined) command.error('error: give --all or --limit, not both');
  const { ask } = await import('./operator-client.ts');
  const rows = await everyPage(
    async (page) =>
      (await ask(command, name, { ...withoutView(options), ...page } as CommandInput<N>))[member] as { id: string }[],
  );
  output(command, { [member]: rows, total: rows.length } as CommandOutput<N>, format);
}

/** Formats one record as lines of names and values. */
export const showRecord = (record: Record<string, unknown>) => lines(record);

/** Registers the command that shows one record by its id, of which `id` is an example. */
export const showCommand = (
  group: Command,
  name: 'checkout.show' | 'operation.show' | 'resource.show' | 'wallet.show',
  description: string,
  id: string,
): Command =>
  group
    .command('show')
    .argument('<id>')
    .description(description)
    .addHelpText('after', example(`purser ${name.replace('.', ' ')} ${id}`))
    .action((it: string, _, command: Command) => askAndPrint(command, name, { id: it }, showRecord));

/** Formats records as a table of these columns, those with a `?` first to be left out where there is no room. */
export const showTable = (rows: readonly Record<string, unknown>[], columns: readonly string[], view?: View) =>
  table(rows, columns, terminalWidth(), view);
/** Formats sentences for the width of the terminal. A word that is wider is broken. */
export function fitted(text: string): string {
  const width = terminalWidth();
  return width === undefined
    ? text
    : wrap(text, width)
        .flatMap((it) => piecesOf(it, width))
        .join('\n');
}

/** Returns an argument that is not empty. Throws a usage error otherwise. */
export function notEmpty(value: string): string {
  if (value === '') throw new InvalidArgumentError('It is empty.');
  return value;
}

/** Parses an argument as a whole number. Throws a usage error otherwise. */
export function parseWholeNumber(value: string): number {
  if (!/^-?\d{1,15}$/.test(value)) throw new InvalidArgumentError('It must be a whole number.');
  return Number(value);
}

/**
 * Parses an amount into whole cents: USD with a point ("12.50") or a sign ("$12"), or cents ("1250c"). A bare whole number
 * is refused, since it may mean either. Throws a usage error otherwise.
 */
export function parseAmount(value: string): number {
  const [, usd, cents] = /^(?:(\$\d{1,10}|\$?\d{1,10}\.\d\d)|(\d{1,12})c)$/.exec(value) ?? [];
  if (usd !== undefined) return nanosToCentsDown(parseUsd(usd.replace('$', '')));
  if (cents !== undefined) return Number(cents);
  if (/^\d+$/.test(value))
    throw new InvalidArgumentError(`Write ${value}.00 for ${value} dollars, or ${value}c for ${value} cents.`);
  if (value === '')
    throw new InvalidArgumentError('It is empty: the shell expands $5 unless it is quoted. Write 5.00.');
  throw new InvalidArgumentError('It must be an amount as 12.50, "$12" or 1250c.');
}

/** Parses an amount above 0 into whole cents. Throws a usage error otherwise. */
export function parsePositiveAmount(value: string): number {
  const cents = parseAmount(value);
  if (cents < 1) throw new InvalidArgumentError('It must be above 0.');
  return cents;
}

/** Parses the budget of a wallet, USD 1 to 10000, into whole cents. Throws a usage error otherwise. */
export function parseBudget(value: string): number {
  const cents = parseAmount(value);
  if (cents < 100 || cents > 1_000_000) throw new InvalidArgumentError('It must be from 1.00 to 10000.00 USD.');
  return cents;
}

/** Parses whole cents, for options whose name asks for them. Throws a usage error otherwise. */
export function parseCents(value: string): number {
  if (!/^\d{1,12}$/.test(value)) throw new InvalidArgumentError('It must be a whole number of cents.');
  return Number(value);
}

const DURATION = /^(\d{1,9})([smhdw]?)$/;
const DAY_SECONDS = 86_400;
const UNIT_SECONDS: Record<string, number> = { '': 1, s: 1, m: 60, h: 3600, d: DAY_SECONDS, w: 7 * DAY_SECONDS };

/** Parses a duration, such as "90", "30m", "12h" or "7d", into seconds. Throws a usage error otherwise. */
function parseDuration(value: string): number {
  const [, count, unit] = DURATION.exec(value) ?? [];
  if (count === undefined) throw new InvalidArgumentError('It must be a duration, as "90", "30m", "12h" or "7d".');
  return Number(count) * (UNIT_SECONDS[unit as string] as number);
}

/** Parses when a wallet expires: a duration of at most 30 days, or "never", which is 0 as in the API. Throws a usage error otherwise. */
export function parseExpiry(value: string): number {
  const seconds = value === 'never' ? 0 : parseDuration(value);
  if (seconds === 0) return 0;
  if (seconds < 60 || seconds > 30 * DAY_SECONDS)
    throw new InvalidArgumentError('It must be from 1m to 30d, or "never".');
  return seconds;
}

/** Parses by how much an expiry moves: a duration of at most 365 days. Throws a usage error otherwise. */
export function parseExtension(value: string): number {
  const seconds = parseDuration(value);
  if (seconds < 1 || seconds > 365 * DAY_SECONDS) throw new InvalidArgumentError('It must be from 1s to 365d.');
  return seconds;
}

/**
 * Parses a time into Unix seconds: Unix seconds, how long ago ("30m", "12h", "7d"), or a date or time of ISO 8601, in UTC
 * unless it has an offset. Throws a usage error otherwise.
 */
export function parseTime(value: string): number {
  if (/^\d{1,12}$/.test(value)) return Number(value);
  if (DURATION.test(value)) return Math.floor(systemTime.wall() / 1000) - parseDuration(value);
  const [, day] = /^(\d{4}-\d\d-\d\d)(?:T.*(?:Z|[+-]\d\d:\d\d))?$/.exec(value) ?? [];
  const milliseconds = day !== undefined && isDay(day) ? Date.parse(value) : Number.NaN;
  if (Number.isNaN(milliseconds) || milliseconds < 0)
    throw new InvalidArgumentError('It must be how long ago ("12h", "7d"), a date ("2026-11-22"), or Unix seconds.');
  return Math.floor(milliseconds / 1000);
}

/** Returns whether there is this day: Date takes the 31st of February for a day of March. */
function isDay(day: string): boolean {
  const milliseconds = Date.parse(day);
  return !Number.isNaN(milliseconds) && new Date(milliseconds).toISOString().startsWith(day);
}

type PageOptions = { since?: number; before?: string; limit?: number; all?: boolean };

/** Adds the options of a list that has pages: --since, --before and --limit, and those of every list. */
export function pageOptions(command: Command): Command {
  return listOptions(command)
    .option('--since <time>', 'made at or after: 7d (ago), 2026-11-22, or Unix seconds', parseTime)
    .option('--before <id>', 'the next page: what is older than this one')
    .option('--limit <n>', 'at most so many, 1 to 1000 (default 100)', parseWholeNumber);
}

/**
 * Returns the foot of a list that does not show everything: the total, or null where it was not counted, and the id that the next
 * page begins behind, null for none.
 */
export function footOf(
  shown: readonly { id: string }[],
  total: number | null,
  hint = '',
  next: string | null = shown.at(-1)?.id ?? '<id>',
): string {
  if (total === null ? next === null : shown.length >= total) return '';
  return `\n${fitted(`${shown.length}${total === null ? ' shown' : ` of ${total}`}${hint}; older: --before ${next}`)}`;
}

/** Returns the foot of a list that begins with the oldest: it has no next page, but can be shown whole. */
export const restOf = (shown: readonly unknown[], total: number): string =>
  shown.length >= total ? '' : `\n${shown.length} of ${total}, --all shows all`;

/** Fetches all pages of a list, newest first. */
async function everyPage<T extends { id: string }>(
  ask: (page: { before?: string; limit: number }) => Promise<T[]>,
): Promise<T[]> {
  const limit = 1000;
  const rows: T[] = [];
  for (;;) {
    const last = rows.at(-1);
    const page = await ask({ limit, ...(last ? { before: last.id } : {}) });
    rows.push(...page);
    if (page.length < limit) return rows;
  }
}

/** Formats example commands for the end of a help text. */
export function example(...text: string[]): string {
  return `\nExample:\n${text.map((line) => `  ${line}`).join('\n')}`;
}
