import { formatCents, formatUsd, Nanos, parseDecimal } from '../src/base/money.ts';
import { toneOf } from '../src/base/shown.ts';
import { visible } from '../src/base/visible.ts';
import { cut, plain, type Tone, terminalWidth, toned, widthOf, wrap } from './terminal.ts';
import { exactAndAgo, isTime, relative } from './time.ts';

type Row = Record<string, unknown>;

const GAP = '  ';
/** The least width to which a column of text is cut. */
const TEXT_WIDTH_MIN = 8;
/** The beginning of an id that contains the time of its creation: `wal_` and ten characters. */
const ID_STAMP = /^[a-z]+_[0-9a-z]{10}/;
const ID = /^[a-z]+_[0-9a-z]{26}$/;
/** Decimals of a price per token whose last one is a nano-dollar per million tokens. */
const PER_TOKEN_DECIMALS = 15;

const STATES = new Set(['status', 'state', 'what', 'outcome']);

type Column = { name: string; heading: string[]; cells: string[]; isRight: boolean; isText: boolean };

/**
 * Formats records as a table with a heading; an empty list as `(none)`. Amounts are in USD, right-aligned and with the same
 * number of decimals; Unix seconds in `_at` are relative to now. A table wider than `width` (default: the terminal's; a pipe
 * has none) leaves out empty columns, shortens ids to a unique beginning, breaks headings, and cuts text; if that is not
 * enough, each record becomes a block of lines.
 */
export function table(rows: readonly Row[], names: readonly string[], width = terminalWidth()): string {
  if (!rows.length) return '(none)';
  let columns = names.map((name) => columnOf(name, rows));
  if (width === undefined || lengthOf(columns) <= width) return draw(columns);
  columns = columns.filter(({ cells }) => cells.some((it) => it !== '-'));
  if (lengthOf(columns) > width) columns = columns.map(shortenIds);
  if (lengthOf(columns) > width) columns = columns.map((it) => ({ ...it, heading: broken(it.heading.join(' ')) }));
  shrinkTexts(columns, width);
  if (lengthOf(columns) <= width) return draw(columns);
  const shown = rows.map((row) => Object.fromEntries(columns.map(({ name }) => [name, row[name]])));
  return shown.map((row) => lines(row, width)).join('\n\n');
}

function columnOf(name: string, rows: readonly Row[]): Column {
  const values = rows.map((row) => row[name]);
  const amounts = /_(usd|cents|usd\/M)$/.test(name);
  const cells = values.map((it) => (isTime(name, it) ? relative(it) : cell(name, it)));
  return {
    name,
    heading: [titleOf(name).toUpperCase()],
    cells: amounts ? sameDecimals(cells) : cells,
    isRight: amounts || (cells.every((it) => /^(-|[\d.]+)$/.test(it)) && cells.some((it) => it !== '-')),
    isText: cells.some((it) => it.includes(' ') || widthOf(it) > TEXT_WIDTH_MIN) && !/(^|_)at$/.test(name),
  };
}

const titleOf = (name: string) => name.replace(/_cents$/, '_usd').replaceAll('_', ' ');

/** Formats all amounts of a column with as many decimals as the longest has. */
function sameDecimals(cells: string[]): string[] {
  const decimalsOf = (it: string) => it.split('.')[1]?.length ?? 0;
  const max = Math.max(...cells.map(decimalsOf));
  return cells.map((it) => (/^-?\d+\.\d+$/.test(it) ? it + '0'.repeat(max - decimalsOf(it)) : it));
}

const columnWidth = ({ heading, cells }: Column) => Math.max(...[...heading, ...cells].map(widthOf));
const lengthOf = (columns: Column[]) =>
  columns.reduce((sum, it) => sum + columnWidth(it), 0) + GAP.length * (columns.length - 1);

/** Shortens ids to beginnings that are still distinct, which commands accept. */
function shortenIds(column: Column): Column {
  const { cells } = column;
  if (!cells.every((it) => it === '-' || ID.test(it)) || !cells.some((it) => ID.test(it))) return column;
  const ids = [...new Set(cells.filter((it) => it !== '-'))];
  let length = ID_STAMP.exec(ids[0] as string)?.[0].length as number;
  while (new Set(ids.map((it) => it.slice(0, length))).size < ids.length) length++;
  return { ...column, cells: cells.map((it) => (it === '-' ? it : it.slice(0, length))), isText: false };
}

