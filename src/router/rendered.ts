/**
 * Upper bounds of the bytes that a model server can make of a value when it renders the prompt. Every tokenizer in use
 * makes at most one token of a byte, so these bound tokens, too. A server does not tokenize the request's bytes: it parses
 * the JSON, and its chat template writes values again, with other spacing, other escapes and other forms of numbers.
 */

/** A chunk of text, in UTF-16 units, that is normalized at once: some forms are eleven times as long as the text. */
const CHUNK_UNITS = 16_384;
/** The longest double. */
const NUMBER_BYTES_MAX = 25;
/** Python gives a whole one a ".0", and an exponent two digits; no other form is longer than ours. */
const NUMBER_BYTES_MORE = 3;
/** `false`, `False`. */
const LITERAL_BYTES = 5;
const INDENT_BYTES = 4;
/** The tags around one argument of a call in templates that write XML, the longest of those known (GLM-4.5: 44). */
const ARGUMENT_TAG_BYTES = 48;
/** As deep as the body of a request may be. */
const NESTING_MAX = 100;

/** What a walk through a value has come to; at `enough` it stops, since no more than that is ever counted. */
type Sum = { bytes: number; readonly enough: number };

/** Tells of JSON in a string that is nested deeper than any honest request has. */
export class TooDeep extends Error {}

/** Bytes of a text as it is, or in the normal form that a tokenizer brings it to first (NFC: Qwen; NFKC: SentencePiece). */
export function textBytes(text: string, enough = Number.POSITIVE_INFINITY): number {
  if (Buffer.byteLength(text) === text.length) return text.length; // ASCII is every form of itself.
  let bytes = 0;
  for (let at = 0; at < text.length && bytes < enough; at += CHUNK_UNITS) {
    const chunk = text.slice(at, at + CHUNK_UNITS);
    bytes += Math.max(
      Buffer.byteLength(chunk),
      Buffer.byteLength(chunk.normalize('NFC')),
      Buffer.byteLength(chunk.normalize('NFKC')),
    );
  }
  return bytes;
}

/**
 * Bytes of a text between the quotes of a JSON string. Beside what JSON demands, Jinja's own `tojson` and Go's
 * `json.Marshal` write `<`, `>`, `&` and `'` in 6 bytes, and Python by default everything beyond ASCII.
 */
export function quotedBytes(text: string, enough = Number.POSITIVE_INFINITY): number {
  let escapes = 0;
  let beyondAscii = 0;
  for (let i = 0; i < text.length && escapes + i < enough; i++) {
    const unit = text.charCodeAt(i);
    if (unit > 0x7f) beyondAscii++;
    else escapes += ESCAPE_BYTES[unit] as number;
  }
  if (beyondAscii === 0) return text.length + escapes;
  return escapes + Math.max(text.length + 5 * beyondAscii, textBytes(text, enough));
}

/** What an ASCII character takes beside its one byte. */
const ESCAPE_BYTES = Uint8Array.from({ length: 128 }, (_, unit) => {
  const character = String.fromCharCode(unit);
  if ('"\\\n\r\t'.includes(character)) return 1;
  return unit < 0x20 || unit === 0x7f || "<>&'".includes(character) ? 5 : 0;
});

/** Bytes of a value as a template writes it, as JSON with an indentation of four or as XML. Throws TooDeep. */
export function valueBytes(value: unknown, enough = Number.POSITIVE_INFINITY): number {
  const sum = { bytes: 0, enough };
  add(sum, value, 1);
  return sum.bytes;
}

function add(sum: Sum, value: unknown, depth: number): void {
  if (sum.bytes >= sum.enough) return;
  if (typeof value === 'string') sum.bytes += 2 + quotedBytes(value, sum.enough);
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
        if (key === 'arguments' && typeof it === 'string') addArguments(sum, it, depth + 1);
        else add(sum, it, depth + 1);
        if (key === 'name') add(sum, it, depth); // A call's answer may be rendered under the function's name again.
      }
  }
}

/**
 * The arguments of a call, which are JSON in a string. vLLM, Ollama and llama.cpp parse them, and the template writes the
 * values; what cannot be parsed, or is not, stays a text.
 */
function addArguments(sum: Sum, text: string, depth: number): void {
  const quoted = 2 + quotedBytes(text, sum.enough);
  // Megabytes of brackets take seconds to parse, and no more than `enough` is ever counted.
  if (sum.bytes + quoted >= sum.enough) {
    sum.bytes += quoted;
    return;
  }
  const parsed = parseArguments(text);
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
    return { value: JSON.parse(text), extra: digits };
  } catch {}
  try {
    // Python reads these, too.
    const value: unknown = JSON.parse(text.replace(/-?\b(?:NaN|Infinity)\b/g, '0'));
    return { value, extra: digits + text.length };
  } catch {
    return undefined;
  }
}
