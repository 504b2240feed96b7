import { describeLeap, type Leap } from '../base/clock.ts';
import { warning } from '../compute/finding.ts';
import { outputOf } from '../files/programs.ts';

/** The doctor's checks of the machine: its clock, and other programs that may open the database. */

/**
 * Throws if the clock is in doubt: `leap` is the difference that the downtime does not explain. `isSynced` is true if a time
 * service vouches for the clock; undefined if unknown.
 */
export function judgeClock(leap: Leap | undefined, isSynced: boolean | undefined): string {
  if (leap && !isSynced)
    throw new Error(
      `${describeLeap(leap).replace(/^the/, 'The')}. If the clock is wrong, set it; the server goes on by itself then. If it is right, stop the server and start it once with --accept-clock.`,
    );
  if (isSynced === false)
    return warning(
      'not ahead of the books and not behind them, but the kernel says that it is not synchronized. Run a time service: systemd-timesyncd or chrony.',
    );
  const agrees = 'not ahead of the books and not behind them';
  return isSynced ? `${leap ? 'believed' : agrees}: a time service says that it is synchronized` : agrees;
}

type ProgramVersion = readonly [number, number, number];
const versionIn = (text: string): ProgramVersion | undefined => {
  const [, a, b, c] = /(\d+)\.(\d+)(?:\.(\d+))?/.exec(text) ?? [];
  return a === undefined ? undefined : [Number(a), Number(b), Number(c ?? 0)];
};
const isBefore = (a: ProgramVersion, b: ProgramVersion) => (a[0] - b[0] || a[1] - b[1] || a[2] - b[2]) < 0;

/**
 * Returns whether a version of SQLite has the WAL-reset bug: two connections that write or checkpoint at the same moment may
 * destroy the database. 3.7.0 to 3.51.2, fixed in 3.51.3, 3.50.7 and 3.44.6 (sqlite.org/wal.html#walresetbug).
 */
function hasWalResetBug(version: ProgramVersion): boolean {
  const [, minor, patch] = version;
  if (isBefore(version, [3, 7, 0]) || !isBefore(version, [3, 51, 3])) return false;
  return !((minor === 50 && patch >= 7) || (minor === 44 && patch >= 6));
}

/** Litestream checkpoints the database it replicates. Up to this release it contains SQLite 3.51.2 or older. */
const LITESTREAM_AFFECTED: ProgramVersion = [0, 5, 16];

const TOOLS = {
  sqlite3: { argument: '--version', isAffected: hasWalResetBug },
  litestream: { argument: 'version', isAffected: (it: ProgramVersion) => !isBefore(LITESTREAM_AFFECTED, it) },
};

/** Checks the programs on the search path that operators open databases with: an affected one may destroy the database. */
export async function judgeTools(find: (name: string) => string[]): Promise<string> {
  const affected: string[] = [];
  const sound: string[] = [];
  for (const [name, { argument, isAffected }] of Object.entries(TOOLS))
    for (const program of find(name)) {
      const version = versionIn((await outputOf(program, argument)) ?? '');
      const text = `${program} is ${version ? version.join('.') : 'of an unknown version'}`;
      (version && !isAffected(version) ? sound : affected).push(text);
    }
  if (affected.length)
    return warning(
      `${affected.join(', ')}: SQLite below 3.51.3 has a bug that can destroy a database which two programs have open. Never open purser.db with it while Purser runs; open a copy made by \`purser backup\`, or update the program.`,
    );
  return sound.length ? sound.join(', ') : 'no sqlite3 and no litestream on the PATH';
}
