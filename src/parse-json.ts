/**
 * Parses JSON as JSON.parse is specified to. That of V8 13.6 (Node 24) may take a name with an escape for another that it has seen
 * before, in any text that this thread has parsed: where an object went on with a name `caf\`, it reads `"caf\u00e9"` as that name in
 * the next. Whoever sends one text would change how those of others are read. So a text with such a name is read value by value,
 * and every text that others have a part in goes through here. Throws a SyntaxError for what is not JSON.
 */
export function parseJson(text: string): unknown {
  const value: unknown = JSON.parse(text);
  return text.includes('\\') && hasEscapeInName(text) ? readByValue(text) : value;
}

/** Parses a string in JSON. V8 reads one that is no name as it is written. */
export const parseString = (written: string): string => JSON.parse(written);

/**
 * Returns a value of JSON as a word to look up or to show; an empty one for a list or an object: `String` throws for
 * `{"toString": 1}`.
 */
export const wordOf = (value: unknown): string => (typeof value === 'object' && value !== null ? '' : String(value));

/** Returns the offset behind the string in JSON that begins at `at`; that of the end of the text if it has no end. */
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
  /** Goes behind a character that may stand next. */
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
