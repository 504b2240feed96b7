import type { CommanderError } from 'commander';
import { ConfigurationFault } from '../src/config/fault.ts';
import { OpenToOthersError } from '../src/config/strict-modes.ts';
import { LockedError, NoDatabaseError, OtherOwnerError } from '../src/files/data-directory.ts';
import { REFUSALS, Refusal } from '../src/refusal.ts';
import { visible } from '../src/visible.ts';

/** Exit 0 ok · 1 failed · 2 usage · 3 not found · 4 conflict or refused · 5 unavailable (design, section 4). */
function exitCodeOf(error: unknown): number {
  if (error instanceof NoDatabaseError) return 3;
  if (error instanceof LockedError) return 5;
  if (error instanceof OtherOwnerError || error instanceof OpenToOthersError) return 4;
  if (!(error instanceof Refusal)) return 1;
  const { status } = REFUSALS[error.code];
  if (status === 400) return 2;
  if (status === 404) return 3;
  if (status < 500) return 4;
  return status === 500 ? 1 : 5;
}

/** Returns the original error: on a full disk closing fails as well, which is not worth reporting. */
function firstOf(error: unknown): unknown {
  return error instanceof SuppressedError ? firstOf(error.suppressed) : error;
}

/** Reports an error on stderr, or as JSON on stdout with `json`, and sets the exit code. */
export function reportFailure(thrown: unknown, json: boolean): void {
  const error = firstOf(thrown);
  const message = error instanceof Error ? error.message : String(error);
  const code = error instanceof Refusal ? error.code : error instanceof ConfigurationFault ? 'configuration' : 'failed';
  if (json) print(JSON.stringify({ error: { code, message } }));
  else say(message);

  process.exitCode = exitCodeOf(error);
}

/** Sets exit code 2 for a usage error, and with `json` prints it as JSON on stdout. Help exits with 0. */
export function reportUsage({ exitCode, code, message }: CommanderError, json: boolean): void {
  process.exitCode = exitCode === 0 ? 0 : 2;
  if (!json || exitCode === 0) return;
  const text = code === 'commander.help' ? 'A command is missing. Add --help for the full help.' : message;
  print(JSON.stringify({ error: { code: 'usage', message: text.replace(/^error: /, '') } }));
}

/** Prints data on stdout. Control characters in outside text (names, messages of engines or model servers) are escaped. */
export function print(text: string): void {
  process.stdout.write(`${visible(text)}\n`);
}

/** Prints one of many lines on stdout with back-pressure. Returns false when the reader is gone. */
export async function printLine(text: string): Promise<boolean> {
  const { stdout } = process;
  if (!stdout.errored && !stdout.write(`${visible(text)}\n`))
    await new Promise<void>((resolve) => {
      const go = () => {
        stdout.off('drain', go).off('close', go);
        resolve();
      };
      stdout.on('drain', go).on('close', go);
    });
  return !stdout.errored;
}

/** Prints a message on stderr. */
export function say(text: string): void {
  process.stderr.write(`${visible(text)}\n`);
}

type Cell = string | number | boolean | null | undefined;

/** Formats records as a table with a heading; an empty list as `(none)`. */
export function table(rows: readonly Record<string, unknown>[], columns: readonly string[]): string {
  if (!rows.length) return '(none)';
  const cells = rows.map((row) => columns.map((name) => text(row[name])));
  const heading = columns.map((name) => name.toUpperCase().replaceAll('_', ' '));
  const widths = heading.map((title, i) => Math.max(title.length, ...cells.map((row) => (row[i] as string).length)));
  return [heading, ...cells]
    .map((row) =>
      row
        .map((it, i) => it.padEnd(widths[i] as number))
        .join('  ')
        .trimEnd(),
    )
    .join('\n');
}

/** Formats a record as lines of `name  value`; nested members are named with a dot. */
export function lines(record: Record<string, unknown>, prefix = ''): string {
  const flat: [string, string][] = [];
  const walk = (value: Record<string, unknown>, name: string) => {
    for (const [key, it] of Object.entries(value))
      if (typeof it === 'object' && it !== null && !Array.isArray(it))
        walk(it as Record<string, unknown>, `${name}${key}.`);
      else flat.push([`${name}${key}`, text(it)]);
  };
  walk(record, prefix);
  const width = Math.max(...flat.map(([name]) => name.length));
  return flat.map(([name, value]) => `${name.padEnd(width)}  ${value}`).join('\n');
}

function text(value: unknown): string {
  if (value === null || value === undefined) return '-';
  if (Array.isArray(value)) return value.length ? visible(JSON.stringify(value)) : '-';
  // Escapes keep a cell on one line and its width as printed.
  return visible(String(value as Cell))
    .replaceAll('\n', '\\n')
    .replaceAll('\t', '\\t');
}

/** Formats Unix seconds as a readable UTC time; `-` when there is none. */
export function when(at: number | null | undefined): string {
  return at == null ? '-' : new Date(at * 1000).toISOString().replace('T', ' ').replace('.000Z', 'Z');
}

/** Formats the members whose names end in `_at` as readable times. */
export function withTimes<T extends Record<string, unknown>>(record: T): Record<string, unknown> {
  return Object.fromEntries(
    Object.entries(record).map(([name, value]) => [
      name,
      /(^|_)at$/.test(name) && typeof value === 'number' ? when(value) : value,
    ]),
  );
}
