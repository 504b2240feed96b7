import { isAscii, isUtf8 } from 'node:buffer';
import { endOfString, parseJson, parseString } from './parse-json.ts';
import { Refusal } from './refusal.ts';

/** The deepest nesting that a body may have. No honest request needs it, and it bounds recursive work on a body. */
const NESTING_MAX = 100;
/** The most values that a body may have. A long text is one value, so only a hostile body has more. */
const VALUE_COUNT_MAX = 50_000;
/** Numbers up to this length are not checked: they cannot exceed their shortest form by more than NUMBER_EXCESS_MAX. */
const SHORT_NUMBER_LENGTH = 4;
/** Whole numbers of up to this many digits are their own shortest form. */
const EXACT_DIGITS = 15;
/** The most by which a number may exceed its shortest form, and its maximum length (src/router/rendered.ts). */
const NUMBER_EXCESS_MAX = 3;
const NUMBER_LENGTH_MAX = 25;

const [TAB, LINE_FEED, RETURN, SPACE] = [0x09, 0x0a, 0x0d, 0x20];
const [QUOTE, COMMA, MINUS, ZERO, NINE, COLON] = [0x22, 0x2c, 0x2d, 0x30, 0x39, 0x3a];
const [OPEN_LIST, CLOSE_LIST, OPEN_OBJECT, CLOSE_OBJECT] = [0x5b, 0x5d, 0x7b, 0x7d];

/**
 * A JSON text with one character per byte (latin1), so that offsets in it are offsets in the bytes. JavaScript searches a
 * string faster than bytes.
 */
type ByteText = string;

/** A member of an object: where its name begins and its value ends, in bytes. */
export type Member = { name: string; start: number; end: number };

/** The facts about a JSON text that are known without parsing it. They mean nothing for a text that is not JSON. */
export type Outline = {
  /** Values, without the `numbers`. */
  values: number;
  /** Numbers directly in lists, at most as many as are exempt from the limit of values. */
  numbers: number;
  /** Members of all objects, duplicates included. */
  memberCount: number;
  /** The members of the outermost object, in their order, duplicates included. */
  members: Member[];
  /** The offsets behind all strings, in their order. */
  stringEnds: number[];
  /**
   * True if no other reader finds more in it than JSON.parse does: no gap of more than one white space, no number that exceeds
   * its shortest form by more than prices allow for, and no escape in a name, which a server that runs on V8 may take for
   * another name (parse-json.ts). Duplicate names are not detected here.
   */
  isPlain: boolean;
};

/**
 * Outlines a JSON text. Throws `invalid_json` at the first value above `valuesMax`, and at the first level above 100. Up to
 * `numbersMax` numbers directly in lists do not count as values.
 */
function outlineOf(text: ByteText, numbersMax: number, valuesMax: number): Outline {
  const isList: boolean[] = [];
  const members: Member[] = [];
  const stringEnds: number[] = [];
  let values = 0;
  let numbers = 0;
  let memberCount = 0;
  let isPlain = true;
  let backslash = text.indexOf('\\');
  /** True where a value may begin: at the start, and after a bracket, a colon or a comma in a list. */
  let isExpected = true;
  let gap = 0;
  /** The member of the outermost object that is being read: the start of its name, and the end of what was read of it. */
  let name: { start: number; end: number } | undefined;
  let end = 0;
  const endMember = () => {
    if (isList.length !== 1 || isList[0] || !name) return;
    members.push({ name: text.slice(name.start, name.end), start: name.start, end });
    name = undefined;
  };
  for (let at = 0; at < text.length; at++) {
    const code = text.charCodeAt(at);
    if (code === SPACE || code === LINE_FEED || code === RETURN || code === TAB) {
      if (++gap > 1) isPlain = false;
      continue;
    }
    gap = 0;
    if (code === COLON) {
      memberCount++;
      isExpected = true;
      continue;
    }
    if (code === COMMA) {
      endMember();
      isExpected = isList.at(-1) === true; // A value follows it in a list, a name in an object.
      continue;
    }
    if (code === CLOSE_LIST || code === CLOSE_OBJECT) {
      endMember();
      isList.pop();
      isExpected = false;
      end = at + 1;
      continue;
    }
    const start = at;
    const isNumber = code === MINUS || (code >= ZERO && code <= NINE);
    if (code === QUOTE) {
      stringEnds.push(endOfString(text, at));
      at = (stringEnds.at(-1) as number) - 1;
    } else if (isNumber) at = endOfNumber(text, at) - 1;
    if (isExpected) {
      if (isNumber && numbers < numbersMax && isList.at(-1)) numbers++;
      else if (++values > valuesMax) throw new Refusal('invalid_json', `The body has more than ${valuesMax} values.`);
      if (isNumber && at - start >= SHORT_NUMBER_LENGTH) isPlain &&= isShort(text, start, at + 1);
    } else if (code === QUOTE) {
      if (backslash !== -1 && backslash < start) backslash = text.indexOf('\\', start);
      if (backslash !== -1 && backslash <= at) isPlain = false;
      if (isList.length === 1) name = { start, end: at + 1 };
    }
    isExpected = false;
    if (code === OPEN_LIST || code === OPEN_OBJECT) {
      if (isList.length === NESTING_MAX)
        throw new Refusal('invalid_json', `The body is nested deeper than ${NESTING_MAX} levels.`);
      isExpected = code === OPEN_LIST;
      isList.push(isExpected);
    }
    end = at + 1;
  }
  for (const member of members) member.name = nameIn(member.name);
  return { values, numbers, memberCount, members, stringEnds, isPlain };
}

