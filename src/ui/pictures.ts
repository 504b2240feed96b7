import { type Nanos, ZERO } from '../base/money.ts';
import { OTHER_KEYS } from '../ledger/spending.ts';
import { EMPTY, type Html, html } from './html.ts';
import { brief, count, dollars, outside, table } from './parts.ts';
import { timesIn, when } from './times.ts';

// Shapes are SVG, stretched to the available width; labels are text beside them, which keeps its size. Behind each picture
// is a table with the same figures.

const WIDTH = 1000;
const HEIGHT = 160;
const SERIES_COUNT_MAX = 6;
/** Rows of the table behind a picture. */
const ROW_COUNT_MAX = 500;
/** The series of the smaller keys. */
const OTHERS = OTHER_KEYS;
const DAY_SECONDS = 86_400;

const behind = (body: Html): Html => html`<details class="behind"><summary>Show as a table</summary>${body}</details>`;
/** Writes a number for SVG: nanos are far more precise than a picture needs, so floating point is enough. */
const scaled = (part: bigint, whole: bigint, length: number): string =>
  whole === 0n ? '0' : ((Number(part) / Number(whole)) * length).toFixed(1);
const percent = (part: bigint, whole: bigint): string => `${scaled(part, whole, 100)}%`;

export type BarPart = {
  name: string;
  amount: Nanos;
  tone: 'spent' | 'held' | 'delegated' | 'free' | 'reserved';
  key?: string;
  /** The legend names it only while it is not zero. */
  isRare?: boolean;
};

const NOTHING = dollars(ZERO);

/** Draws money as a bar of its parts, with a legend of the amounts. */
export function moneyBar(title: string, parts: readonly BarPart[]): Html {
  const whole = parts.reduce((sum, it) => sum + it.amount, 0n);
  let x = 0n;
  const shapes = parts.map((it) => {
    const at = percent(x, whole);
    x += it.amount;
    return html`<rect class="${it.tone}" x="${at}" width="${percent(it.amount, whole)}" height="100%"${it.key && html` data-live-bar="${it.key}.bar"`}></rect>`;
  });
  const isUnnamed = ({ isRare, amount }: BarPart) => isRare && amount === ZERO;
  const legend = parts.map(
    (it) =>
      html`<li${it.isRare && html` data-unless="${NOTHING}"`}${isUnnamed(it) && html` hidden`}><span class="swatch ${it.tone}"></span>${it.name} <b${it.key && html` data-live="${it.key}"`}>${dollars(it.amount)}</b></li>`,
  );
  const words = parts
    .filter((it) => !isUnnamed(it))
    .map((it) => `${it.name} ${dollars(it.amount)}`)
    .join(', ');
  return html`<figure class="bar"><svg role="img" aria-label="${title}: ${words}" width="100%" height="14">${shapes}</svg><ul class="legend">${legend}</ul></figure>`;
}

type Cell = { at: number; key: string; amount: Nanos };

function axis(maximum: bigint, times: Html, shapes: Html, title: string): Html {
  return html`<div class="plot"><div class="y" aria-hidden="true"><span>${brief(maximum as Nanos)}</span><span>${brief((maximum / 2n) as Nanos)}</span><span>$0</span></div><svg role="img" aria-label="${title}" viewBox="0 0 ${WIDTH} ${HEIGHT}" preserveAspectRatio="none"><path class="grid" d="M0 0H${WIDTH}M0 ${HEIGHT / 2}H${WIDTH}M0 ${HEIGHT}H${WIDTH}"></path>${shapes}</svg><div class="x" aria-hidden="true">${times}</div></div>`;
}

/** The ends of an axis: one digit, so that half of it is round as well. */
const ROUND = [1n, 2n, 4n, 5n, 6n, 8n, 10n];

/** Rounds up to an amount of one digit, and at least to 20 nanodollars. */
function niceMaximum(value: bigint): bigint {
  if (value <= 20n) return 20n;
  const step = 10n ** BigInt(String(value).length - 1);
  return (ROUND.find((it) => it * step >= value) as bigint) * step;
}

/** The format of the ends of a length of time: with days where it is longer than two. */
const CLOCK = { hour: '2-digit', minute: '2-digit', timeZoneName: 'short' } as const;
const DAY = { day: 'numeric', month: 'short', year: 'numeric' } as const;
const endsIn = (zone: string, length: number) => timesIn(zone, length > 2 * DAY_SECONDS ? DAY : CLOCK);

