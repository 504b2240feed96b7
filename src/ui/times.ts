import { relative } from '../base/shown.ts';
import { type Html, html } from './html.ts';

/** The reader of a page: the time zone, and the time, in Unix seconds. A visit has both. */
type PageReader = { zone: string; now: number };

/** Formats that are kept. One takes some 30 KiB, and readers may write a zone in any case, or as any offset. */
const FORMAT_COUNT_MAX = 200;
const formats = new Map<string, Intl.DateTimeFormat>();

function formatOf(zone: string, options: Intl.DateTimeFormatOptions): Intl.DateTimeFormat {
  const name = `${zone} ${JSON.stringify(options)}`;
  let format = formats.get(name);
  if (!format) {
    format = new Intl.DateTimeFormat('en-GB', { ...options, timeZone: zone });
    if (formats.size >= FORMAT_COUNT_MAX) formats.delete(formats.keys().next().value as string);
    formats.set(name, format);
  }
  return format;
}

/** Returns a function that writes times (Unix seconds) in a zone, in the words of English. */
export function timesIn(zone: string, options: Intl.DateTimeFormatOptions): (at: number) => string {
  const format = formatOf(zone, options);
  return (at) => format.format(at * 1000);
}

const EXACT = { dateStyle: 'short', timeStyle: 'long' } as const;

/** Writes a time to the second, with its zone: "2026-03-31 14:05:09 CEST". */
function exactly(at: number, zone: string): string {
  const parts = formatOf(zone, EXACT).formatToParts(at * 1000);
  const part = (type: Intl.DateTimeFormatPartTypes) => parts.find((it) => it.type === type)?.value ?? '';
  const date = `${part('year')}-${part('month')}-${part('day')}`;
  return `${date} ${part('hour')}:${part('minute')}:${part('second')} ${part('timeZoneName')}`;
}

/** Writes a time, with what its text leaves out as a hint: UTC, and beside "3 min ago" the reader's own. */
function timeElement(at: number, zone: string, text?: string): Html {
  const iso = new Date(at * 1000).toISOString();
  const hints = [...(text === undefined ? [] : [zone]), ...(zone === 'UTC' ? [] : ['UTC'])].map((it) =>
    exactly(at, it),
  );
  return html`<time datetime="${iso}"${hints.length > 0 && html` title="${hints.join(', ')}"`}>${text ?? exactly(at, zone)}</time>`;
}

/** Writes a time in the zone of the reader, with UTC as a hint. */
export function when(
  at: number | null | undefined,
  { zone }: Pick<PageReader, 'zone'>,
  otherwise: Html | string = '–',
): Html | string {
  return at == null ? otherwise : timeElement(at, zone);
}

/** Writes how long ago a time is, or how far ahead, with the time itself as a hint. */
export function ago(at: number | null | undefined, { zone, now }: PageReader, otherwise = '–'): Html | string {
  if (at == null) return otherwise;
  return timeElement(at, zone, relative(at, now));
}