/** Returns the offset behind the number that begins at `at`. */
function endOfNumber(text: ByteText, at: number): number {
  for (let end = at + 1; end < text.length; end++) {
    const code = text.charCodeAt(end);
    const isPart = (code >= ZERO && code <= NINE) || code === 0x2e || code === 0x2b || code === MINUS;
    if (!isPart && code !== 0x45 && code !== 0x65) return end;
  }
  return text.length;
}

function isShort(text: ByteText, start: number, end: number): boolean {
  const written = text.slice(start, end);
  if (written.length <= EXACT_DIGITS && /^\d+$/.test(written)) return true;
  const value = Number(written);
  const longest = Math.min(String(value).length + NUMBER_EXCESS_MAX, NUMBER_LENGTH_MAX);
  return Number.isFinite(value) && written.length <= longest;
}

/** Returns the name that a string of a JSON text stands for; the string itself where it is not JSON. */
function nameIn(string: ByteText): string {
  if (!/[^ !#-[\]-~]/.test(string.slice(1, -1))) return string.slice(1, -1);
  try {
    return parseString(decode(string));
  } catch {
    return string;
  }
}

const decode = (text: ByteText) => Buffer.from(text, 'latin1').toString('utf8');

/** A parsed body with its text and outline. */
export type ParsedText = { text: ByteText; outline: Outline; value: unknown };

/**
 * Parses a body of at most 100 levels and 50,000 values, or `valuesMax` (`outlineOf`). `take` gets the counts of values and
 * numbers before any value is created; an exception that it throws ends the parsing. Throws `invalid_json` for a body that is
 * not JSON in UTF-8.
 */
export function parseText(
  bytes: Buffer,
  numbersMax: number,
  take: (outline: Pick<Outline, 'values' | 'numbers'>) => void,
  valuesMax = VALUE_COUNT_MAX,
): ParsedText {
  if (!isUtf8(bytes)) throw new Refusal('invalid_json', 'The body is not valid UTF-8.');
  const text = bytes.toString('latin1');
  const outline = outlineOf(text, numbersMax, valuesMax);
  take(outline);
  try {
    return { text, outline, value: parseJson(isAscii(bytes) ? text : bytes.toString('utf8')) };
  } catch (cause) {
    throw new Refusal('invalid_json', bytes.length ? 'The body is not valid JSON.' : 'The body is empty; send JSON.', {
      cause,
    });
  }
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

/**
 * Returns the canonical form of a parsed body: the bytes of `canonicalJson` of its value, without the members of the outermost
 * object that `isLeftOut` names. It is assembled from pieces of the body, which takes a fraction of the time. Valid until the
 * next call.
 */
export function canonicalBytes(
  bytes: Buffer,
  { text, outline: { stringEnds } }: Omit<ParsedText, 'value'>,
  isOmitted: (name: string) => boolean = () => false,
): Buffer {
  /** Without these, every escape is written as JSON.stringify writes it. */
  const hasOtherEscapes = text.includes('\\u') || text.includes('\\/');
  let at = 0;
  let strings = 0;
  let out = scratch(0, bytes.length);
  let length = 0;
  const copy = (start: number, end: number) => {
    if (end - start > COPY_LENGTH) length += bytes.copy(out, length, start, end);
    else for (let i = start; i < end; i++) out[length++] = bytes[i] as number;
  };
  const write = (piece: string) => {
    const longest = length + Buffer.byteLength(piece) + bytes.length - at;
    if (out.length < longest) out = Buffer.concat([out.subarray(0, length)], 2 * longest);
    length += out.write(piece, length);
  };
  const skip = () => {
    for (;;) {
      const code = text.charCodeAt(at);
      if (code !== SPACE && code !== LINE_FEED && code !== RETURN && code !== TAB) return code;
      at++;
    }
  };
  const string = (): ByteText => {
    const start = at;
    at = stringEnds[strings++] as number;
    const span = text.slice(start, at);
    if (hasOtherEscapes && span.includes('\\')) write(JSON.stringify(parseString(decode(span))));
    else copy(start, at);
    return span;
  };
  const list = () => {
    out[length++] = OPEN_LIST;
    at++;
    while (skip() !== CLOSE_LIST) {
      if (text.charCodeAt(at) === COMMA) out[length++] = text.charCodeAt(at++);
      else value();
    }
    out[length++] = text.charCodeAt(at++);
  };
  const object = () => {
    out[length++] = OPEN_OBJECT;
    at++;
    const first = length;
    const isOutermost = first === 1;
    let members: { name: string; start: number; end: number }[] = [];
    let isInOrder = true;
    for (let code = skip(); code !== CLOSE_OBJECT; code = skip()) {
      if (code === COMMA) {
        at++;
        continue;
      }
      if (members.length) out[length++] = COMMA;
      const start = length;
      const name = nameIn(string());
      skip();
      out[length++] = text.charCodeAt(at++); // The colon.
      value();
      const before = members.at(-1);
      if ((before && before.name >= name) || (isOutermost && isOmitted(name))) isInOrder = false;
      members.push({ name, start, end: length });
    }
    at++;
    if (!isInOrder) {
      const written = scratch(1, length - first);
      out.copy(written, 0, first, length);
      members = [...new Map(members.map((it) => [it.name, it])).values()]; // Of duplicate names the last counts.
      if (isOutermost) members = members.filter(({ name }) => !isOmitted(name));
      members.sort((one, other) => (one.name < other.name ? -1 : 1));
      length = first;
      for (const { start, end } of members) {
        if (length > first) out[length++] = COMMA;
        length += written.copy(out, length, start - first, end - first);
      }
    }
    out[length++] = CLOSE_OBJECT;
  };
  const value = () => {
    const code = skip();
    const start = at;
    if (code === QUOTE) string();
    else if (code === OPEN_LIST) list();
    else if (code === OPEN_OBJECT) object();
    else if (code !== MINUS && (code < ZERO || code > NINE)) {
      at += code === 0x66 ? 5 : 4; // false; true, null
      copy(start, at);
    } else {
      at = endOfNumber(text, at);
      const span = text.slice(start, at);
      if (span.length <= EXACT_DIGITS && /^\d+$/.test(span)) copy(start, at);
      else write(JSON.stringify(Number(span)));
    }
  };
  value();
  return out.subarray(0, length);
}

/** Shorter pieces are copied faster byte by byte. */
const COPY_LENGTH = 32;
/** Larger buffers are not kept for the next body. */
const SCRATCH_BYTES_MAX = 1024 * 1024;
const scratches: Buffer[] = [];

/** Returns a buffer of at least this size with arbitrary content. Allocating memory costs more than writing to it. */
function scratch(which: number, size: number): Buffer {
  const kept = scratches[which];
  if (kept && kept.length >= size) return kept;
  const made = Buffer.allocUnsafeSlow(size);
  if (size <= SCRATCH_BYTES_MAX) scratches[which] = made;
  return made;
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
