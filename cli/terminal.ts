import { styleText } from 'node:util';
import { eastAsianWidth } from 'get-east-asian-width';
import type { StateTone } from '../src/base/shown.ts';

/** The meaning of a piece of text, which a terminal shows as a colour. */
export type Tone = 'heading' | StateTone;

const FORMATS = { heading: 'bold', good: 'green', info: 'cyan', warn: 'yellow', bad: 'red', quiet: 'dim' } as const;
const TONES = Object.keys(FORMATS) as Tone[];

// Two noncharacters enclose text with a tone until it is written, as control sequences would be escaped with those of outside
// text (visible.ts). `plain` removes them from outside text.
const [OPEN, CLOSE] = ['\ufdd0', '\ufdd1'];
const MARKED = new RegExp(`${OPEN}(\\d)([^${CLOSE}]*)${CLOSE}`, 'g');

/** Gives text a tone: a colour, where `paint` writes it to a terminal. */
export const toned = (tone: Tone, text: string) => `${OPEN}${TONES.indexOf(tone)}${text}${CLOSE}`;

/** Removes the marks that outside text may hold. */
export const plain = (text: string) => text.replace(/[\ufdd0\ufdd1]/g, '');

/** Turns tones into colours where `stream` is a terminal and NO_COLOR does not forbid them, and removes them elsewhere. */
export function paint(text: string, stream: NodeJS.WriteStream): string {
  return text.replace(MARKED, (_, index: string, inner: string) =>
    styleText(FORMATS[TONES[Number(index)] as Tone], inner, { stream }),
  );
}

/** The assumed width of a terminal that does not report it. */
const COLUMNS_USUAL = 80;

/** Returns the columns of the terminal on stdout; undefined for a file or a pipe, whose lines may be of any length. */
export function terminalWidth(): number | undefined {
  return process.stdout.isTTY ? process.stdout.columns || COLUMNS_USUAL : undefined;
}

/** Returns whether a question can be asked: stdin and stderr are a terminal. */
export const canAsk = () => Boolean(process.stdin.isTTY && process.stderr.isTTY);

const ZERO_WIDTH = /[\p{Mn}\p{Me}\p{Cf}]/gu;

/** Returns the columns that text takes on a terminal. */
export function widthOf(text: string): number {
  if (/^[\x20-\x7e]*$/.test(text)) return text.length;
  let width = 0;
  for (const character of text.replace(ZERO_WIDTH, '')) width += eastAsianWidth(character.codePointAt(0) as number);
  return width;
}

/** Cuts text to a width; an ellipsis shows that it was cut. */
export function cut(text: string, width: number): string {
  if (widthOf(text) <= width) return text;
  let kept = '';
  let room = width - 1;
  for (const character of text) {
    room -= widthOf(character);
    if (room < 0) break;
    kept += character;
  }
  return `${kept}…`;
}

/** Breaks text at spaces into lines of at most `width`. A longer word has a line of its own. */
export function wrap(text: string, width: number): string[] {
  const lines: string[] = [];
  for (const word of text.split(' ')) {
    const last = lines.at(-1);
    if (last !== undefined && widthOf(last) + 1 + widthOf(word) <= width) lines[lines.length - 1] = `${last} ${word}`;
    else lines.push(word);
  }
  return lines;
}

/** Breaks text anywhere into lines of at most `width`. For sentences alone: what a person copies must stay whole. */
export function piecesOf(text: string, width: number): string[] {
  const pieces = [''];
  for (const character of text) {
    const last = pieces.at(-1) as string;
    if (widthOf(last) + widthOf(character) <= width) pieces[pieces.length - 1] = last + character;
    else pieces.push(character);
  }
  return pieces;
}
