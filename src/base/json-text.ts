import { isUtf8 } from 'node:buffer';
import {
  END,
  type Fault,
  HAS_ESCAPE,
  IS_BEYOND_ASCII,
  KIND_MASK,
  LIST,
  NESTING_MAX,
  NEXT,
  NODE_LENGTH,
  NUMBERS,
  OBJECT,
  type Scan,
  START,
  STRING,
  scan,
} from './json-scan.ts';
import { endOfString, parseJson, parsePlain, parseString, setMember } from './parse-json.ts';
import { Refusal } from './refusal.ts';

/** The most values that a body may have. A long text is one value, so only a hostile body has more. */
const VALUE_COUNT_MAX = 50_000;
/**
 * The longest piece of a text that becomes one string: V8 makes a string of more than 128 KB in new memory, for which the
 * system takes milliseconds.
 */
const PIECE_BYTES = 64 * 1024;

const [QUOTE, COMMA, COLON, BACKSLASH, SMALL_U] = [0x22, 0x2c, 0x3a, 0x5c, 0x75];
const [OPEN_LIST, CLOSE_LIST, OPEN_OBJECT, CLOSE_OBJECT] = [0x5b, 0x5d, 0x7b, 0x7d];

/** A JSON text, and what a scan of it found. */
export type ScannedText = Scan & { bytes: Buffer };

/** A member of an object: where its name begins and its value ends, in bytes. */
export type Member = { name: string; start: number; end: number };

/** The facts about a JSON text that are known without its values. */
export type Outline = Pick<Scan, 'memberCount'> & {
  /** The members of the outermost object, in their order, duplicates included. */
  members: Member[];
  /**
   * True if no other reader finds more in it than JSON.parse does: no gap of more than one white space, no number that exceeds
   * its shortest form by more than prices allow for, and no escape in a name, which a server that runs on V8 may take for
   * another name (parse-json.ts). Duplicate names are not detected here.
   */
  isPlain: boolean;
};

/** A parsed body with its outline. */
export type ParsedText = { text: ScannedText; outline: Outline; value: unknown };

/**
 * Parses a body of at most 100 levels and 50,000 values, or `valuesMax`. `take` gets the counts of values and numbers before
 * any value is created; an exception that it throws ends the parsing. Up to `numbersMax` numbers directly in lists do not
 * count as values. Throws `invalid_json` for a body that is not JSON in UTF-8.
 */
export function parseText(
  bytes: Buffer,
  numbersMax: number,
  take: (counts: Pick<Scan, 'values' | 'numbers'>) => void,
  valuesMax = VALUE_COUNT_MAX,
): ParsedText {
  if (!isUtf8(bytes)) throw new Refusal('invalid_json', 'The body is not valid UTF-8.');
  const found = scan(bytes, numbersMax, valuesMax);
  if (typeof found === 'string') throw new Refusal('invalid_json', refusalOf(found, bytes, valuesMax));
  take(found);
  const text = { ...found, bytes };
  const outline = {
    memberCount: found.memberCount,
    members: membersOf(text),
    isPlain: found.isShort && !found.hasEscapedName,
  };
  return { text, outline, value: valueAt(text) };
}

function refusalOf(fault: Fault, bytes: Buffer, valuesMax: number): string {
  if (fault === 'too many') return `The body has more than ${valuesMax} values.`;
  if (fault === 'too deep') return `The body is nested deeper than ${NESTING_MAX} levels.`;
  return bytes.length ? 'The body is not valid JSON.' : 'The body is empty; send JSON.';
}

