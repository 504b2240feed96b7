import { randomFrom } from './random.ts';

/** Whole numbers from 0, below `below`. */
export type Below = (below: number) => number;

/** Whole numbers that follow from a seed. */
export function belowFrom(seed: number): Below {
  const next = randomFrom(seed);
  return (below) => Math.floor(next() * below);
}

const TEXTS = [
  '',
  'a',
  '"',
  '\\',
  '\\"',
  '\\\\"',
  '[',
  '}',
  ',',
  ':',
  '\u2028',
  '\n',
  '\u0001',
  '/',
  'ü',
  '漢',
  '💶',
  '\ud800',
];
const NUMBERS = [
  '-1',
  '0',
  '-0',
  '1.5e3',
  '1.0',
  '0.10',
  '-0.1E-2',
  '123',
  '12345678901234567890',
  '1e400',
  '1e21',
  '5e-324',
];
const NAMES = [
  'role',
  'content',
  'max_tokens',
  'model',
  'messages',
  '__proto__',
  'a',
  'b',
  '10',
  '9',
  'ü',
  '💶',
  '\ue000',
  '"',
];

/**
 * Creates a writer of unusual JSON: any white space unless it is `compact`, escapes that are not needed, duplicate names,
 * numbers in every form.
 */
export function jsonWriter(random: Below, isCompact = () => false) {
  const pick = <T>(list: readonly T[]): T => list[random(list.length)] as T;
  const space = () => (isCompact() ? '' : pick(['', '', '', ' ', '\n\t', '  ', '\r\n']));
  const hex = (unit: number) => `\\u${unit.toString(16).padStart(4, '0')}`;
  const string = (text: string): string => {
    let written = '';
    for (const character of text) {
      if (random(6) === 0) for (let i = 0; i < character.length; i++) written += hex(character.charCodeAt(i));
      else if (character === '/' && random(2)) written += '\\/';
      else written += JSON.stringify(character).slice(1, -1);
    }
    return `"${written}"`;
  };
  const text = () => string(Array.from({ length: random(4) }, () => pick(TEXTS)).join(''));
  const list = (items: readonly string[]) => items.map((it) => `${space()}${it}${space()}`).join(',') || space();
  // A body with an escape in any of its names is always rewritten.
  const member = (name: string, value: string) =>
    `${isCompact() ? JSON.stringify(name) : string(name)}${space()}:${space()}${value}`;
  const value = (levels: number): string => {
    const kind = random(levels ? 7 : 5);
    if (kind === 0) return pick(NUMBERS);
    if (kind < 3) return text();
    if (kind < 5) return pick(['true', 'false', 'null']);
    if (kind === 5) return `[${list(Array.from({ length: random(4) }, () => value(levels - 1)))}]`;
    return `{${list(Array.from({ length: random(5) }, () => member(pick(NAMES), value(levels - 1))))}}`;
  };
  return { pick, space, string, text, list, member, value };
}
