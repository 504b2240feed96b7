import { isUtf8 } from 'node:buffer';
import {
  END,
  KIND_MASK,
  LIST,
  NESTING_MAX,
  NEXT,
  NODE_LENGTH,
  NUMBERS,
  OBJECT,
  type Scan,
  type ScanFault,
  START,
  STRING,
  scan,
} from './json-scan.ts';
import { PIECE_BYTES, type ScannedText, stringAt } from './json-strings.ts';
import { LongText } from './long-text.ts';
import { endOfString, parseJson, parsePlain, setMember } from './parse-json.ts';
import { Refusal } from './refusal.ts';

/** The most values that a body may have. A long text is one value, so only a hostile body has more. */
const VALUE_COUNT_MAX = 50_000;

const [QUOTE, COMMA, COLON, BACKSLASH] = [0x22, 0x2c, 0x3a, 0x5c];
const [OPEN_LIST, CLOSE_LIST, OPEN_OBJECT, CLOSE_OBJECT] = [0x5b, 0x5d, 0x7b, 0x7d];

/** A member of an object: where its name begins and its value ends, in bytes. */
export type TextMember = { name: string; start: number; end: number };

/** The facts about a JSON text that are known without its values. */
export type Outline = Pick<Scan, 'memberCount'> & {
  /** The members of the outermost object, in their order, duplicates included. */
  members: TextMember[];
  /**
   * True if no other reader finds more in it than JSON.parse does: no gap of more than one white space, no number that exceeds its
   * shortest form by more than prices allow for, and no escape in a name, which a server that runs on V8 may take for another name
   * (parse-json.ts). Duplicate names are not detected here.
   */
  isPlain: boolean;
};

/** A parsed body with its outline. */
export type ParsedText = { text: ScannedText; outline: Outline; value: unknown };

/**
 * Parses a body of at most 100 levels and 50,000 values, or `valuesMax`. `take` gets the counts of values and numbers before any
 * value is created; an exception that it throws ends the parsing. Up to `numbersMax` numbers directly in lists do not count as
 * values. Long strings in the outermost member `keptIn` may be LongTexts. Throws `invalid_json` for a body that is not JSON in
 * UTF-8.
 */
export function parseText(
  bytes: Buffer,
  numbersMax: number,
  take: (counts: Pick<Scan, 'values' | 'numbers'>) => void,
  valuesMax = VALUE_COUNT_MAX,
  keptIn?: string,
): ParsedText {
  if (!isUtf8(bytes)) throw new Refusal('invalid_json', 'The body is not valid UTF-8.');
  const found = scan(bytes, numbersMax, valuesMax);
  if (typeof found === 'string') throw new Refusal('invalid_json', refusalOf(found, bytes, valuesMax));
  take(found);
  const text: ScannedText = Object.assign(found, { bytes });
  const outline = {
    memberCount: found.memberCount,
    members: membersOf(text),
    isPlain: found.isShort && !found.hasEscapedName,
  };
  return { text, outline, value: valueIn(text, keptIn) };
}

function valueIn(text: ScannedText, keptIn?: string): unknown {
  const isLong = text.bytes.length > LONG_BYTES && text.nodes[0] === OBJECT;
  return keptIn && isLong ? longObject(text, 0, false, keptIn) : valueAt(text, 0, false);
}

function refusalOf(fault: ScanFault, bytes: Buffer, valuesMax: number): string {
  if (fault === 'too many') return `The body has more than ${valuesMax} values.`;
  if (fault === 'too deep') return `The body is nested deeper than ${NESTING_MAX} levels.`;
  return bytes.length ? 'The body is not valid JSON.' : 'The body is empty; send JSON.';
}

function membersOf(text: ScannedText): TextMember[] {
  const { nodes } = text;
  const members: TextMember[] = [];
  if (nodes[0] !== OBJECT) return members;
  const end = nodes[NEXT] as number;
  for (let at: number = NODE_LENGTH; at < end; at = nodes[at + NODE_LENGTH + NEXT] as number)
    members.push({
      name: stringAt(text, at),
      start: nodes[at + START] as number,
      end: nodes[at + NODE_LENGTH + END] as number,
    });
  return members;
}

/** A string of at least this length is a LongText where it may be one. */
const LONG_BYTES = 4 * 1024;
/** The members whose strings are only measured and forwarded. */
const LONG_MEMBERS = new Set(['content', 'text', 'reasoning_content', 'reasoning', 'refusal', 'arguments', 'url']);

/**
 * Returns the value at a node. A long list or object is parsed in pieces of several values or members, and a long string in
 * pieces of its text. With `keepsLong`, long strings of some members below it are LongTexts.
 */
