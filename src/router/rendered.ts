import { parseNested, UncountedJson } from '../base/json-text.ts';
import { isText, LongText, type Text } from '../base/long-text.ts';

/**
 * Upper bounds of the bytes that a model server can make of a value when it renders the prompt. Every tokenizer in use makes at
 * most one token per byte, so these also bound tokens. A server does not tokenize the request's bytes: it parses the JSON, and its
 * chat template writes the values again, with other spacing, escapes and number formats.
 */

/** The size of the chunks in which text is written, in UTF-16 units. */
const CHUNK_UNITS = 16_384;
/**
 * The size of the chunks in which text is normalized: ordering the marks takes the square of the length of their run, which
 * may span a whole text.
 */
const NORMALIZED_UNITS = 64;
/**
 * A chunk ends up to this many units earlier to avoid cutting a run of marks. Real runs are shorter (UAX 15, stream-safe
 * text).
 */
const RUN_UNITS_MAX = 32;
const CHARACTER_UNITS_MAX = 2;
/** Maximum bytes by which the normal form of a run exceeds those of its two pieces together: a letter and three marks. */
const CUT_RUN_BYTES = 8;
/** The longest double. */
const NUMBER_BYTES_MAX = 25;
/** Python adds ".0" to a whole number and writes exponents with two digits; no other format is longer than ours. */
const NUMBER_BYTES_MORE = 3;
/** `false`, `False`. */
const LITERAL_BYTES = 5;
const INDENT_BYTES = 4;
/** The longest known tags around one call argument in templates that write XML (GLM-4.5: 44). */
const ARGUMENT_TAG_BYTES = 48;
/** The nesting limit of a request body. */
const NESTING_MAX = 100;

/** The running total of a traversal. It stops at `enough`, as more is never counted. */
type Sum = { bytes: number; readonly enough: number };

/** Thrown for JSON in a string that is nested deeper than any real request, or has more values. */
export class TooDeep extends Error {}

/**
 * Returns the bytes of a text as it is, or in the normal form that a tokenizer applies first (NFC: Qwen; NFKC:
 * SentencePiece).
 */
export function textBytes(text: Text, enough = Number.POSITIVE_INFINITY): number {
  if (text instanceof LongText) return text.asciiLength ?? piecesBytes(text.pieces(), enough);
  return Buffer.byteLength(text) === text.length ? text.length : piecesBytes([text], enough); // ASCII is its own normal form.
}

function piecesBytes(pieces: readonly string[], enough: number): number {
  let bytes = 0;
  let text = '';
  for (const [i, piece] of pieces.entries()) {
    text += piece;
    // What follows a chunk decides where it ends.
    const end = i === pieces.length - 1 ? text.length : text.length - NORMALIZED_UNITS - CHARACTER_UNITS_MAX;
    let at = 0;
    while (at < end && bytes < enough) {
      const to = endOfChunk(text, at);
      const chunk = text.slice(at, to);
      bytes += Math.max(
        Buffer.byteLength(chunk),
        Buffer.byteLength(chunk.normalize('NFC')),
        Buffer.byteLength(chunk.normalize('NFKC')),
      );
      if (continues(text, to)) bytes += CUT_RUN_BYTES;
      at = to;
    }
    text = text.slice(at);
  }
  return bytes;
}

/**
 * Returns the end of a chunk that begins at `at`: before a nearby character that does not combine with the one before it,
 * if any.
 */
function endOfChunk(text: string, at: number): number {
  const longest = at + NORMALIZED_UNITS;
  if (longest >= text.length) return text.length;
  for (let end = longest; end > longest - RUN_UNITS_MAX; end--)
    if (!continues(text, end) && !isLowSurrogate(text.charCodeAt(end))) return end;
  return isLowSurrogate(text.charCodeAt(longest)) ? longest - 1 : longest;
}

const isLowSurrogate = (unit: number) => unit >= 0xdc00 && unit <= 0xdfff;
/** Marks, and the halfwidth signs that become marks in NFKC. */
const CONTINUING = /[\p{M}\uff9e\uff9f]/uy;

/** Returns whether the character at `at` may be reordered, or composed, with those before it. */
function continues(text: string, at: number): boolean {
  if (text.charCodeAt(at) < 0x300 || at >= text.length) return false;
  CONTINUING.lastIndex = at;
  return CONTINUING.test(text);
}

/**
 * Returns the bytes of a text inside a JSON string. Besides what JSON requires, Jinja's `tojson` and Go's
 * `json.Marshal` write `<`, `>`, `&` and `'` in 6 bytes, and Python by default everything beyond ASCII.
 */
export function quotedBytes(text: Text, enough = Number.POSITIVE_INFINITY): number {
  if (!(text instanceof LongText)) return quotedPiecesBytes([text], enough);
  const length = text.asciiLength;
  return length === undefined ? quotedPiecesBytes(text.pieces(), enough) : length + text.sumOf(EXTRA);
}

