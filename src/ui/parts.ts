import type { Nanos } from '../base/money.ts';
import { formatUsd } from '../base/money.ts';
import { type StateTone, toneOf } from '../base/shown.ts';
import { visible } from '../base/visible.ts';
import { EMPTY, type Html, type HtmlValue, html } from './html.ts';

/**
 * Escapes text from outside, of an agent, a model server or a backend: characters that would reorder or hide it are made
 * visible.
 */
export const outside = (text: string): string => visible(text);

/**
 * Matches a text without visible characters: spaces, and characters that only shape their neighbours. Unicode regards the
 * blank of Braille as a symbol.
 */
const UNSEEN = /^[\s\p{Cf}\p{Default_Ignorable_Code_Point}\u2800]*$/u;

/** Returns the name of a wallet, an account or a key; the end of its id if no character of the name is visible. */
export const named = (id: string, name = ''): string => (UNSEEN.test(name) ? endOf(id) : outside(name));

const grouped = (whole: string) => whole.replace(/\B(?=(\d{3})+$)/g, ',');

/** Writes an amount to the cent where it is whole cents, else to the nano. */
export function dollars(amount: string | Nanos): string {
  const text = typeof amount === 'string' ? amount : formatUsd(amount);
  const [whole = '0', fraction = '00'] = text.split('.');
  return whole.startsWith('-') ? `−$${grouped(whole.slice(1))}.${fraction}` : `$${grouped(whole)}.${fraction}`;
}

const BRIEF_DIGITS = 4;

/** Writes a short amount: to the cent from a cent on, and a smaller one to two digits. Use `money` for exact figures. */
export function brief(amount: string | Nanos): string {
  const text = typeof amount === 'string' ? amount : formatUsd(amount);
  const [whole = '0', fraction = ''] = text.split('.');
  const zeros = /^0*/.exec(fraction)?.[0].length ?? 0;
  const digits = Number(whole) !== 0 || zeros < 2 ? 2 : Math.min(fraction.length, Math.max(BRIEF_DIGITS, zeros + 2));
  return dollars(`${whole}.${fraction.slice(0, digits)}`);
}

/** Writes an amount to the nano, so that a column of them lines up; digits below a cent have a weaker colour. */
export function money(amount: string | Nanos, sign = ''): Html {
  const text = typeof amount === 'string' ? amount : formatUsd(amount);
  const [whole = '0', fraction = ''] = text.split('.');
  const digits = fraction.padEnd(9, '0');
  const isMinus = whole.startsWith('-');
  const shown = `${isMinus ? '−' : sign}${grouped(isMinus ? whole.slice(1) : whole)}.${digits.slice(0, 2)}`;
  return html`<data class="money" value="${text}">${shown}<span class="nano">${digits.slice(2)}</span></data>`;
}

/** Writes an amount that is whole cents without the digits below them; another to the nano, like `money`. */
export function wholeCents(amount: Nanos): Html {
  const text = formatUsd(amount);
  return /\.\d\d$/.test(text)
    ? html`<data class="money" value="${text}">${dollars(text).replace('$', '')}</data>`
    : money(text);
}

/** Writes whole cents as dollars. */
export const cents = (amount: number): string => {
  const digits = String(Math.abs(amount)).padStart(3, '0');
  return dollars(`${amount < 0 ? '-' : ''}${digits.slice(0, -2)}.${digits.slice(-2)}`);
};

export const count = (n: number): string => grouped(String(n));
export const plural = (n: number, one: string, many = `${one}s`): string => `${count(n)} ${n === 1 ? one : many}`;

export const badge = (text: string, tone: StateTone = 'quiet'): Html =>
  html`<span class="badge ${tone}">${text}</span>`;

export const state = (name: string): Html => badge(name.replaceAll('_', ' '), toneOf(name) ?? 'quiet');

/** Renders an element whose text the stream of the page keeps up to date. */
export const live = (key: string, value: HtmlValue): Html => html`<span data-live="${key}">${value}</span>`;

export const copyButton = (text: string, what: string): Html =>
  html`<button type="button" class="copy" data-copy="${text}" aria-label="Copy ${what}" hidden>Copy</button>`;

/** Renders an id in full, with a button that copies it. */
export const id = (text: string): Html => html`<code class="id">${text}</code> ${copyButton(text, text)}`;

/** Returns the end of an id, the part that people can distinguish. */
export const endOf = (id: string): string => `…${id.slice(-6)}`;
export const shortId = (text: string): Html => html`<code class="id" title="${text}">${endOf(text)}</code>`;

export type Column = {
  label: string;
  kind?: 'text' | 'number' | 'money' | 'time' | 'actions';
  /** The address of the list sorted by this column, and how it is sorted by it now. */
  sort?: { to: string; is: 'ascending' | 'descending' | undefined };
  /** A narrow list begins each row with this column; by default with the first of text, and of money. */
  isFirst?: boolean;
};

/**
 * Renders a table. A narrow one shows each row as a card: name, amount and button, then the other cells with their labels; roles
 * keep it a table for screen readers. `empty` advises what to do without rows.
 */
