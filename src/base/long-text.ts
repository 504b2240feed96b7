import { END, ESCAPES, HAS_OTHER_ESCAPE, IS_BEYOND_ASCII, START } from './json-scan.ts';
import { piecesOf, type ScannedText } from './json-strings.ts';

const BACKSLASH = 0x5c;
/** The characters that an escape of one letter stands for, by that letter. */
const UNESCAPED = Uint8Array.from({ length: 256 }, (_, byte) => {
  const at = 'bfnrt'.indexOf(String.fromCharCode(byte));
  return at === -1 ? byte : '\b\f\n\r\t'.charCodeAt(at);
});

/**
 * A long string of a JSON text that stays in its bytes: what is only measured and forwarded is never made a string. It is in a
 * value where a string would be, and JSON.stringify writes it as one.
 */
export class LongText {
  readonly #bytes: Buffer;
  readonly #marks: number;
  readonly #escapes: number;

  constructor({ bytes, nodes }: Pick<ScannedText, 'bytes' | 'nodes'>, node: number) {
    this.#bytes = bytes.subarray((nodes[node + START] as number) + 1, (nodes[node + END] as number) - 1);
    this.#marks = nodes[node] as number;
    this.#escapes = nodes[node + ESCAPES] as number;
  }
  /** The length of the text if it is ASCII. */
  get asciiLength(): number | undefined {
    if (this.#marks & (IS_BEYOND_ASCII | HAS_OTHER_ESCAPE)) return undefined;
    return this.#bytes.length - this.#escapes;
  }
  /** Returns the sum of a number for each of its characters. It has to be ASCII. */
  sumOf(numbers: ArrayLike<number>): number {
    const bytes = this.#bytes;
    let sum = 0;
    for (let i = 0; i < bytes.length; i++) {
      const code = bytes[i] as number;
      sum += numbers[code === BACKSLASH ? (UNESCAPED[bytes[++i] as number] as number) : code] as number;
    }
    return sum;
  }
  /** Returns the text in pieces, none of which ends inside a character. */
  pieces(): string[] {
    return piecesOf(this.#bytes, this.#marks, 0, this.#bytes.length);
  }
  /** The length of the text as it was written, escapes included. */
  get byteLength(): number {
    return this.#bytes.length;
  }
  /** Returns the first and the last bytes of the text as it was written; all of a text that has no more. */
  ends(length: number): Buffer[] {
    const bytes = this.#bytes;
    return bytes.length > 2 * length ? [bytes.subarray(0, length), bytes.subarray(-length)] : [bytes];
  }
  /** Returns the beginning of the text. */
  head(): string {
    return this.pieces()[0] ?? '';
  }
  toString(): string {
    return this.pieces().join('');
  }
  toJSON(): string {
    return this.toString();
  }
}

/** A string of a body; a long one may be in its bytes. */
export type Text = string | LongText;

export const isText = (value: unknown): value is Text => typeof value === 'string' || value instanceof LongText;
