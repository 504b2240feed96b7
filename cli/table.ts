import { formatCents, formatUsd, Nanos, parseDecimal } from '../src/base/money.ts';
import { Refusal } from '../src/base/refusal.ts';
import { toneOf } from '../src/base/shown.ts';
import { visible } from '../src/base/visible.ts';
import { cut, plain, type Tone, terminalWidth, toned, widthOf, wrap } from './terminal.ts';
import { exactAndAgo, fromNow, isTime } from './time.ts';

type Row = Record<string, unknown>;

const GAP = '  ';
/** The widths to which a column of text is cut: first, and where that is not enough. */
const TEXT_WIDTH_USUAL = 20;
const TEXT_WIDTH_MIN = 8;
/** The beginning of an id that contains the time of its creation: `wal_` and ten characters. */
const ID_STAMP = /^[a-z]+_[0-9a-z]{10}/;
const ID = /^[a-z]+_[0-9a-z]{26}$/;
/** Decimals of a price per token whose last one is a nano-dollar per million tokens. */
const PER_TOKEN_DECIMALS = 15;

const STATES = new Set(['status', 'state', 'what', 'outcome']);

type TableColumn = {
  name: string;
  heading: string[];
  cells: string[];
  width: number;
  isRight: boolean;
  isText: boolean;
};

/** The columns of a list that are shown: all (`wide`), or these alone, by their names in the JSON. */
export type View = { wide?: boolean; columns?: readonly string[] };

/**
 * Formats records as a table with a heading; an empty list as `(none)`. Amounts are in USD, right-aligned and with the same number
 * of decimals; Unix seconds in `_at` are relative to now. A name that ends in `?` is that of a secondary column. A table that is
 * wider than `width` (default: the terminal's; a pipe has none) is made narrower step by step, and names the columns that it then
 * lacks; a record is always one line. A wide view, and one with chosen columns, are as wide as they are. Throws `invalid_request`
 * for a chosen column that does not exist.
 */
export function table(
  rows: readonly Row[],
  names: readonly string[],
  width = terminalWidth(),
  { wide, columns: chosen }: View = {},
): string {
  if (!rows.length) return '(none)';
  const own = names.map((it) => it.replace('?', ''));
  if (chosen) refuseUnknown(chosen, [...new Set([...own, ...rows.flatMap(Object.keys)])]);
  const all = (chosen ?? own).map((name) => columnOf(name, rows));
  if (width === undefined || wide || chosen) return draw(all);
  const secondary = names.filter((it) => it.endsWith('?')).map((it) => it.slice(0, -1));
  const columns = NARROWER.reduce((some, step) => (lengthOf(some) <= width ? some : step(some, width, secondary)), all);
  const left = all.filter((it) => !isEmpty(it) && !isZero(it) && !columns.some(({ name }) => name === it.name));
  if (!left.length) return draw(columns);
  const note = `Not shown: ${left.map(({ name }) => titleOf(name)).join(', ')} (-o wide)`;
  return [draw(columns), ...wrap(note, width).map((it) => toned('quiet', it))].join('\n');
}

function refuseUnknown(chosen: readonly string[], known: readonly string[]): void {
  const unknown = chosen.find((it) => !known.includes(it));
  if (unknown === undefined) return;
  throw new Refusal(
    'invalid_request',
    `There is no column ${JSON.stringify(unknown)}. There are: ${known.join(', ')}.`,
  );
}

/** The ways to make a table narrower, in the order in which they are tried: what matters least goes first. */
const NARROWER: ((columns: TableColumn[], width: number, secondary: readonly string[]) => TableColumn[])[] = [
  (columns) => columns.filter((it, i) => i === 0 || !isEmpty(it)),
  (columns) => columns.filter((it, i) => i === 0 || !isZero(it)),
  (columns) => columns.map(shortenIds),
  (columns) => columns.map((it) => resized({ ...it, heading: broken(it.heading.join(' ')) })),
  (columns) => columns.map((it) => withDecimals(it, 4)),
  (columns, width) => shrinkTexts(columns, width, TEXT_WIDTH_USUAL),
  (columns, width, secondary) => without(columns, width, secondary),
  (columns) => columns.map((it) => withDecimals(it, 2)),
  (columns, width) => shrinkTexts(columns, width, TEXT_WIDTH_MIN),
  (columns, width) =>
    without(
      columns,
      width,
      columns.slice(1).map(({ name }) => name),
    ),
];

function columnOf(name: string, rows: readonly Row[]): TableColumn {
  const values = rows.map((row) => row[name]);
  const amounts = isAmount(name);
  const cells = values.map((it) => (isTime(name, it) ? fromNow(it) : cell(name, it)));
  return resized({
    name,
    heading: [titleOf(name).toUpperCase()],
    cells: amounts ? sameDecimals(cells) : cells,
    width: 0,
    isRight: amounts || (cells.every((it) => /^(-|[\d.]+)$/.test(it)) && cells.some((it) => it !== '-')),
    isText: cells.some((it) => it.includes(' ') || widthOf(it) > TEXT_WIDTH_MIN) && !/(^|_)at$/.test(name),
  });
}

