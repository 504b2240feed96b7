import { randomFillSync } from 'node:crypto';

/** Prefix that shows the kind of object (design, section 1). */
export type IdPrefix =
  | 'acct'
  | 'key'
  | 'pass'
  | 'wal'
  | 'op'
  | 'res'
  | 'keep'
  | 'snap'
  | 'chk'
  | 'evt'
  | 'msg'
  | 'req'
  | 'chg'
  | 'inst'
  | 'trial'
  | 'ses'
  | 'proc';

const ALPHABET = '0123456789abcdefghjkmnpqrstvwxyz'; // Crockford's base 32 sorts in the order of its values.
const TIME_CHARACTERS = 10;
const RANDOM_CHARACTERS = 16;
const COUNTED_CHARACTERS = 8;

// One system call fills it for many ids.
const pool = new Uint8Array(4096);
let used = pool.length;

/**
 * Returns a new id: the prefix, then 48 bits of milliseconds and 80 random bits in base 32. Within a millisecond the first 40 of
 * the random bits count up, so that the ids of one thread sort in the order in which they are made. Lists and indexes use the
 * order; nothing about money depends on it.
 */
export function newId(prefix: IdPrefix): string {
  if (used + RANDOM_CHARACTERS > pool.length) {
    randomFillSync(pool);
    used = 0;
  }
  const now = Date.now();
  let randomFrom = TIME_CHARACTERS;
  if (now === last) {
    randomFrom += COUNTED_CHARACTERS;
    countUp(randomFrom);
  } else {
    last = now;
    for (let i = TIME_CHARACTERS - 1, time = now; i >= 0; i--, time = Math.floor(time / 32))
      written[i] = CODES[time % 32] as number;
  }
  for (let i = randomFrom; i < written.length; i++) written[i] = CODES[(pool[used++] as number) & 31] as number;
  return `${prefix}_${written.toString('latin1')}`;
}

/** The part behind the prefix: put together as bytes, since each piece of a string would be an object. */
const written = Buffer.alloc(TIME_CHARACTERS + RANDOM_CHARACTERS);
const CODES = Buffer.from(ALPHABET);
/** The time of the last id, in milliseconds. */
let last = -1;

/** Adds one to the number that ends before this place. */
function countUp(end: number): void {
  for (let i = end - 1; i >= end - COUNTED_CHARACTERS; i--) {
    const value = (CODES.indexOf(written[i] as number) + 1) % 32;
    written[i] = CODES[value] as number;
    if (value > 0) return;
  }
}

/** Returns the text before all ids of this kind that are made at or after this time, and behind all earlier ones. */
export function idsFrom(prefix: IdPrefix, milliseconds: number): string {
  let stamp = '';
  for (let rest = milliseconds; stamp.length < TIME_CHARACTERS; rest = Math.floor(rest / 32))
    stamp = ALPHABET[rest % 32] + stamp;
  return `${prefix}_${stamp}`;
}

/** Returns the milliseconds at which an id was made; undefined for a text that is none. */
export function madeAt(id: string): number | undefined {
  const [, stamp] = /^[a-z]+_([0-9a-hjkmnp-tv-z]{10})/.exec(id) ?? [];
  if (stamp === undefined) return undefined;
  return [...stamp].reduce((sum, character) => sum * 32 + ALPHABET.indexOf(character), 0);
}
