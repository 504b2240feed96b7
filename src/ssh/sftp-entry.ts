import { entriesOf, type Facts } from '../compute/machine/sftp-facts.ts';
import type { NamedFile } from '../compute/machine/sftp-wire.ts';

const KINDS = new Map([
  [0o010000, 'p'],
  [0o020000, 'c'],
  [0o040000, 'd'],
  [0o060000, 'b'],
  [0o100000, '-'],
  [0o120000, 'l'],
  [0o140000, 's'],
]);
const KIND_BITS = 0o170000;
const MONTHS = ['Jan', 'Feb', 'Mar', 'Apr', 'May', 'Jun', 'Jul', 'Aug', 'Sep', 'Oct', 'Nov', 'Dec'];
const HALF_A_YEAR_SECONDS = 182 * 86_400;
const NAMES_PER_ANSWER = 100;

/** Formats a line like `ls -l`, which sftp clients show unchanged. `now` is Unix seconds; times are UTC. */
export function longName({ attributes, links, user, group }: Facts, name: Buffer, now: number): Buffer {
  const { mode = 0, size = 0n, times } = attributes;
  const modified = times?.modified ?? 0;
  const date = new Date(modified * 1000);
  const day = `${MONTHS[date.getUTCMonth()]} ${String(date.getUTCDate()).padStart(2)}`;
  const isRecent = Math.abs(now - modified) < HALF_A_YEAR_SECONDS; // The clocks may differ, so future times count as well.
  const when = isRecent ? date.toISOString().slice(11, 16) : ` ${date.getUTCFullYear()}`;
  const columns = [
    permissions(mode),
    String(links).padStart(3),
    user.padEnd(8),
    group.padEnd(8),
    String(size).padStart(8),
    day,
    when,
  ];
  return Buffer.concat([Buffer.from(`${columns.join(' ')} `), name]);
}

function permissions(mode: number): string {
  const letters = [...'rwxrwxrwx'].map((letter, at) => (mode & (0o400 >> at) ? letter : '-'));
  const special = (bit: number, at: number, letter: string) => {
    if (mode & bit) letters[at] = letters[at] === 'x' ? letter : letter.toUpperCase();
  };
  special(0o4000, 2, 's');
  special(0o2000, 5, 's');
  special(0o1000, 8, 't');
  return (KINDS.get(mode & KIND_BITS) ?? '?') + letters.join('');
}

/** A directory listing, read in parts. `bytes` is the memory that it uses. */
export type Listing = { path: Buffer; bytes: number; next(now: number): NamedFile[] };

/** Parses the script's listing. `separator` begins each entry; it is random, so no file name contains it. */
export function createListing(output: Buffer, separator: string): Pick<Listing, 'next'> {
  const entries = entriesOf(output, separator);
  return {
    next(now) {
      const names: NamedFile[] = [];
      while (names.length < NAMES_PER_ANSWER) {
        const { value } = entries.next();
        if (!value) break;
        const { name, facts } = value;
        names.push({ name, longName: longName(facts, name, now), attributes: facts.attributes });
      }
      return names;
    },
  };
}