function valueAt(text: ScannedText, node: number, keepsLong: boolean): unknown {
  const { nodes } = text;
  const start = nodes[node + START] as number;
  const end = nodes[node + END] as number;
  const kind = (nodes[node] as number) & KIND_MASK;
  // A number is never cut: its value follows from all of its digits.
  if (end - start <= (keepsLong ? LONG_BYTES : PIECE_BYTES) || kind === NUMBERS)
    return parsed(text, start, end, '', '');
  if (kind === STRING) return stringAt(text, node);
  return kind === LIST ? longList(text, node, keepsLong) : longObject(text, node, keepsLong);
}

function parsed(
  { bytes, isAscii, hasEscapedName }: ScannedText,
  start: number,
  end: number,
  open: string,
  close: string,
) {
  const written = open + bytes.toString(isAscii ? 'latin1' : 'utf8', start, end) + close;
  return hasEscapedName ? parseJson(written) : parsePlain(written);
}

function longList(text: ScannedText, list: number, keepsLong: boolean): unknown[] {
  const { bytes, nodes } = text;
  const values: unknown[] = [];
  inPieces(
    (take) => {
      const last = nodes[list + NEXT] as number;
      for (let node = list + NODE_LENGTH; node < last; node = nodes[node + NEXT] as number) {
        const end = nodes[node + END] as number;
        let start = nodes[node + START] as number;
        // A node of numbers may be longer than a piece.
        while (nodes[node] === NUMBERS && end - start > PIECE_BYTES) {
          const before = bytes.subarray(start, start + PIECE_BYTES).lastIndexOf(COMMA);
          const comma = before === -1 ? bytes.subarray(0, end).indexOf(COMMA, start + PIECE_BYTES) : start + before;
          if (comma === -1) break;
          take(start, comma, node);
          start = comma + 1;
        }
        take(start, end, node);
      }
    },
    (start, end) => {
      for (const it of parsed(text, start, end, '[', ']') as unknown[]) values.push(it);
    },
    (node, start, end) => {
      values.push(nodes[node] === NUMBERS ? parsed(text, start, end, '', '') : valueAt(text, node, keepsLong));
    },
    keepsLong ? LONG_BYTES : PIECE_BYTES,
  );
  return values;
}

/** With `keptIn`, the member of that name keeps its long strings; all do with `keepsLong`. */
function longObject(text: ScannedText, object: number, keepsLong: boolean, keptIn?: string): Record<string, unknown> {
  const { nodes } = text;
  const members: Record<string, unknown> = {};
  inPieces(
    (take) => {
      const last = nodes[object + NEXT] as number;
      for (let name = object + NODE_LENGTH; name < last; name = nodes[name + NODE_LENGTH + NEXT] as number)
        take(nodes[name + START] as number, nodes[name + NODE_LENGTH + END] as number, name);
    },
    (start, end) => {
      const some = parsed(text, start, end, '{', '}') as Record<string, unknown>;
      for (const name of Object.keys(some)) setMember(members, name, some[name]);
    },
    (at) => {
      const name = stringAt(text, at);
      const node = at + NODE_LENGTH;
      const isKept = keepsLong && isLongString(text, node) && LONG_MEMBERS.has(name);
      setMember(members, name, isKept ? new LongText(text, node) : valueAt(text, node, keepsLong || name === keptIn));
    },
    keepsLong || keptIn ? LONG_BYTES : PIECE_BYTES,
  );
  return members;
}

const isLongString = ({ nodes }: ScannedText, node: number) =>
  ((nodes[node] as number) & KIND_MASK) === STRING &&
  (nodes[node + END] as number) - (nodes[node + START] as number) >= LONG_BYTES;

/** Joins the parts that `visit` takes, which follow each other in a text, to pieces; one above `longest` stays alone. */
function inPieces(
  visit: (take: (start: number, end: number, node: number) => void) => void,
  piece: (start: number, end: number) => void,
  alone: (node: number, start: number, end: number) => void,
  longest: number,
): void {
  let from = -1;
  let to = -1;
  const flush = () => {
    if (from !== -1) piece(from, to);
    from = -1;
  };
  visit((start, end, node) => {
    const isAlone = end - start > longest;
    if (from !== -1 && (isAlone || end - from > PIECE_BYTES)) flush();
    if (isAlone) return alone(node, start, end);
    if (from === -1) from = start;
    to = end;
  });
  flush();
}

/**
 * Parses JSON from outside without a limit of values, a long text in pieces. Bytes that are not UTF-8 are replaced. Returns
 * undefined for a text that is not JSON. Throws UncountedJson for one of more than 100 levels.
 */