/** The format of the time of a bar, on the axis and in full. */
const FORMATS: Record<Bars['every'], Record<'short' | 'long', Intl.DateTimeFormatOptions>> = {
  minute: {
    short: { hour: '2-digit', minute: '2-digit' },
    long: { day: 'numeric', month: 'short', hour: '2-digit', minute: '2-digit', timeZoneName: 'short' },
  },
  hour: {
    short: { day: 'numeric', month: 'short', hour: '2-digit', minute: '2-digit' },
    long: { dateStyle: 'medium', timeStyle: 'short' },
  },
  day: { short: { day: 'numeric', month: 'short' }, long: { dateStyle: 'full' } },
  week: { short: { day: 'numeric', month: 'short', year: '2-digit' }, long: { dateStyle: 'full' } },
  month: { short: { month: 'short', year: 'numeric' }, long: { month: 'long', year: 'numeric' } },
};
/** The most times that stand below a picture, so that they fit a phone. */
const TIME_COUNT_MAX = { minute: 6, hour: 3, day: 5, week: 4, month: 4 };
/** A text stands in the middle below its bar between these parts of the width, in percent: others would leave the card. */
const [LEFT_END, RIGHT_END] = [4, 88];

/** Writes the times of some of the bars, each below its bar. */
function timesBelow({ starts, every }: Bars, label: (at: number) => string): Html {
  const step = Math.ceil(starts.length / TIME_COUNT_MAX[every]);
  const texts = starts
    .map((at, bar) => ({ at, x: ((bar + 0.5) / starts.length) * 100 }))
    .filter((_, bar) => bar % step === 0)
    .map(({ at, x }) => {
      const anchor = x > RIGHT_END ? 'end' : x < LEFT_END ? 'start' : 'middle';
      return html`<text x="${x.toFixed(2)}%" y="12" text-anchor="${anchor}">${label(at)}</text>`;
    });
  return html`<svg class="times" width="100%" height="16">${texts}</svg>`;
}

/** The bars of a picture: where each begins, in order, and how long they are. */
type Bars = { starts: readonly number[]; every: 'minute' | 'hour' | 'day' | 'week' | 'month'; zone: string };

/** The keys of a picture: what they are, and how each is written; by default as it is. */
type KeyLabels = { what: string; write?: (key: string) => string };

/** Draws spending over time as stacked bars, one colour for each of the largest keys. A cell begins where a bar does. */
export function spendingChart(title: string, cells: readonly Cell[], { what, write, ...bars }: Bars & KeyLabels): Html {
  const written = (key: string) => outside(key === OTHERS ? key : (write?.(key) ?? key));
  const { starts, every, zone } = bars;
  const totals = new Map<string, bigint>();
  for (const { key, amount } of cells) totals.set(key, (totals.get(key) ?? 0n) + amount);
  const ranked = [...totals]
    .filter(([key]) => key !== OTHERS)
    .sort((a, b) => (a[1] < b[1] ? 1 : -1))
    .map(([key]) => key);
  const names = ranked.slice(0, SERIES_COUNT_MAX);
  if (ranked.length > names.length || totals.has(OTHERS)) names.push(OTHERS);
  const seriesOf = (key: string) => (names.includes(key) ? key : OTHERS);

  const positions = new Map(starts.map((at, place) => [at, place]));
  const width = WIDTH / Math.max(1, starts.length);
  const stacks = new Map<number, Map<string, bigint>>();
  for (const { at, key, amount } of cells) {
    const stack = stacks.get(at) ?? new Map<string, bigint>();
    stack.set(seriesOf(key), (stack.get(seriesOf(key)) ?? 0n) + amount);
    stacks.set(at, stack);
  }
  const heights = [...stacks.values()].map((stack) => [...stack.values()].reduce((a, b) => a + b, 0n));
  const maximum = niceMaximum(heights.reduce((a, b) => (a > b ? a : b), 0n));
  const long = timesIn(zone, FORMATS[every].long);

  const shapes = [...stacks].flatMap(([at, stack]) => {
    let y = HEIGHT;
    return names.flatMap((name, series) => {
      const amount = stack.get(name);
      if (!amount) return [];
      const height = Number(scaled(amount, maximum, HEIGHT));
      y -= height;
      const x = (positions.get(at) ?? 0) * width;
      const inner = Math.max(1, width - Math.min(2, width / 5));
      return [
        html`<rect class="s${series}" x="${x.toFixed(1)}" y="${y.toFixed(1)}" width="${inner.toFixed(1)}" height="${height.toFixed(1)}"><title>${long(at)}: ${written(name)} ${dollars(amount as Nanos)}</title></rect>`,
      ];
    });
  });
  const legend = names.map(
    (name, series) =>
      html`<li><span class="swatch s${series}"></span>${written(name)} <b>${brief((name === OTHERS ? ranked.slice(SERIES_COUNT_MAX).reduce((sum, key) => sum + (totals.get(key) ?? 0n), totals.get(OTHERS) ?? 0n) : (totals.get(name) ?? 0n)) as Nanos)}</b></li>`,
  );
  const rows = [...cells]
    .sort((a, b) => b.at - a.at || (a.key < b.key ? -1 : 1))
    .slice(0, ROW_COUNT_MAX)
    .map((it) => [when(it.at, bars), written(it.key), dollars(it.amount)]);
  const columns = [{ label: 'From' }, { label: what }, { label: 'Charged', kind: 'money' as const }];
  return html`<figure class="picture">${axis(maximum, timesBelow(bars, timesIn(zone, FORMATS[every].short)), html`${shapes}`, title)}<ul class="legend">${legend}</ul>${behind(html`${table(title, columns, rows)}${cells.length > rows.length && html`<p class="weak">The newest ${rows.length} of ${count(cells.length)}. A shorter time shows all of it.</p>`}`)}</figure>`;
}