function quotedPiecesBytes(pieces: readonly string[], enough: number): number {
  let units = 0;
  let escapes = 0;
  let beyondAscii = 0;
  for (const text of pieces) {
    for (let at = 0; at < text.length && escapes + units + at < enough; at += CHUNK_UNITS) {
      const length = chunkBytes.write(text.slice(at, at + CHUNK_UNITS));
      let sum = 0;
      for (let i = 0; i < length; i++) sum += EXTRA[chunkBytes[i] as number] as number;
      escapes += sum % BEYOND_ASCII;
      beyondAscii += Math.floor(sum / BEYOND_ASCII);
    }
    units += text.length;
  }
  if (beyondAscii === 0) return units + escapes;
  return escapes + Math.max(units + 5 * beyondAscii, piecesBytes(pieces, enough));
}

/** A chunk of text in UTF-8: bytes are read faster than the characters of a string. */
const chunkBytes = Buffer.allocUnsafeSlow(3 * CHUNK_UNITS);
/** Counts a character beyond ASCII, in the same sum as the escapes of a chunk, which are fewer. */
const BEYOND_ASCII = 2 ** 20;

/**
 * The amount that each byte adds to the sum: the extra bytes of an escaped ASCII character, or the UTF-16 units that a
 * first byte begins.
 */
const EXTRA = Float64Array.from({ length: 256 }, (_, byte) => {
  if (byte >= 0x80) return byte >= 0xf0 ? 2 * BEYOND_ASCII : byte >= 0xc0 ? BEYOND_ASCII : 0;
  const character = String.fromCharCode(byte);
  if ('"\\\n\r\t'.includes(character)) return 1;
  return byte < 0x20 || byte === 0x7f || "<>&'".includes(character) ? 5 : 0;
});

/** Returns the bytes of a value as a template writes it: as JSON indented by four, or as XML. Throws TooDeep. */
export function valueBytes(value: unknown, enough = Number.POSITIVE_INFINITY): number {
  const sum = { bytes: 0, enough };
  add(sum, value, 1);
  return sum.bytes;
}

function add(sum: Sum, value: unknown, depth: number): void {
  if (sum.bytes >= sum.enough) return;
  if (isText(value)) sum.bytes += 2 + quotedBytes(value, sum.enough);
  else if (typeof value === 'number') sum.bytes += Math.min(String(value).length + NUMBER_BYTES_MORE, NUMBER_BYTES_MAX);
  else if (typeof value !== 'object' || value === null) sum.bytes += LITERAL_BYTES;
  else if (depth > NESTING_MAX) throw new TooDeep();
  else {
    const line = 2 + INDENT_BYTES * depth; // A comma, a line feed and the indentation.
    sum.bytes += 2 + line;
    if (Array.isArray(value))
      for (let i = 0; i < value.length && sum.bytes < sum.enough; i++) {
        sum.bytes += line;
        add(sum, value[i], depth + 1);
      }
    else
      for (const [key, it] of Object.entries(value)) {
        const keyBytes = quotedBytes(key, sum.enough);
        sum.bytes += Math.max(keyBytes + 4 + line, 2 * keyBytes + 6); // "key": …, or <key>…</key>
        if (key === 'arguments' && isText(it)) addArguments(sum, it, depth + 1);
        else add(sum, it, depth + 1);
        if (key === 'name') add(sum, it, depth); // The tool's result may be rendered with the function's name again.
      }
  }
}

/**
 * Adds the arguments of a call, which are JSON in a string. vLLM, Ollama and llama.cpp parse them, and the template writes
 * the values; arguments that cannot be parsed, or are not, stay text.
 */
function addArguments(sum: Sum, text: Text, depth: number): void {
  const quoted = 2 + quotedBytes(text, sum.enough);
  // Megabytes of brackets take seconds to parse, and no more than `enough` is ever counted.
  if (sum.bytes + quoted >= sum.enough) {
    sum.bytes += quoted;
    return;
  }
  const parsed = parseArguments(String(text));
  let byValue = 0;
  if (parsed) {
    const inner = { bytes: parsed.extra, enough: sum.enough };
    add(inner, parsed.value, depth);
    if (typeof parsed.value === 'object' && parsed.value !== null)
      inner.bytes += ARGUMENT_TAG_BYTES * Object.keys(parsed.value).length;
    byValue = inner.bytes;
  }
  sum.bytes += Math.max(quoted, byValue);
}

function parseArguments(text: string): { value: unknown; extra: number } | undefined {
  // Python keeps all the digits of a whole number, where a double from 1e21 is written with an exponent.
  const digits = /\d{21}/.test(text) ? text.length : 0;
  try {
    const parsed = parseNested(text);
    if (parsed) return { ...parsed, extra: digits };
    // Python reads these, too.
    const read = parseNested(text.replace(/-?\b(?:NaN|Infinity)\b/g, '0'));
    return read && { ...read, extra: digits + text.length };
  } catch (error) {
    if (error instanceof UncountedJson) throw new TooDeep();
    throw error;
  }
}