function membersOf(text: ScannedText): Member[] {
  const { nodes } = text;
  const members: Member[] = [];
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

/** Returns the string of a node. */
export function stringAt(text: ScannedText, node: number): string {
  let all = '';
  for (const piece of stringPieces(text, node)) all += piece;
  return all;
}

/** Returns the string of a node in pieces, none of which ends inside a character. */
export function stringPieces({ bytes, nodes }: ScannedText, node: number): string[] {
  const marks = nodes[node] as number;
  const end = (nodes[node + END] as number) - 1;
  const encoding = marks & IS_BEYOND_ASCII ? 'utf8' : 'latin1';
  const pieces: string[] = [];
  for (let from = (nodes[node + START] as number) + 1; from < end; ) {
    const to = from + PIECE_BYTES < end ? endOfPiece(bytes, from, from + PIECE_BYTES) : end;
    const piece = bytes.toString(encoding, from, to);
    pieces.push(marks & HAS_ESCAPE ? parseString(`"${piece}"`) : piece);
    from = to;
  }
  return pieces;
}

/** Returns an offset at or a little before `end` in a string, which is neither inside a character nor inside an escape. */
function endOfPiece(bytes: Buffer, from: number, end: number): number {
  while (((bytes[end] as number) & 0xc0) === 0x80) end--;
  const near = Math.max(from, end - CODE_LENGTH);
  const backslash = near + bytes.subarray(near, end).lastIndexOf(BACKSLASH);
  if (backslash < near) return end;
  let first = backslash;
  while (first > from && bytes[first - 1] === BACKSLASH) first--;
  if ((backslash - first) % 2) return end; // The one before escapes it.
  const isCode = bytes[backslash + 1] === SMALL_U;
  const isCut = backslash + (isCode ? CODE_LENGTH : 2) > end;
  return isCut || (isCode && isHighSurrogate(bytes, backslash)) ? backslash : end;
}
const CODE_LENGTH = 6;

/** Returns whether the escape at `at` is the first half of a character: `\ud800` to `\udbff`. */
const isHighSurrogate = (bytes: Buffer, at: number) => /^d[89ab]/i.test(bytes.toString('latin1', at + 2, at + 4));

/**
 * Returns the value at a node. A long list or object is parsed in pieces of several values or members, and a long string in
 * pieces of its text.
 */
function valueAt(text: ScannedText, node = 0): unknown {
  const { nodes } = text;
  const start = nodes[node + START] as number;
  const end = nodes[node + END] as number;
  const kind = (nodes[node] as number) & KIND_MASK;
  // A number is never cut: its value follows from all of its digits.
  if (end - start <= PIECE_BYTES || kind === NUMBERS) return parsed(text, start, end, '', '');
  if (kind === STRING) return stringAt(text, node);
  return kind === LIST ? longList(text, node) : longObject(text, node);
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

function longList(text: ScannedText, list: number): unknown[] {
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
    (node, start, end) => values.push(nodes[node] === NUMBERS ? parsed(text, start, end, '', '') : valueAt(text, node)),
  );
  return values;
}

function longObject(text: ScannedText, object: number): Record<string, unknown> {
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
    (name) => setMember(members, stringAt(text, name), valueAt(text, name + NODE_LENGTH)),
  );
  return members;
}

/** Joins the parts that `visit` takes, which follow each other in a text, to pieces; one that is too long stays alone. */
function inPieces(
  visit: (take: (start: number, end: number, node: number) => void) => void,
  piece: (start: number, end: number) => void,
  alone: (node: number, start: number, end: number) => void,
): void {
  let from = -1;
  let to = -1;
  const flush = () => {
    if (from !== -1) piece(from, to);
    from = -1;
  };
  visit((start, end, node) => {
    if (from !== -1 && end - from > PIECE_BYTES) flush();
    if (end - start > PIECE_BYTES) return alone(node, start, end);
    if (from === -1) from = start;
    to = end;
  });
  flush();
}

/** Thrown for JSON inside a string that has more levels or values than a body may have. */
export class UncountedJson extends Error {}

/**
 * Parses JSON inside a string, whose levels and values were not counted with those of the text around it. Every such text must
 * be parsed by this function. Returns undefined for a text that is not JSON, and for one longer than `lengthMax`. Throws
 * UncountedJson, without parsing it, for a text that may be JSON of more than 100 levels or `valuesMax` values.
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
