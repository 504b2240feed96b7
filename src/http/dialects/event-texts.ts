import type { Json } from '../../base/parse-json.ts';
import { isObject, piecesOf } from './json.ts';

export type NamedEvent = Json & { type: string };

/** The text of server-sent events, in pieces. Pieces of long events are made on demand, so that other work runs in between. */
export type Texts = Iterable<string>;

/** Longer texts come in pieces of about this many characters. */
const PIECE_LENGTH = 32 * 1024;

/** Returns the text of events whose names are the types of their data. */
export const textsOf = (events: readonly NamedEvent[]): Texts =>
  lengthIn(events) < PIECE_LENGTH
    ? [events.map((it) => `event: ${it.type}\ndata: ${JSON.stringify(it)}\n\n`).join('')]
    : collected(longTexts(events));

/** Joins short pieces. */
function* collected(pieces: Texts): Generator<string> {
  let text = '';
  for (const piece of pieces) {
    text += piece;
    if (text.length < PIECE_LENGTH) continue;
    yield text;
    text = '';
  }
  if (text) yield text;
}

function* longTexts(events: readonly NamedEvent[]): Generator<string> {
  for (const event of events) {
    yield `event: ${event.type}\ndata: `;
    yield* jsonTexts(event);
    yield '\n\n';
  }
}

/** Yields the JSON of plain data, as JSON.stringify writes it. */
function* jsonTexts(value: unknown): Generator<string> {
  if (Array.isArray(value)) {
    for (const [i, it] of value.entries()) {
      yield i ? ',' : '[';
      yield* jsonTexts(it);
    }
    yield value.length ? ']' : '[]';
  } else if (isObject(value)) {
    let before = '{';
    for (const [name, it] of Object.entries(value)) {
      if (it === undefined) continue;
      yield `${before}${JSON.stringify(name)}:`;
      yield* jsonTexts(it);
      before = ',';
    }
    yield before === '{' ? '{}' : '}';
  } else if (typeof value === 'string' && value.length > PIECE_LENGTH) {
    yield '"';
    for (const piece of piecesOf(value, PIECE_LENGTH)) yield JSON.stringify(piece).slice(1, -1);
    yield '"';
  } else yield JSON.stringify(value ?? null);
}

/** Counts the characters in the strings of plain data, up to the limit of one piece. */
function lengthIn(value: unknown): number {
  if (typeof value === 'string') return value.length;
  if (typeof value !== 'object' || value === null) return 1;
  let length = 1;
  for (const name in value) {
    length += lengthIn((value as Json)[name]);
    if (length >= PIECE_LENGTH) break;
  }
  return length;
}