export function table(
  caption: string,
  columns: readonly Column[],
  rows: readonly (readonly HtmlValue[])[],
  empty: HtmlValue = 'Nothing here.',
): Html {
  if (!rows.length) return html`<div class="empty">${empty}</div>`;
  const head = columns.map(({ label, kind = 'text', sort }) =>
    kind === 'actions'
      ? html`<td class="actions" role="cell"></td>`
      : html`<th scope="col" class="${kind}" role="columnheader"${sort?.is && html` aria-sort="${sort.is}"`}>${sort ? sortLink(label, sort) : label}</th>`,
  );
  const starts = columns.map((it) => html`<td ${cellAttributes(it, columns)} role="cell">`);
  const body = rows.map((row) => html`<tr role="row">${row.map((cell, at) => html`${starts[at]}${cell}</td>`)}</tr>`);
  return html`<div class="scroll" tabindex="0" role="region" aria-label="${caption}"><table role="table"><caption class="hidden">${caption}</caption><thead role="rowgroup"><tr role="row">${head}</tr></thead><tbody role="rowgroup">${body}</tbody></table></div>`;
}

/** Returns the attributes of a column's cells: its kind, its place on a card, and the label that it has there. */
function cellAttributes(column: Column, columns: readonly Column[]): Html {
  const { kind = 'text', label } = column;
  const ofKind = (wanted: Column['kind']) => columns.filter((it) => (it.kind ?? 'text') === wanted);
  const isFirst = (wanted: Column['kind']) => column === (ofKind(wanted).find((it) => it.isFirst) ?? ofKind(wanted)[0]);
  if (isFirst('text')) return html`class="${kind} name"`;
  return html`class="${kind}${isFirst('money') && ' amount'}"${kind !== 'actions' && html` data-label="${label}"`}`;
}

const ARROWS = { ascending: ' ↑', descending: ' ↓' };
const sortLink = (label: string, { to, is }: NonNullable<Column['sort']>): Html =>
  html`<a href="${to}">${label}</a>${is && html`<span aria-hidden="true">${ARROWS[is]}</span>`}`;

/** Renders names and values side by side. */
export const facts = (list: readonly (readonly [name: string, value: HtmlValue] | false)[]): Html =>
  html`<dl class="facts">${list.map((it) => it && html`<div><dt>${it[0]}</dt><dd>${it[1]}</dd></div>`)}</dl>`;

/** Renders a part of a page under a heading. `name` is its fragment in addresses. */
export const card = (title: HtmlValue, body: HtmlValue, aside: HtmlValue = EMPTY, name?: string): Html =>
  html`<section class="card"${name !== undefined && html` id="${name}"`}><header><h2>${title}</h2>${aside !== EMPTY && aside !== '' && html`<span>${aside}</span>`}</header>${body}</section>`;

/** The longest value of a figure that fits at its usual size. */
const VALUE_LENGTH_MAX = 11;

/** Renders one figure with its name; a long value is smaller, as a sum is not broken in the middle. */
export function figure(name: string, value: HtmlValue, note: HtmlValue = EMPTY, tone: StateTone | '' = ''): Html {
  const isLong = String(value).replace(/<[^<>]*>/g, '').length > VALUE_LENGTH_MAX;
  return html`<div class="figure ${tone}"><div class="name">${name}</div><div class="value${isLong && ' long'}">${value}</div><div class="note">${note}</div></div>`;
}

export const link = (to: string, text: HtmlValue): Html => html`<a href="${to}">${text}</a>`;
export const buttonLink = (to: string, text: string, tone = ''): Html =>
  html`<a class="button ${tone}" href="${to}">${text}</a>`;

export type Field =
  | {
      name: string;
      label: string;
      type?: 'text' | 'password' | 'date' | 'file';
      value?: string;
      hint?: string;
      required?: boolean;
      pattern?: string;
      placeholder?: string;
      autocomplete?: string;
      inputmode?: 'decimal' | 'numeric';
    }
  | { name: string; label: string; options: readonly (readonly [value: string, text: string])[]; value?: string };

/** Makes ids of fields unique: several forms of a page may have a field of the same name. */
let fieldCount = 0;

function field(it: Field): Html {
  fieldCount = (fieldCount + 1) % 1_000_000;
  const fieldId = `f${fieldCount}-${it.name}`;
  const label = html`<label for="${fieldId}">${it.label}</label>`;
  if ('options' in it) {
    const options = it.options.map(
      ([value, text]) => html`<option value="${value}"${value === it.value && html` selected`}>${text}</option>`,
    );
    return html`<div class="field">${label}<select id="${fieldId}" name="${it.name}">${options}</select></div>`;
  }
  const hintId = `${fieldId}-hint`;
  const attributes = html`${it.required && html` required`}${it.pattern && html` pattern="${it.pattern}"`}${it.placeholder && html` placeholder="${it.placeholder}"`}${it.inputmode && html` inputmode="${it.inputmode}"`}${it.hint && html` aria-describedby="${hintId}"`}`;
  return html`<div class="field">${label}<input id="${fieldId}" name="${it.name}" type="${it.type ?? 'text'}" value="${it.value ?? ''}" autocomplete="${it.autocomplete ?? 'off'}"${attributes}>${it.hint && html`<p class="hint" id="${hintId}">${it.hint}</p>`}</div>`;
}

