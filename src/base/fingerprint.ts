import { createHash, type Hash, hash } from 'node:crypto';
import {
  END,
  EXACT_DIGITS,
  endOfNumber,
  HAS_ESCAPE,
  HAS_OTHER_ESCAPE,
  IS_BEYOND_ASCII,
  KIND_MASK,
  LIST,
  NEXT,
  NODE_LENGTH,
  NUMBERS,
  OBJECT,
  START,
  STRING,
} from './json-scan.ts';
import { type ScannedText, stringAt, stringPieces } from './json-strings.ts';

/**
 * Serializes JSON with sorted keys and no spaces, so that two bodies with the same meaning give the same text (design
 * 2.7).
 */
export function canonicalJson(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(canonicalJson).join(',')}]`;
  if (typeof value !== 'object' || value === null) return JSON.stringify(value);
  const members = Object.keys(value)
    .sort()
    .map((key) => `${JSON.stringify(key)}:${canonicalJson((value as Record<string, unknown>)[key])}`);
  return `{${members.join(',')}}`;
}

/**
 * Returns the SHA-256 of the canonical JSON of a parsed body, before defaults are applied. The HTTP layer limits the
 * nesting.
 */
export function fingerprint(body: unknown): Buffer {
  return hash('sha256', canonicalJson(body), 'buffer');
}

/**
 * Returns the fingerprint of a scanned text, without the members of the outermost object that `isOmitted` names. The canonical JSON
 * is never made as a whole: its pieces go from the text to the hash by a block.
 */
export function fingerprintOf(text: ScannedText, isOmitted?: (name: string) => boolean): Buffer {
  const pieces = new PieceHash(text.bytes);
  writeValue(pieces, text, 0, isOmitted);
  return pieces.digest();
}

const [QUOTE, COMMA, MINUS, COLON] = [0x22, 0x2c, 0x2d, 0x3a];
const [CLOSE_LIST, CLOSE_OBJECT] = [0x5d, 0x7d];

/** Hashes pieces of a text and what stands between them. Only one at a time: all use the same block. */
class PieceHash {
  readonly #text: Buffer;
  /** The piece that is not in the block yet: the next one often follows it in the text. */
  #start = 0;
  #end = 0;
  #used = 0;
  #hash: Hash | undefined;

  constructor(text: Buffer) {
    this.#text = text;
  }
  /** Adds a piece of the text. */
  add(start: number, end: number): void {
    if (start !== this.#end) {
      this.#flush();
      this.#start = start;
    }
    this.#end = end;
  }
  /** Adds a character between pieces, which is in the text, too, if that has no white space. */
  addBetween(code: number): void {
    if (this.#text[this.#end] === code && this.#end > this.#start) {
      this.#end++;
      return;
    }
    this.#flush();
    this.#need(1);
    BLOCK[this.#used++] = code;
  }
  /** Adds a text that is written in another way. */
  write(text: string): void {
    this.#flush();
    const longest = 3 * text.length;
    this.#need(longest);
    if (longest > BLOCK.length) this.#hash?.update(text);
    else this.#used += BLOCK.write(text, this.#used);
  }
  digest(): Buffer {
    this.#flush();
    const rest = BLOCK.subarray(0, this.#used);
    return this.#hash ? this.#hash.update(rest).digest() : hash('sha256', rest, 'buffer');
  }

  #flush(): void {
    const start = this.#start;
    const end = this.#end;
    this.#start = this.#end = -1;
    const length = end - start;
    if (length > BLOCK.length / 2) {
      this.#empty();
      this.#hash?.update(this.#text.subarray(start, end));
      return;
    }
    this.#need(length);
    if (length > COPY_LENGTH) this.#text.copy(BLOCK, this.#used, start, end);
    else for (let i = 0; i < length; i++) BLOCK[this.#used + i] = this.#text[start + i] as number;
    this.#used += length;
  }
  /** Makes room in the block. */
  #need(length: number): void {
    if (this.#used + length > BLOCK.length) this.#empty();
  }
  #empty(): void {
    this.#hash ??= createHash('sha256');
    this.#hash.update(BLOCK.subarray(0, this.#used));
    this.#used = 0;
  }
}

/** Shorter pieces are copied faster byte by byte. */
const COPY_LENGTH = 32;
/** New memory costs more than what is written to it. */
const BLOCK = Buffer.allocUnsafeSlow(64 * 1024);

/** Writes the canonical JSON of the value at a node. */
function writeValue(pieces: PieceHash, text: ScannedText, node: number, isOmitted?: (name: string) => boolean): void {
  const { nodes } = text;
  const kind = (nodes[node] as number) & KIND_MASK;
  if (kind === STRING) writeString(pieces, text, node);
  else if (kind === NUMBERS) writeNumbers(pieces, text, node);
  else if (kind === LIST) writeList(pieces, text, node);
  else if (kind === OBJECT) writeObject(pieces, text, node, isOmitted);
  else pieces.add(nodes[node + START] as number, nodes[node + END] as number);
}

function writeString(pieces: PieceHash, text: ScannedText, node: number): void {
  const { nodes } = text;
  if (!((nodes[node] as number) & HAS_OTHER_ESCAPE)) {
    pieces.add(nodes[node + START] as number, nodes[node + END] as number);
    return;
  }
  pieces.addBetween(QUOTE);
  for (const piece of stringPieces(text, node)) pieces.write(JSON.stringify(piece).slice(1, -1));
  pieces.addBetween(QUOTE);
}

/** Writes a number, or the numbers of a list that follow each other. */
function writeNumbers(pieces: PieceHash, { bytes, nodes }: ScannedText, node: number): void {
  const last = nodes[node + END] as number;
  for (let start = nodes[node + START] as number; ; ) {
    const end = endOfNumber(bytes, start);
    if (isExact(bytes, start, end)) pieces.add(start, end);
    else pieces.write(JSON.stringify(Number(bytes.toString('latin1', start, end))));
    if (end === last) return;
    pieces.addBetween(COMMA);
    start = end;
    while (!beginsNumber(bytes[start] as number)) start++; // A comma and white space.
  }
}

const beginsNumber = (code: number) => code === MINUS || (code >= 0x30 && code <= 0x39);

/** Returns whether a number is written as JSON.stringify writes it: a whole one of not too many digits. */
function isExact(bytes: Buffer, start: number, end: number): boolean {
  if (end - start > EXACT_DIGITS) return false;
  for (let i = start; i < end; i++) {
    const code = bytes[i] as number;
    if (code < 0x30 || code > 0x39) return false;
  }
  return true;
}

function writeList(pieces: PieceHash, text: ScannedText, list: number): void {
  const { nodes } = text;
  const start = nodes[list + START] as number;
  pieces.add(start, start + 1);
  const last = nodes[list + NEXT] as number;
  for (let node = list + NODE_LENGTH; node < last; node = nodes[node + NEXT] as number) {
    if (node > list + NODE_LENGTH) pieces.addBetween(COMMA);
    writeValue(pieces, text, node);
  }
  pieces.addBetween(CLOSE_LIST);
}

function writeObject(
  pieces: PieceHash,
  text: ScannedText,
  object: number,
  isOmitted?: (name: string) => boolean,
): void {
  const { nodes } = text;
  const start = nodes[object + START] as number;
  const first = namesInOrder.length;
  pieces.add(start, start + 1);
  putNamesInOrder(text, object, isOmitted);
  const last = namesInOrder.length;
  for (let i = first; i < last; i++) {
    const name = namesInOrder[i] as number;
    if (i > first) pieces.addBetween(COMMA);
    writeString(pieces, text, name);
    pieces.addBetween(COLON);
    writeValue(pieces, text, name + NODE_LENGTH);
  }
  pieces.addBetween(CLOSE_OBJECT);
  namesInOrder.length = first;
}

/** The names of the objects that are being written, each in order behind those of the object around it. */
const namesInOrder: number[] = [];
/** More names than this are sorted by Array.sort, which makes lists of its own. */
const FEW_COUNT = 32;

/** Puts the names of an object in order. Of duplicate names the last counts. */
function putNamesInOrder(text: ScannedText, object: number, isOmitted?: (name: string) => boolean): void {
  const { nodes } = text;
  const first = namesInOrder.length;
  const behind = nodes[object + NEXT] as number;
  for (let name = object + NODE_LENGTH; name < behind; name = nodes[name + NODE_LENGTH + NEXT] as number)
    if (!isOmitted?.(stringAt(text, name))) namesInOrder.push(name);
  if (namesInOrder.length - first > FEW_COUNT) {
    const sorted = namesInOrder.splice(first).sort((one, other) => compareNames(text, one, other));
    for (const name of sorted) namesInOrder.push(name);
  } else
    for (let i = first + 1; i < namesInOrder.length; i++) {
      const name = namesInOrder[i] as number;
      let k = i;
      for (; k > first && compareNames(text, namesInOrder[k - 1] as number, name) > 0; k--)
        namesInOrder[k] = namesInOrder[k - 1] as number;
      namesInOrder[k] = name;
    }
  // Equal names stayed in their order.
  let kept = first;
  for (let i = first; i < namesInOrder.length; i++) {
    const name = namesInOrder[i] as number;
    const after = namesInOrder[i + 1];
    if (after === undefined || compareNames(text, name, after) !== 0) namesInOrder[kept++] = name;
  }
  namesInOrder.length = kept;
}

/** Compares names as JavaScript sorts strings. */
function compareNames(text: ScannedText, one: number, other: number): number {
  const { bytes, nodes } = text;
  const marks = (nodes[one] as number) | (nodes[other] as number);
  if (marks & (HAS_ESCAPE | IS_BEYOND_ASCII)) {
    const [a, b] = [stringAt(text, one), stringAt(text, other)];
    return a < b ? -1 : a > b ? 1 : 0;
  }
  // Behind the end of a name is its quote, which comes before most characters.
  const endOfOne = (nodes[one + END] as number) - 1;
  const endOfOther = (nodes[other + END] as number) - 1;
  for (let i = (nodes[one + START] as number) + 1, k = (nodes[other + START] as number) + 1; ; i++, k++) {
    if (i === endOfOne || k === endOfOther) return Number(k !== endOfOther) * -1 + Number(i !== endOfOne);
    const difference = (bytes[i] as number) - (bytes[k] as number);
    if (difference !== 0) return difference;
  }
}
