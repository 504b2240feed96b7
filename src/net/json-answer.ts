import { parseJson, parseString, setMember } from '../base/parse-json.ts';
import { turnWhenDue } from '../base/turn.ts';
import { collectPieces } from './pieces.ts';

/**
 * JSON answers of servers, which may be as long as a list of all their machines. They are parsed as they arrive, with turns for
 * other work: JSON.parse of the whole would block the main thread for seconds.
 */

/** The levels of lists and objects that are opened. Values below them are parsed as a whole. */
const OPENED_LEVELS = 4;
/** The longest value that is parsed as a whole. */
const VALUE_BYTES_MAX = 128 * 1024;
/**
 * Maximum number of lists, objects and members in such a value: they determine the time, and the values of real engines
 * have hundreds.
 */
const VALUE_PARTS_MAX = 8_000;
/** Maximum number of members of an opened list or object, so that a walk through one is short. */
const MEMBER_COUNT_MAX = 10_000;
/** Maximum number of values in all: they bound the memory, which may be twenty times that of the text. */
const VALUE_COUNT_MAX = 2_000_000;
/** The number of bytes between two checks of the time. */
const SLICE_BYTES = 16 * 1024;
/** The beginning of an answer, for messages. */
const BEGINNING_BYTES = 4 * 1024;

const [QUOTE, COMMA, COLON, BACKSLASH] = [0x22, 0x2c, 0x3a, 0x5c];
const [OPEN_LIST, CLOSE_LIST, OPEN_OBJECT, CLOSE_OBJECT] = [0x5b, 0x5d, 0x7b, 0x7d];
const VALUE_STARTS = Buffer.from('{["-0123456789tfn');
const isSpace = (code: number) => code === 0x20 || code === 0x0a || code === 0x0d || code === 0x09;

/** Parses a value; `name` is the name of the member, undefined in a list. */
type ParseValue = (text: string, name: string | undefined) => unknown;

/** An answer that was read to its end. `json` is undefined only if it is not JSON. */
export type JsonAnswer = { json: unknown; beginning: string; length: number };

/**
 * Reads the body of an answer to its end. Throws an Error when it breaks off, is longer than `bytesMax`, or exceeds the
 * parser's limits: its content is then unknown, so no item may be regarded as missing.
 */
export async function readJsonAnswer(
  body: AsyncIterable<Buffer>,
  bytesMax: number,
  parse?: ParseValue,
): Promise<JsonAnswer> {
  const parser = createJsonParser(parse);
  const beginning = collectPieces();
  let length = 0;
  let isJson = true;
  for await (const chunk of body) {
    length += chunk.length;
    if (length > bytesMax) throw new Error(`the answer is longer than ${bytesMax} bytes`);
    if (beginning.length() < BEGINNING_BYTES) beginning.add(chunk.subarray(0, BEGINNING_BYTES - beginning.length()));
    for (let at = 0; at < chunk.length && isJson; at += SLICE_BYTES) {
      isJson = notSyntax(() => parser.push(chunk.subarray(at, at + SLICE_BYTES)));
      await turnWhenDue();
    }
  }
  isJson &&= notSyntax(parser.end);
  return { json: isJson ? parser.value() : undefined, beginning: beginning.whole().toString('utf8'), length };
}

/** Returns false if a step finds that the text is not JSON. */
function notSyntax(step: () => void): boolean {
  try {
    step();
    return true;
  } catch (error) {
    if (error instanceof SyntaxError) return false;
    throw error;
  }
}

/** An open list or object, and the name of its next member. */
type OpenValue = { list: unknown[] } | { object: Record<string, unknown>; count: number; name: string };

/** The next token that is allowed. */
type ExpectedToken = 'value' | 'value or end' | 'name' | 'name or end' | 'colon' | 'comma or end' | 'nothing';

type JsonParser = {
  /** Takes the next bytes. Throws a SyntaxError for text that is not JSON, and another error beyond the limits. */
  push(bytes: Buffer): void;
  /** Marks the end of the text. Throws a SyntaxError if something is missing. */
  end(): void;
  /** Returns the same value as JSON.parse of the whole. */
  value(): unknown;
};

