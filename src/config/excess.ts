/** An honest settings file has some kilobytes. The time to parse one grows faster than its length in places. */
const LENGTH_MAX = 1024 * 1024;
/** Each alias causes a search of the whole file. */
const ALIAS_COUNT_MAX = 1000;
const BRACKETS_MAX = 200;

/** Returns the part of a YAML text that is too large to be parsed in a moment, and its offset; undefined for any honest text. */
export function excessIn(text: string): { at: number; what: string } | undefined {
  if (text.length > LENGTH_MAX) return { at: LENGTH_MAX, what: 'the file is longer than 1 MiB' };
  const alias = [...text.matchAll(/(?<=^|[\s,[{])\*[^\s,[\]{}*]/g)][ALIAS_COUNT_MAX];
  if (alias) return { at: alias.index, what: `more than ${ALIAS_COUNT_MAX} aliases` };
  const at = tooDeepAt(text);
  return at === undefined ? undefined : { at, what: `more than ${BRACKETS_MAX} brackets that are not closed` };
}

function tooDeepAt(text: string): number | undefined {
  let open = 0;
  for (let at = 0; at < text.length; at++) {
    const character = text[at];
    if (character === '[' || character === '{') open++;
    else if ((character === ']' || character === '}') && open > 0) open--;
    if (open > BRACKETS_MAX) return at;
  }
  return undefined;
}

/** Returns the number of the line at an offset. */
export function lineAt(text: string, offset: number): number {
  let line = 1;
  for (let at = text.indexOf('\n'); at !== -1 && at < offset; at = text.indexOf('\n', at + 1)) line++;
  return line;
}

/** Returns where the text begins in the line that is indented the most, by spaces or by items of lists. */
export function deepestIn(text: string): number {
  let deepest = 0;
  let at = 0;
  for (const { index, 0: indent } of text.matchAll(/^[ -]*/gm))
    if (indent.length > deepest) {
      deepest = indent.length;
      at = index + indent.length;
    }
  return at;
}