export function parseBytes(bytes: Buffer): { value: unknown } | undefined {
  if (bytes.length <= PIECE_BYTES) return parseNested(bytes.toString('utf8'), undefined, Number.POSITIVE_INFINITY);
  const valid = isUtf8(bytes) ? bytes : replaced(bytes);
  const found = scan(valid, 0, Number.POSITIVE_INFINITY);
  if (found === 'too deep' && isClosed(valid)) throw new UncountedJson();
  return typeof found === 'string' ? undefined : { value: valueAt({ ...found, bytes: valid }, 0, false) };
}

/** Parses an answer that is known to be JSON. */
export function parseAnswer(bytes: Buffer): unknown {
  const parsed = parseBytes(bytes);
  if (!parsed) throw new SyntaxError('the answer is not JSON');
  return parsed.value;
}

/** Returns whether the brackets of a text are closed. A text that ends before is not JSON, however deep it is. */
function isClosed(text: Buffer): boolean {
  let depth = 0;
  let isInString = false;
  for (let at = 0; at < text.length; at++) {
    const code = text[at];
    if (code === QUOTE) isInString = !isInString;
    else if (code === BACKSLASH) at++;
    else if (isInString) continue;
    else if (code === OPEN_LIST || code === OPEN_OBJECT) depth++;
    else if ((code === CLOSE_LIST || code === CLOSE_OBJECT) && --depth < 0) return false;
  }
  return depth === 0;
}

/** Returns UTF-8 with a replacement character for what is none. */
function replaced(bytes: Buffer): Buffer {
  const decoder = new TextDecoder('utf-8', { ignoreBOM: true });
  const pieces: Buffer[] = [];
  for (let at = 0; at < bytes.length; at += PIECE_BYTES)
    pieces.push(Buffer.from(decoder.decode(bytes.subarray(at, at + PIECE_BYTES), { stream: true })));
  return Buffer.concat([...pieces, Buffer.from(decoder.decode())]);
}

/** Thrown for JSON inside a string that has more levels or values than a body may have. */
export class UncountedJson extends Error {}

/**
 * Parses JSON inside a string, whose levels and values were not counted with those of the text around it; must be used for every
 * such text. Returns undefined for a text that is not JSON, and for one longer than `lengthMax`. Throws UncountedJson, without
 * parsing it, for a text that may be JSON of more than 100 levels or `valuesMax` values.
 */
export function parseNested(
  text: string,
  lengthMax = Number.POSITIVE_INFINITY,
  valuesMax = VALUE_COUNT_MAX,
): { value: unknown } | undefined {
  if (text.length > lengthMax) return undefined;
  const bounded = boundsOf(text, valuesMax);
  if (bounded === 'no JSON') return undefined;
  if (bounded === 'too much') throw new UncountedJson();
  try {
    return { value: parseJson(text) };
  } catch {
    return undefined;
  }
}

/**
 * Compares a text with the limits of a body. A text that ends before its brackets are closed is not JSON, however deep it is:
 * a model that repeats itself writes such texts.
 */
function boundsOf(text: string, valuesMax: number): 'bounded' | 'too much' | 'no JSON' {
  if (!/^[ \n\r\t]*[[{]/.test(text)) return 'bounded'; // A single value, if it is JSON.
  let depth = 0;
  let deepest = 0;
  let separators = 0;
  for (let at = 0; at < text.length; at++) {
    const code = text.charCodeAt(at);
    if (code === QUOTE) at = endOfString(text, at) - 1;
    else if (code === COMMA || code === COLON) separators++;
    else if (code === OPEN_LIST || code === OPEN_OBJECT) {
      separators++; // Counts the first value in it.
      if (++depth > deepest) deepest = depth;
    } else if (code === CLOSE_LIST || code === CLOSE_OBJECT) {
      if (--depth < 0) return 'no JSON';
    }
  }
  if (depth !== 0) return 'no JSON';
  // One separator precedes a value in a list, two precede one in an object.
  return deepest > NESTING_MAX || separators > 2 * valuesMax ? 'too much' : 'bounded';
}

/** Counts the members of all objects in a parsed value. */
export function countMembers(value: unknown): number {
  if (typeof value !== 'object' || value === null) return 0;
  let count = 0;
  if (Array.isArray(value)) {
    for (const it of value) if (typeof it === 'object') count += countMembers(it);
    return count;
  }
  for (const name in value) {
    count++;
    const it = (value as Record<string, unknown>)[name];
    if (typeof it === 'object') count += countMembers(it);
  }
  return count;
}
