/**
 * Reads a JSON text once, in its bytes: checks the grammar, counts, and notes where each value is. Makes no string of the text: V8
 * makes one of more than 128 KB in new memory, which costs milliseconds.
 */

/** The deepest nesting that a body may have. No honest request needs it, and it bounds recursive work on a body. */
export const NESTING_MAX = 100;
/** Numbers up to this length are not checked: they cannot exceed their shortest form by more than NUMBER_EXCESS_MAX. */
const SHORT_NUMBER_LENGTH = 4;
/** Whole numbers of up to this many digits are their own shortest form. */
export const EXACT_DIGITS = 15;
/** The most by which a number may exceed its shortest form, and its maximum length (src/router/rendered.ts). */
const NUMBER_EXCESS_MAX = 3;
const NUMBER_LENGTH_MAX = 25;

const [TAB, LINE_FEED, RETURN, SPACE, DELETE] = [0x09, 0x0a, 0x0d, 0x20, 0x7f];
const [QUOTE, COMMA, MINUS, ZERO, NINE, COLON, BACKSLASH] = [0x22, 0x2c, 0x2d, 0x30, 0x39, 0x3a, 0x5c];
const [OPEN_LIST, CLOSE_LIST, OPEN_OBJECT, CLOSE_OBJECT] = [0x5b, 0x5d, 0x7b, 0x7d];
const [POINT, PLUS, LARGE_E, SMALL_E, SMALL_U] = [0x2e, 0x2b, 0x45, 0x65, 0x75];

/** The kinds of nodes. Of a list, all numbers that follow each other are one node. */
export const [STRING, NUMBERS, LITERAL, LIST, OBJECT] = [1, 2, 3, 4, 5] as const;
export const KIND_MASK = 7;
/** Marks of a string: it has an escape; one that JSON.stringify may write otherwise; a character beyond ASCII. */
export const [HAS_ESCAPE, HAS_OTHER_ESCAPE, IS_BEYOND_ASCII] = [8, 16, 32] as const;

/**
 * The parts of a node: its kind and marks, its first byte, the byte behind it, and the node behind it and all in it; of a
 * string also the number of its escapes.
 */
export const [START, END, NEXT, ESCAPES, NODE_LENGTH] = [1, 2, 3, 4, 5] as const;

/** The result of a scan. */
export type Scan = {
  /**
   * The nodes in the order of the text, each of NODE_LENGTH numbers: the value at 0, behind a list its values, behind an
   * object a string and a value for each member. Valid until the next scan.
   */
  nodes: Int32Array;
  /** Values, without the `numbers`. */
  values: number;
  /** Numbers directly in lists, at most as many as are exempt from the limit of values. */
  numbers: number;
  /** Members of all objects, duplicates included. */
  memberCount: number;
  /** False if a gap has more than one white space, or a number exceeds its shortest form by more than prices allow for. */
  isShort: boolean;
  /** True if a name has an escape. */
  hasEscapedName: boolean;
  isAscii: boolean;
};

/** The reason why a text was not scanned to its end. */
export type ScanFault = 'no JSON' | 'too deep' | 'too many';

/** Larger memory for nodes is not kept for the next text. */
const KEPT_NODES_MAX = 64 * 1024 * NODE_LENGTH;
let kept = new Int32Array(1024 * NODE_LENGTH);

/** The meaning of a byte inside a string: 0 needs no look, 1 ends it, 2 begins an escape, 3 lies beyond ASCII, 4 may not be there. */
const IN_STRING = Uint8Array.from({ length: 256 }, (_, byte) =>
  byte === QUOTE ? 1 : byte === BACKSLASH ? 2 : byte > DELETE ? 3 : byte < SPACE ? 4 : 0,
);
/** The kind of byte after a backslash: 1 an escape that JSON.stringify writes, 2 a slash, 3 the `u` of a code; 0 is none. */
const ESCAPED = Uint8Array.from({ length: 256 }, (_, byte) => {
  const character = String.fromCharCode(byte);
  return '"\\bfnrt'.includes(character) ? 1 : character === '/' ? 2 : byte === SMALL_U ? 3 : 0;
});
const IS_HEX = Uint8Array.from({ length: 256 }, (_, byte) => Number(/[0-9a-fA-F]/.test(String.fromCharCode(byte))));
const isDigit = (code: number | undefined) => code !== undefined && code >= ZERO && code <= NINE;