export type Moment = { at: number; available: Nanos; held: Nanos };

/** Draws a wallet's life: the available amount as a line, and the held amount above it as a band. */
export function walletLife(moments: readonly Moment[], now: number, zone: string): Html {
  const [first] = moments;
  const last = moments.at(-1);
  if (!first || !last) return EMPTY;
  const until = Math.max(now, last.at); // A clock in doubt may be behind the books.
  const length = Math.max(1, until - first.at);
  const maximum = niceMaximum(moments.map((it) => it.available + it.held).reduce((a, b) => (a > b ? a : b), 0n));
  const x = (at: number) => (((at - first.at) / length) * WIDTH).toFixed(1);
  const y = (amount: bigint) => (HEIGHT - Number(scaled(amount, maximum, HEIGHT))).toFixed(1);
  const line = (of: (it: Moment) => bigint) =>
    `${moments.map((it, at) => `${at ? 'H' : 'M'}${x(it.at)}${at ? 'V' : ' '}${y(of(it))}`).join('')}H${x(until)}`;
  // The band goes forward along its upper edge and back along the line.
  const back = [...moments]
    .reverse()
    .map((it) => `V${y(it.available)}H${x(it.at)}`)
    .join('');
  const shapes = html`<path class="band" d="${line((it) => it.available + it.held)}${back}Z"></path><path class="line" d="${line((it) => it.available)}"></path>`;
  const label = endsIn(zone, length);
  const title = `Available money since the wallet was opened, now ${dollars(last.available)}, and what was held`;
  return html`<figure class="picture">${axis(maximum, html`<span>${label(first.at)}</span><span>${label(until)}</span>`, shapes, title)}<ul class="legend"><li><span class="swatch line"></span>available <b>${dollars(last.available)}</b></li><li><span class="swatch held"></span>held <b>${dollars(last.held)}</b></li></ul></figure>`;
}

export type Lease = {
  id: string;
  label: string;
  from: number;
  readyAt: number | null;
  until: number;
  isLive: boolean;
  /** The rest of its time in words, or that it has ended. */
  remainingTime: string;
  href: string;
};

/** Draws leases as a Gantt strip: from creation to deadline, with a line for now. */
export function ganttOf(leases: readonly Lease[], { now, zone }: { now: number; zone: string }): Html {
  if (!leases.length) return EMPTY;
  const from = Math.min(...leases.map((it) => it.from));
  const to = Math.max(now + 60, ...leases.map((it) => it.until));
  const x = (at: number) => `${(((Math.max(from, Math.min(to, at)) - from) / (to - from)) * 100).toFixed(2)}%`;
  const width = (start: number, end: number) =>
    `${((Math.max(0, Math.min(to, end) - Math.max(from, start)) / (to - from)) * 100).toFixed(2)}%`;
  const label = endsIn(zone, to - from);
  const rows = leases.map((it) => {
    const ready = it.readyAt ?? it.until;
    const shapes = html`<rect class="waiting" x="${x(it.from)}" width="${width(it.from, ready)}" y="4" height="12"></rect><rect class="${it.isLive ? 'used' : 'over'}" x="${x(ready)}" width="${width(ready, it.until)}" y="4" height="12"></rect>${it.isLive && html`<rect class="past" x="${x(ready)}" width="${width(ready, now)}" y="4" height="12"></rect>`}<rect class="now" x="${x(now)}" width="1" height="20"></rect>`;
    return html`<li><a href="${it.href}">${outside(it.label)}</a><svg role="img" aria-label="${outside(it.label)}: ${it.remainingTime}" width="100%" height="20">${shapes}</svg><span class="left"${it.isLive && html` data-live="${it.id}.left"`}>${it.remainingTime}</span></li>`;
  });
  return html`<figure class="gantt"><ol>${rows}</ol><div class="x" aria-hidden="true"><span>${label(from)}</span><span>${label(to)}</span></div></figure>`;
}

/** Returns the shapes of a `moneyBar` for the stream, by the keys of its parts: x and width. */
export function barShapes(parts: readonly BarPart[]): Record<string, string> {
  const whole = parts.reduce((sum, it) => sum + it.amount, 0n);
  const shapes: Record<string, string> = {};
  let x = 0n;
  for (const { key, amount } of parts) {
    if (key) shapes[`${key}.bar`] = `${percent(x, whole)} ${percent(amount, whole)}`;
    x += amount;
  }
  return shapes;
}
