import { END, HAS_ESCAPE, IS_BEYOND_ASCII, type Scan, START } from './json-scan.ts';
import { parseString } from './parse-json.ts';

/**
 * The longest piece of a text that becomes one string: V8 makes a string of more than 128 KB in new memory, for which the
 * system takes milliseconds.
 */
export const PIECE_BYTES = 64 * 1024;

const [BACKSLASH, SMALL_U] = [0x5c, 0x75];

/** A JSON text, and what a scan of it found. */
export type ScannedText = Scan & { bytes: Buffer };

/** Returns the string of a node. */
export function stringAt(text: ScannedText, node: number): string {
  const { bytes, nodes } = text;
  const start = (nodes[node + START] as number) + 1;
  const end = (nodes[node + END] as number) - 1;
  if (end - start > PIECE_BYTES) return stringPieces(text, node).join('');
  return pieceOf(bytes, nodes[node] as number, start, end);
}

/** Returns what stands in a part of a string; `marks` are those of its node. */
function pieceOf(bytes: Buffer, marks: number, start: number, end: number): string {
  const piece = bytes.toString(marks & IS_BEYOND_ASCII ? 'utf8' : 'latin1', start, end);
  return marks & HAS_ESCAPE ? parseString(`"${piece}"`) : piece;
}

/** Returns the string of a node in pieces, none of which ends inside a character. */
export const stringPieces = ({ bytes, nodes }: ScannedText, node: number): string[] =>
  piecesOf(bytes, nodes[node] as number, (nodes[node + START] as number) + 1, (nodes[node + END] as number) - 1);

/** Returns what stands between the quotes of a string in pieces. `marks` are those of its node. */
export function piecesOf(bytes: Buffer, marks: number, start: number, end: number): string[] {
  const pieces: string[] = [];
  for (let from = start; from < end; ) {
    const to = from + PIECE_BYTES < end ? endOfPiece(bytes, from, from + PIECE_BYTES) : end;
    pieces.push(pieceOf(bytes, marks, from, to));
    from = to;
  }
  return pieces;
}

/** Returns an offset at or a little before `end` in a string, which is not inside a character, an escape or a pair of them. */
function endOfPiece(bytes: Buffer, from: number, end: number): number {
  while (((bytes[end] as number) & 0xc0) === 0x80) end--;
  const near = Math.max(from, end - CODE_LENGTH + 1);
  const backslash = near + bytes.subarray(near, end).lastIndexOf(BACKSLASH);
  const isCut =
    backslash >= near &&
    beginsEscape(bytes, from, backslash) &&
    backslash + (bytes[backslash + 1] === SMALL_U ? CODE_LENGTH : 2) > end;
  if (isCut) end = backslash;
  const before = end - CODE_LENGTH;
  const isHalf = beginsEscape(bytes, from, before) && isHighSurrogate(bytes, before);
  return isHalf ? before : end;
}
const CODE_LENGTH = 6;

/** Returns whether there is a backslash at `at` that is not escaped itself. */
function beginsEscape(bytes: Buffer, from: number, at: number): boolean {
  let first = at;
  while (first >= from && bytes[first] === BACKSLASH) first--;
  return (at - first) % 2 === 1;
}

/** Returns whether the escape at `at` is the first half of a character: `\ud800` to `\udbff`. */
const isHighSurrogate = (bytes: Buffer, at: number) => /^ud[89ab]/i.test(bytes.toString('latin1', at + 1, at + 4));