/** Breaks a heading into the two lines that are narrowest together. */
function broken(heading: string): string[] {
  const words = heading.split(' ');
  const ways = words.slice(1).map((_, i) => [words.slice(0, i + 1).join(' '), words.slice(i + 1).join(' ')]);
  const widest = (way: string[]) => Math.max(...way.map(widthOf));
  return ways.reduce((best, way) => (widest(way) < widest(best) ? way : best), [heading]);
}

function shrinkTexts(columns: Column[], width: number): void {
  for (let excess = lengthOf(columns) - width; excess > 0; excess = lengthOf(columns) - width) {
    const widest = columns
      .filter(
        (it) => it.isText && !it.isRight && columnWidth(it) > Math.max(TEXT_WIDTH_MIN, ...it.heading.map(widthOf)),
      )
      .reduce<Column | undefined>((best, it) => (best && columnWidth(best) >= columnWidth(it) ? best : it), undefined);
    if (!widest) return;
    const to = columnWidth(widest) - 1;
    widest.cells = widest.cells.map((it) => cut(it, to));
  }
}

function draw(columns: Column[]): string {
  const height = Math.max(...columns.map((it) => it.heading.length));
  const headings = Array.from({ length: height }, (_, i) =>
    columns.map(({ heading }) => heading[i - (height - heading.length)] ?? ''),
  );
  const line = (texts: string[], tone?: (text: string, column: Column) => Tone | undefined) =>
    texts
      .map((it, i) => {
        const column = columns[i] as Column;
        const space = ' '.repeat(columnWidth(column) - widthOf(it));
        const own = tone?.(it, column);
        const text = own ? toned(own, it) : it;
        return column.isRight ? space + text : text + space;
      })
      .join(GAP)
      .trimEnd();
  const count = columns[0]?.cells.length ?? 0;
  return [
    ...headings.map((texts) => toned('heading', line(texts))),
    ...Array.from({ length: count }, (_, i) =>
      line(
        columns.map(({ cells }) => cells[i] as string),
        (text, { name }) => (STATES.has(name) ? toneOf(text) : undefined),
      ),
    ),
  ].join('\n');
}

/**
 * Formats a record as lines of `name  value`, in the units of people (`peopleOf`); nested members are named with a dot. Values
 * that are longer than a terminal's line continue on the lines below.
 */
export function lines(record: Row, width = terminalWidth()): string {
  const flat: [string, string][] = [];
  const walk = (value: Row, prefix: string) => {
    for (const [key, it] of Object.entries(peopleOf(value))) {
      const name = `${prefix}${key}`;
      if (typeof it === 'object' && it !== null && !Array.isArray(it)) walk(it as Row, `${name}.`);
      else flat.push([name, isTime(key, it) ? exactAndAgo(it) : cell(key, it)]);
    }
  };
  walk(record, '');
  const first = Math.max(...flat.map(([name]) => name.length));
  const room = width === undefined ? Number.POSITIVE_INFINITY : Math.max(20, width - first - GAP.length);
  const below = `\n${' '.repeat(first)}${GAP}`;
  return flat
    .map(([name, value]) => {
      const tone = STATES.has(name) ? toneOf(value) : undefined;
      const text = tone ? toned(tone, value) : wrap(value, room).join(below);
      return `${name.padEnd(first)}${GAP}${text}`;
    })
    .join('\n');
}

/** Renames amounts to USD, in which `cell` shows them. An amount that exists in cents and in USD is shown once. */
function peopleOf(record: Row): Row {
  return Object.fromEntries(
    Object.entries(record).flatMap(([name, value]): [string, unknown][] => {
      const usd = name.replace(/(^|_)cents$/, '$1usd').replace(/_nanos($|_per_million$)/, '_usd$1');
      if (usd === name) return [[name, value]];
      return usd in record ? [] : [[usd, cell(name, value)]];
    }),
  );
}

function cell(name: string, value: unknown): string {
  if (value === null || value === undefined) return '-';
  if (/(^|_)cents$/.test(name) && typeof value === 'number') return formatCents(value);
  if (/_nanos($|_per_million$)/.test(name)) return formatUsd(Nanos(BigInt(value as string)));
  if (Array.isArray(value)) return value.length ? plain(visible(JSON.stringify(value))) : '-';
  // Escapes keep a cell on one line and its width as printed.
  return plain(visible(String(value)))
    .replaceAll('\n', '\\n')
    .replaceAll('\t', '\\t');
}

/** Formats a price in USD per token as USD per million tokens. */
export const perMillion = (usdPerToken: string) => formatUsd(Nanos(parseDecimal(usdPerToken, PER_TOKEN_DECIMALS)));