const isAmount = (name: string) => /_(usd|cents|usd\/M)$/.test(name);
const titleOf = (name: string) => name.replace(/_cents$/, '_usd').replaceAll('_', ' ');
const isEmpty = ({ cells }: TableColumn) => cells.every((it) => it === '-');
const isZero = ({ cells, isRight }: TableColumn) => isRight && cells.every((it) => /^(-|0(\.0+)?)$/.test(it));

const greatest = (numbers: readonly number[]) => numbers.reduce((most, it) => Math.max(most, it), 0);
const decimalsOf = (amount: string) => amount.split('.')[1]?.length ?? 0;

/** Formats all amounts of a column with as many decimals as the longest has. */
function sameDecimals(cells: string[]): string[] {
  const most = greatest(cells.map(decimalsOf));
  return cells.map((it) => (/^-?\d+\.\d+$/.test(it) ? it + '0'.repeat(most - decimalsOf(it)) : it));
}

/** Rounds the amounts of a column to at most `most` decimals. One that would be shown as zero is shown as below the least. */
function withDecimals(column: TableColumn, most: number): TableColumn {
  if (!isAmount(column.name)) return column;
  const least = `0.${'0'.repeat(most - 1)}1`;
  const cells = column.cells.map((it) => {
    if (decimalsOf(it) <= most) return it;
    const rounded = Number(it).toFixed(most);
    return Number(rounded) === 0 && Number(it) !== 0 ? `<${least}` : rounded;
  });
  return resized({ ...column, cells });
}

const resized = (column: TableColumn): TableColumn => ({
  ...column,
  width: greatest([...column.heading, ...column.cells].map(widthOf)),
});

const lengthOf = (columns: readonly TableColumn[]) =>
  columns.reduce((sum, it) => sum + it.width, 0) + GAP.length * (columns.length - 1);

/** Shortens ids to beginnings that are still distinct, which commands accept. */
function shortenIds(column: TableColumn): TableColumn {
  const { cells } = column;
  if (!cells.every((it) => it === '-' || ID.test(it)) || !cells.some((it) => ID.test(it))) return column;
  const ids = [...new Set(cells.filter((it) => it !== '-'))];
  let length = ID_STAMP.exec(ids[0] as string)?.[0].length as number;
  while (new Set(ids.map((it) => it.slice(0, length))).size < ids.length) length++;
  return resized({ ...column, cells: cells.map((it) => (it === '-' ? it : it.slice(0, length))), isText: false });
}

/** Breaks a heading into the two lines that are narrowest together. */
function broken(heading: string): string[] {
  const words = heading.split(' ');
  const ways = words.slice(1).map((_, i) => [words.slice(0, i + 1).join(' '), words.slice(i + 1).join(' ')]);
  const widest = (way: string[]) => greatest(way.map(widthOf));
  return ways.reduce((best, way) => (widest(way) < widest(best) ? way : best), [heading]);
}

/** Cuts the widest texts, to no less than `least`, until the table fits. */
function shrinkTexts(columns: readonly TableColumn[], width: number, least: number): TableColumn[] {
  const widths = columns.map((it) => it.width);
  const floors = columns.map((it) =>
    it.isText && !it.isRight ? Math.max(least, ...it.heading.map(widthOf)) : Number.POSITIVE_INFINITY,
  );
  for (let excess = lengthOf(columns) - width; excess > 0; excess--) {
    const room = widths.map((it, i) => (it > (floors[i] as number) ? it : 0));
    const widest = room.indexOf(greatest(room));
    if (!room[widest]) break;
    (widths[widest] as number)--;
  }
  return columns.map((it, i) => {
    const to = widths[i] as number;
    return to === it.width ? it : { ...it, width: to, cells: it.cells.map((text) => cut(text, to)) };
  });
}

/** Leaves out columns of these names, the last first, until the table fits. */
function without(columns: readonly TableColumn[], width: number, names: readonly string[]): TableColumn[] {
  let some = [...columns];
  for (const name of names.toReversed()) {
    if (lengthOf(some) <= width) break;
    some = some.filter((it) => it.name !== name);
  }
  return some;
}

function draw(columns: readonly TableColumn[]): string {
  const height = greatest(columns.map((it) => it.heading.length));
  const headings = Array.from({ length: height }, (_, i) =>
    columns.map(({ heading }) => heading[i - (height - heading.length)] ?? ''),
  );
  const line = (texts: string[], tone?: (text: string, column: TableColumn) => Tone | undefined) =>
    texts
      .map((it, i) => {
        const column = columns[i] as TableColumn;
        const space = ' '.repeat(column.width - widthOf(it));
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
  const first = greatest(flat.map(([name]) => name.length));
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
  // What a refill carries over is cents, too, or a word.
  if (/(^|_)cents$|^carry$/.test(name) && typeof value === 'number') return formatCents(value);
  if (/_nanos($|_per_million$)/.test(name)) return formatUsd(Nanos(BigInt(value as string)));
  if (Array.isArray(value)) return value.length ? plain(visible(JSON.stringify(value))) : '-';
  // Escapes keep a cell on one line and its width as printed.
  return plain(visible(String(value)))
    .replaceAll('\n', '\\n')
    .replaceAll('\t', '\\t');
}

/** Formats a price in USD per token as USD per million tokens. */
export const perMillion = (usdPerToken: string) => formatUsd(Nanos(parseDecimal(usdPerToken, PER_TOKEN_DECIMALS)));
