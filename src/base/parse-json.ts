/** An object of JSON, of which nothing is known yet. */
export type Json = Record<string, unknown>;

/**
 * Parses JSON as JSON.parse is specified. JSON.parse of V8 13.6 (Node 24) may take a name with an escape for another name that it
 * has seen before, in any text that this thread has parsed: where an object continued with a name `caf\`, it reads `"caf\u00e9"` as
 * that name in the next. One sender's text would change how others are read. A text with such a name is therefore read value by
 * value, and every text with a part from outside must be parsed by this function. Throws a SyntaxError for a text that is not JSON.
 */
export function parseJson(text: string): unknown {
  const value: unknown = JSON.parse(text);
  return text.includes('\\') && hasEscapeInName(text) ? readByValue(text) : value;
}

/** Parses a text that is known to have no escape in a name. */
export const parsePlain = (text: string): unknown => JSON.parse(text);

/** Parses a string of JSON. V8 reads a string that is not a name correctly. */
export const parseString = (written: string): string => JSON.parse(written);

/**
 * Returns a JSON value as a word to look up or to show; an empty one for a list or an object, as `String` throws for
 * `{"toString": 1}`.
 */
export const wordOf = (value: unknown): string => (typeof value === 'object' && value !== null ? '' : String(value));

/** Returns the offset behind the JSON string that begins at `at`; the end of the text if the string has no end. */
export function endOfString(text: string, at: number): number {
  for (let end = text.indexOf('"', at + 1); end !== -1; end = text.indexOf('"', end + 1)) {
    let before = end - 1;
    while (text[before] === '\\') before--;
    if ((end - before) % 2) return end + 1; // An even number of backslashes escape each other.
  }
  return text.length;
}

function hasEscapeInName(text: string): boolean {
  let end = 0;
  for (let at = text.indexOf('"'); at !== -1; at = text.indexOf('"', end)) {
    end = endOfString(text, at);
    if (text[behindSpace(text, end)] === ':' && text.slice(at, end).includes('\\')) return true;
  }
  return false;
}

function behindSpace(text: string, at: number): number {
  while (text[at] === ' ' || text[at] === '\n' || text[at] === '\r' || text[at] === '\t') at++;
  return at;
}

const ENDS_VALUE = /[,\]}\s]/g;

/** Sets a member as JSON.parse does: an assignment to `__proto__` would change what the object inherits from. */
export function setMember(object: Record<string, unknown>, name: string, value: unknown): void {
  if (name === '__proto__')
    Object.defineProperty(object, name, { value, enumerable: true, writable: true, configurable: true });
  else object[name] = value;
}

/** Reads a text that is known to be JSON. */
function readByValue(text: string): unknown {
  let at = 0;
  /** Skips a character if it is next, and the white space before it. Returns whether it was. */
  const takes = (character: string) => {
    at = behindSpace(text, at);
    if (text[at] !== character) return false;
    at++;
    return true;
  };
  const string = () => {
    const start = behindSpace(text, at);
    at = endOfString(text, start);
    return parseString(text.slice(start, at));
  };
  const value = (): unknown => {
    if (takes('[')) {
      const list: unknown[] = [];
      while (!takes(']')) {
        list.push(value());
        takes(',');
      }
      return list;
    }
    if (takes('{')) {
      const object: Record<string, unknown> = {};
      while (!takes('}')) {
        const name = string();
        takes(':');
        setMember(object, name, value());
        takes(',');
      }
      return object;
    }
    if (text[at] === '"') return string();
    const start = at;
    ENDS_VALUE.lastIndex = at;
    at = ENDS_VALUE.test(text) ? ENDS_VALUE.lastIndex - 1 : text.length;
    return JSON.parse(text.slice(start, at));
  };
  return value();
}