type FormOrder = {
  action: string;
  fields?: readonly Field[];
  submit: string;
  tone?: 'primary' | 'danger' | '';
  hidden?: Record<string, string>;
  isInline?: boolean;
  /** The path at which the page's script gets the question to a passkey; the answer is sent in the field `credential`. */
  passkey?: string;
};

/** Renders a form that changes something: always a POST. */
export function form(order: FormOrder): Html {
  const { action, fields = [], submit, tone = '', hidden = {}, isInline = false, passkey } = order;
  const extra = Object.entries({ ...hidden, ...(passkey !== undefined && { credential: '' }) }).map(
    ([name, value]) => html`<input type="hidden" name="${name}" value="${value}">`,
  );
  const isUpload = fields.some((it) => 'type' in it && it.type === 'file');
  return html`<form method="post" action="${action}"${isUpload && html` enctype="multipart/form-data"`} class="${isInline ? 'inline' : 'stack'}"${passkey !== undefined && html` data-passkey="${passkey}"`}>${extra}${fields.map(field)}<button class="${tone}"${passkey !== undefined && html` hidden`}>${submit}</button>${passkey !== undefined && html`<p class="hint" role="status">A passkey needs JavaScript.</p>`}</form>`;
}

/** Fields of a form that are folded until they are wanted; they are sent all the same. */
type MoreFields = { title: string; fields: readonly Field[]; isOpen: boolean };

/** Renders a form that filters a list, or chooses what is shown: a GET, so that the address contains the choice. */
export function filters(
  action: string,
  fields: readonly Field[],
  { submit = 'Filter', more }: { submit?: string; more?: MoreFields } = {},
): Html {
  const rest =
    more &&
    html`<details class="more"${more.isOpen && html` open`}><summary>${more.title}</summary><div class="filters">${more.fields.map(field)}</div></details>`;
  return html`<form method="get" action="${action}" class="filters">${fields.map(field)}<button>${submit}</button>${rest}</form>`;
}

type PagerLabels = readonly [first: string, next: string];
const NEWEST_FIRST: PagerLabels = ['Newest', 'Older'];

/**
 * Renders links to the first and the next page of a list, given as addresses; undefined means no link. The total is undefined
 * where it was not counted.
 */
export const pager = (
  shown: number,
  total: number | undefined,
  first: string | undefined,
  next: string | undefined,
  words = NEWEST_FIRST,
): Html =>
  html`<nav class="pager" aria-label="Pages"><span>${count(shown)}${total === undefined ? ' shown' : ` of ${count(total)}`}</span>${first !== undefined && link(first, words[0])}${next !== undefined && link(next, words[1])}</nav>`;

/** Separates a page of a list from the row beyond it, which is read to find whether the list continues, and after which row. */
export function cutPage<T>(rows: readonly T[], length: number): { page: readonly T[]; goesOnAfter: T | undefined } {
  return { page: rows.slice(0, length), goesOnAfter: rows.length > length ? rows[length - 1] : undefined };
}

/** A list of which parts are taken, as an array or as a query of the books. */
export type Rows<T> = { length: number; slice(from: number, to: number): readonly T[] };

/**
 * Returns one page of a list that shares its page with other lists, and the links to its other pages. The parameter `name` of the
 * address has the index of the first row, and is also the list's card. `words` are the texts of the links.
 */
export function pagesOf<T>(
  { path, query }: { path: string; query: URLSearchParams },
  name: string,
  rows: Rows<T>,
  length: number,
  [first, next] = NEWEST_FIRST,
): { shown: readonly T[]; pages: Html } {
  const from = Math.min(Math.max(0, Math.floor(Number(query.get(name)) || 0)), rows.length);
  const shown = rows.slice(from, from + length);
  if (from === 0 && rows.length <= length) return { shown, pages: EMPTY };
  const to = (at: number) => `${address(path, query, { [name]: at ? String(at) : undefined })}#${name}`;
  const part = shown.length ? `${count(from + 1)} to ${count(from + shown.length)} of ` : '';
  const pages = html`<nav class="pager" aria-label="Pages of ${name}"><span>${part}${count(rows.length)}</span>${from > 0 && link(to(0), first)}${from + length < rows.length && link(to(from + length), next)}</nav>`;
  return { shown, pages };
}

/** Returns an address with its query changed; an empty value leaves a name out. */
export function address(path: string, query: URLSearchParams, change: Record<string, string | undefined>): string {
  const next = new URLSearchParams(query);
  for (const [name, value] of Object.entries(change)) {
    if (value) next.set(name, value);
    else next.delete(name);
  }
  next.delete('done');
  const text = next.toString();
  return text ? `${path}?${text}` : path;
}