/** The marks of the string that was read last, and the number of its escapes. */
let marks = 0;
let escapes = 0;

/** The same byte in each place of a word. */
const everywhere = (byte: number) => Math.imul(byte, 0x01010101);
const [ONES, SPACES, QUOTES, BACKSLASHES, HIGH_BITS] = [1, SPACE, QUOTE, BACKSLASH, 0x80].map(everywhere) as Five;
type Five = [number, number, number, number, number];

/** A text as bytes, and as words of four of them: `shift` bytes of the first word lie before the text. */
type Words = { text: Uint8Array; words: Int32Array; shift: number };

function wordsOf(text: Buffer): Words {
  const shift = text.byteOffset % 4;
  return { text, words: new Int32Array(text.buffer, text.byteOffset - shift, (shift + text.length) >> 2), shift };
}

/** Returns the offset behind the string that begins at `at`, -1 if it is none, and sets its marks. */
function endOfString({ text, words, shift }: Words, at: number): number {
  marks = escapes = 0;
  const { length } = text;
  let seen = 0;
  for (let i = at + 1; i < length; i++) {
    if (((i + shift) & 3) === 0) {
      let k = (i + shift) >> 2;
      for (; k < words.length; k++) {
        const word = words[k] as number;
        const quote = word ^ QUOTES;
        const backslash = word ^ BACKSLASHES;
        // The high bit is set of each byte that is a control character, a quote or a backslash.
        const stops = ((word - SPACES) & ~word) | ((quote - ONES) & ~quote) | ((backslash - ONES) & ~backslash);
        if (stops & HIGH_BITS) break;
        seen |= word;
      }
      i = (k << 2) - shift;
      if (i >= length) return -1;
    }
    const what = IN_STRING[text[i] as number] as number;
    if (what === 0) continue;
    if (what === 1) {
      if (seen & HIGH_BITS) marks |= IS_BEYOND_ASCII;
      return i + 1;
    }
    if (what === 3) marks |= IS_BEYOND_ASCII;
    else if (what === 4) return -1;
    else {
      const escaped = ESCAPED[text[++i] as number];
      if (!escaped) return -1;
      escapes++;
      marks |= escaped === 1 ? HAS_ESCAPE : HAS_ESCAPE | HAS_OTHER_ESCAPE;
      if (escaped === 3) {
        for (let k = 1; k <= 4; k++) if (!IS_HEX[text[i + k] as number]) return -1;
        i += 4;
      }
    }
  }
  return -1;
}

/** Returns the offset behind the number that begins at `at`; -1 if it is none. */
export function endOfNumber(text: Uint8Array, at: number): number {
  if (text[at] === MINUS) at++;
  if (text[at] === ZERO) at++;
  else if (isDigit(text[at])) at = endOfDigits(text, at);
  else return -1;
  if (text[at] === POINT) {
    if (!isDigit(text[at + 1])) return -1;
    at = endOfDigits(text, at + 1);
  }
  if (text[at] === SMALL_E || text[at] === LARGE_E) {
    at++;
    if (text[at] === PLUS || text[at] === MINUS) at++;
    if (!isDigit(text[at])) return -1;
    at = endOfDigits(text, at);
  }
  return at;
}

function endOfDigits(text: Uint8Array, at: number): number {
  while (at < text.length && isDigit(text[at])) at++;
  return at;
}

function isShortNumber(text: Buffer, start: number, end: number): boolean {
  if (end - start > NUMBER_LENGTH_MAX) return false;
  const written = text.toString('latin1', start, end);
  if (written.length <= EXACT_DIGITS && /^\d+$/.test(written)) return true;
  const value = Number(written);
  const longest = Math.min(String(value).length + NUMBER_EXCESS_MAX, NUMBER_LENGTH_MAX);
  return Number.isFinite(value) && written.length <= longest;
}

const LITERALS = new Map([
  [0x74, Buffer.from('true')],
  [0x66, Buffer.from('false')],
  [0x6e, Buffer.from('null')],
]);

/** Returns the offset behind the literal that begins at `at`; -1 if it is none. */
function endOfLiteral(text: Uint8Array, at: number): number {
  const literal = LITERALS.get(text[at] as number);
  if (!literal) return -1;
  for (let i = 1; i < literal.length; i++) if (text[at + i] !== literal[i]) return -1;
  return at + literal.length;
}

