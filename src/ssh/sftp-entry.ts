import { SftpFault } from './sftp-fault.ts';
import { type Attributes, type Name, STATUS } from './sftp-wire.ts';

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
/** The name that `stat` prints for a user or group without one. */
const NAMELESS = 'UNKNOWN';
const UINT32_MAX = 2 ** 32 - 1;

export type Facts = { attributes: Attributes; links: number; user: string; group: string };

/** Parses the output of `stat` in the format of `SFTP_SCRIPT`. Throws SftpFault when it has another form. */
export function factsOf(output: string): Facts {
  const found = /^([0-9a-f]{1,8}) (\d{1,19}) (\d+) (\d+) (-?\d+) (-?\d+) (\d+):([^:/]*):([^/\n]*)\n?$/.exec(output);
  if (!found) throw new SftpFault(STATUS.failure, 'the machine says nothing that can be understood of the file');
  const [, mode = '', size = '', uid, gid, accessed, modified, links, user = '', group = ''] = found;
  const uint32 = (text: string | undefined) => Math.min(Math.max(Number(text), 0), UINT32_MAX);
  return {
    attributes: {
      size: BigInt(size),
      owner: { uid: uint32(uid), gid: uint32(gid) },
      mode: Number.parseInt(mode, 16),
      times: { accessed: uint32(accessed), modified: uint32(modified) },
    },
    links: uint32(links),
    user: user === NAMELESS ? String(uid) : user,
    group: group === NAMELESS ? String(gid) : group,
  };
}

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
export type Listing = { bytes: number; next(now: number): Name[] };

/** Parses the script's listing. `separator` begins each entry; it is random, so no file name contains it. */
export function createListing(output: Buffer, separator: string): Pick<Listing, 'next'> {
  let at = output.indexOf(separator);
  return {
    next(now) {
      const names: Name[] = [];
      while (at >= 0 && names.length < NAMES_PER_ANSWER) {
        const from = at + separator.length;
        at = output.indexOf(separator, from);
        const entry = output.subarray(from, at < 0 ? undefined : at);
        const slash = entry.indexOf('/');
        const facts = factsOf(entry.subarray(0, slash).toString());
        const name = entry.subarray(slash + '/./'.length, -1); // The script prints ./name and a newline.
        names.push({ name, longName: longName(facts, name, now), attributes: facts.attributes });
      }
      return names;
    },
  };
}