/** Creates a parser of JSON that comes in pieces. */
export function createJsonParser(parse: ParseValue = parseJson): JsonParser {
  const outer = createStructure(parse);
  /** The value that is being read as a whole: its earlier bytes, and the state at their end. */
  const before = collectPieces();
  let isInValue = false;
  let isInString = false;
  let isEscaped = false;
  let depth = 0;
  let parts = 0;

  function countPart(): void {
    outer.count();
    if (++parts > VALUE_PARTS_MAX) throw new Error(`the answer has a value with more than ${VALUE_PARTS_MAX} parts`);
  }

  function keep(bytes: Buffer): void {
    if (before.length() + bytes.length > VALUE_BYTES_MAX)
      throw new Error(`the answer has a value longer than ${VALUE_BYTES_MAX} bytes`);
    before.add(bytes);
  }

  /** Parses the value that ends with these bytes. */
  function finish(bytes: Buffer): void {
    isInValue = false;
    if (before.length()) keep(bytes);
    const text = (before.length() ? before.whole() : bytes).toString('utf8');
    before.clear();
    outer.add(text);
  }

  return {
    push(bytes) {
      let start = 0;
      for (let at = 0; at < bytes.length; at++) {
        const code = bytes[at] as number;
        if (!isInValue) {
          if (!outer.step(code)) continue;
          isInValue = true;
          parts = 0;
          isInString = code === QUOTE;
          depth = code === OPEN_LIST || code === OPEN_OBJECT ? 1 : 0;
          start = at;
          continue;
        }
        if (isEscaped) isEscaped = false;
        else if (isInString) {
          if (code === BACKSLASH) isEscaped = true;
          else if (code === QUOTE) {
            isInString = false;
            if (depth === 0) finish(bytes.subarray(start, at + 1));
          }
        } else if (depth === 0) {
          // A number or a word ends before the next delimiter.
          if (code !== COMMA && code !== CLOSE_LIST && code !== CLOSE_OBJECT && !isSpace(code)) continue;
          finish(bytes.subarray(start, at));
          at--;
        } else if (code === QUOTE) isInString = true;
        else if (code === COMMA || code === COLON) countPart();
        else if (code === OPEN_LIST || code === OPEN_OBJECT) {
          countPart();
          depth++;
        } else if (code === CLOSE_LIST || code === CLOSE_OBJECT) {
          if (--depth === 0) finish(bytes.subarray(start, at + 1));
        }
      }
      if (isInValue) keep(bytes.subarray(start));
    },
    end() {
      // Only the end of the text shows that a number is complete.
      if (isInValue && !isInString && depth === 0) finish(Buffer.alloc(0));
      outer.end();
    },
    value: outer.value,
  };
}

/** Creates the opened lists and objects of a text, with all values in them. */
function createStructure(parse: ParseValue) {
  const opened: OpenValue[] = [];
  let expected: ExpectedToken = 'value';
  let result: unknown;
  let valueCount = 0;

  function count(): void {
    if (++valueCount > VALUE_COUNT_MAX) throw new Error(`the answer has more than ${VALUE_COUNT_MAX} values`);
  }

  function give(value: unknown): void {
    const top = opened.at(-1);
    expected = top ? 'comma or end' : 'nothing';
    if (!top) result = value;
    else if ('list' in top) checkCount(top.list.push(value));
    else {
      checkCount(++top.count);
      setMember(top.object, top.name, value);
    }
  }

  function open(code: number): void {
    opened.push(code === OPEN_LIST ? { list: [] } : { object: {}, count: 0, name: '' });
    expected = code === OPEN_LIST ? 'value or end' : 'name or end';
  }

  function close(code: number): void {
    const top = opened.at(-1);
    const isList = top !== undefined && 'list' in top;
    const mayEnd = expected === 'comma or end' || expected === (isList ? 'value or end' : 'name or end');
    if (!top || !mayEnd || code !== (isList ? CLOSE_LIST : CLOSE_OBJECT)) throw notJson();
    opened.pop();
    give('list' in top ? top.list : top.object);
  }

  return {
    count,
    /** Takes one character between the values that are parsed as a whole. Returns whether such a value begins here. */
    step(code: number): boolean {
      if (isSpace(code)) return false;
      if (code === COMMA) {
        if (expected !== 'comma or end') throw notJson();
        expected = 'list' in (opened.at(-1) as OpenValue) ? 'value' : 'name';
        count();
      } else if (code === COLON) {
        if (expected !== 'colon') throw notJson();
        expected = 'value';
      } else if (code === CLOSE_LIST || code === CLOSE_OBJECT) close(code);
      else if (expected === 'name' || expected === 'name or end') {
        if (code !== QUOTE) throw notJson();
        return true;
      } else if (expected !== 'value' && expected !== 'value or end') throw notJson();
      else if ((code === OPEN_LIST || code === OPEN_OBJECT) && opened.length < OPENED_LEVELS) {
        count();
        open(code);
      } else if (VALUE_STARTS.includes(code)) return true;
      else throw notJson();
      return false;
    },
    /** Adds the value, or the name of the next member, that has this text. */
    add(text: string): void {
      const top = opened.at(-1);
      if (expected === 'name' || expected === 'name or end') {
        (top as { name: string }).name = parseString(text);
        expected = 'colon';
      } else give(parse(text, top && 'name' in top ? top.name : undefined));
    },
    /** Throws a SyntaxError if something is missing. */
    end(): void {
      if (expected !== 'nothing') throw notJson();
    },
    value: () => result,
  };
}

const notJson = () => new SyntaxError('not JSON');

function checkCount(count: number): void {
  if (count > MEMBER_COUNT_MAX)
    throw new Error(`the answer has a list or an object with more than ${MEMBER_COUNT_MAX} members`);
}