/** The nodes of the lists and objects around a value. */
const around = new Int32Array(NESTING_MAX);

/**
 * Scans a text of valid UTF-8. Ends at the first fault: what is not JSON, a value above `valuesMax`, or a level above 100. Up
 * to `numbersMax` numbers directly in lists do not count as values.
 */
export function scan(text: Buffer, numbersMax: number, valuesMax: number): Scan | ScanFault {
  const { length } = text;
  const words = wordsOf(text);
  let nodes = kept;
  let size = 0;
  let depth = 0;
  let values = 0;
  let numbers = 0;
  let memberCount = 0;
  let isShort = true;
  let hasEscapedName = false;
  let allMarks = 0;
  let at = 0;
  /** The node of the numbers that end here, directly in a list. */
  let run = -1;

  const skip = (): number => {
    for (let gap = 0; at < length; at++) {
      const code = text[at] as number;
      if (code !== SPACE && code !== LINE_FEED && code !== RETURN && code !== TAB) return code;
      if (++gap > 1) isShort = false;
    }
    return -1;
  };
  const addString = (end: number) => {
    allMarks |= marks;
    add(STRING | marks, end);
    nodes[size - NODE_LENGTH + ESCAPES] = escapes;
  };
  const add = (kind: number, end: number) => {
    if (size + NODE_LENGTH > nodes.length) {
      const larger = new Int32Array(2 * nodes.length);
      larger.set(nodes);
      nodes = larger;
      if (nodes.length <= KEPT_NODES_MAX) kept = nodes;
    }
    nodes[size] = kind;
    nodes[size + START] = at;
    nodes[size + END] = end;
    size += NODE_LENGTH;
    nodes[size - NODE_LENGTH + NEXT] = size;
    at = end;
  };

  for (;;) {
    // A value begins.
    const code = skip();
    const isInList = depth > 0 && nodes[around[depth - 1] as number] === LIST;
    const isNumber = code === MINUS || (code >= ZERO && code <= NINE);
    if (isNumber && isInList && numbers < numbersMax) numbers++;
    else if (++values > valuesMax) return 'too many';
    if (code === QUOTE) {
      const end = endOfString(words, at);
      if (end === -1) return 'no JSON';
      addString(end);
    } else if (isNumber) {
      const end = endOfNumber(text, at);
      if (end === -1) return 'no JSON';
      if (end - at > SHORT_NUMBER_LENGTH) isShort &&= isShortNumber(text, at, end);
      if (isInList && run === size - NODE_LENGTH) {
        nodes[run + END] = end;
        at = end;
      } else {
        run = isInList ? size : -1;
        add(NUMBERS, end);
      }
    } else if (code === OPEN_LIST || code === OPEN_OBJECT) {
      if (depth === NESTING_MAX) return 'too deep';
      around[depth++] = size;
      run = -1;
      add(code === OPEN_LIST ? LIST : OBJECT, at + 1);
      const first = skip();
      if (code === OPEN_LIST && first !== CLOSE_LIST) continue;
    } else {
      const end = endOfLiteral(text, at);
      if (end === -1) return 'no JSON';
      add(LITERAL, end);
    }
    // A value has ended, or an object has begun, or a list without values.
    for (;;) {
      const next = skip();
      if (depth === 0) {
        if (at < length) return 'no JSON';
        const isAscii = !(allMarks & IS_BEYOND_ASCII);
        return { nodes, values, numbers, memberCount, isShort, hasEscapedName, isAscii };
      }
      const parent = around[depth - 1] as number;
      const isList = nodes[parent] === LIST;
      const isEmpty = at > 0 && size === parent + NODE_LENGTH;
      if (next === (isList ? CLOSE_LIST : CLOSE_OBJECT)) {
        nodes[parent + END] = ++at;
        nodes[parent + NEXT] = size;
        depth--;
        run = -1;
        continue;
      }
      if (!isEmpty) {
        if (next !== COMMA) return 'no JSON';
        at++;
      }
      if (isList) break;
      if (skip() !== QUOTE) return 'no JSON';
      const end = endOfString(words, at);
      if (end === -1) return 'no JSON';
      if (marks & HAS_ESCAPE) hasEscapedName = true;
      addString(end);
      if (skip() !== COLON) return 'no JSON';
      at++;
      memberCount++;
      break;
    }
  }
}
