import { execFile } from 'node:child_process';
import { accessSync, constants, realpathSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { warning } from '../compute/finding.ts';

/** The doctor's checks of the machine: its clock, and other programs that may open the database. */

const run = promisify(execFile);
const RUN_MILLISECONDS = 5000;

/** Returns what a program prints, whatever its exit code. Undefined if it is missing, hangs or prints nothing. */
async function outputOf(program: string, ...args: string[]): Promise<string | undefined> {
  const output = await run(program, args, { timeout: RUN_MILLISECONDS, killSignal: 'SIGKILL', env: {} }).catch(
    (error: { stdout?: string }) => ({ stdout: error.stdout ?? '' }),
  );
  return output.stdout.trim() || undefined;
}

const CLOCK_SECONDS = 60;

/** Throws if the wall clock is behind the newest entry. Times are in Unix seconds; `isSynced` is undefined if unknown. */
export function judgeClock(now: number, lastJournalAt: number, isSynced: boolean | undefined): string {
  const ahead = lastJournalAt - now;
  if (ahead > CLOCK_SECONDS)
    throw new Error(
      `The clock is ${ahead} s behind the newest entry: no new holds until it has passed. Set the clock.`,
    );
  if (isSynced === false)
    return warning(
      'not behind the journal, but the kernel says that it is not synchronized. Run a time service: systemd-timesyncd or chrony.',
    );
  return isSynced ? 'not behind the journal, and the kernel says that it is synchronized' : 'not behind the journal';
}

/**
 * Returns whether the kernel considers its clock synchronized (adjtimex(2), STA_UNSYNC), by any program of this machine that
 * can ask it. Undefined if none can. Time services set that state.
 */
export async function clockIsSynced(find: (name: string) => string[]): Promise<boolean | undefined> {
  const ask = async (name: string, ...args: string[]) => {
    const [program] = find(name);
    return program && (await outputOf(program, ...args));
  };
  const byService = await ask('timedatectl', 'show', '--property=NTPSynchronized', '--value');
  if (byService === 'yes' || byService === 'no') return byService === 'yes';
  const byKernel = (await ask('adjtimex', '--print')) ?? (await ask('busybox', 'adjtimex'));
  const [, state] = /return value\s*[:=]\s*(\d)/.exec(byKernel ?? '') ?? [];
  return state === undefined ? undefined : Number(state) !== TIME_ERROR;
}
const TIME_ERROR = 5;

/** Returns every program of this name on the search path, each once. */
export function findPrograms(name: string, searchPath: readonly string[]): string[] {
  const found = searchPath.flatMap((directory) => {
    try {
      const file = realpathSync(join(directory, name));
      accessSync(file, constants.X_OK);
      return [[file, join(directory, name)] as const];
    } catch {
      return [];
    }
  });
  return [...new Map(found.reverse()).values()].reverse();
}

type Version = readonly [number, number, number];
const versionIn = (text: string): Version | undefined => {
  const [, a, b, c] = /(\d+)\.(\d+)(?:\.(\d+))?/.exec(text) ?? [];
  return a === undefined ? undefined : [Number(a), Number(b), Number(c ?? 0)];
};
const isBefore = (a: Version, b: Version) => (a[0] - b[0] || a[1] - b[1] || a[2] - b[2]) < 0;

/**
 * Returns whether a version of SQLite has the WAL-reset bug: two connections that write or checkpoint at the same moment may
 * destroy the database. 3.7.0 to 3.51.2, fixed in 3.51.3, 3.50.7 and 3.44.6 (sqlite.org/wal.html#walresetbug).
 */
function hasWalResetBug(version: Version): boolean {
  const [, minor, patch] = version;
  if (isBefore(version, [3, 7, 0]) || !isBefore(version, [3, 51, 3])) return false;
  return !((minor === 50 && patch >= 7) || (minor === 44 && patch >= 6));
}

/** Litestream checkpoints the database it replicates. Up to this release it contains SQLite 3.51.2 or older. */
const LITESTREAM_AFFECTED: Version = [0, 5, 16];

const TOOLS = {
  sqlite3: { asks: '--version', isAffected: hasWalResetBug },
  litestream: { asks: 'version', isAffected: (it: Version) => !isBefore(LITESTREAM_AFFECTED, it) },
};

/** Checks the programs on the search path that operators open databases with: an affected one may destroy the database. */
export async function judgeTools(find: (name: string) => string[]): Promise<string> {
  const affected: string[] = [];
  const sound: string[] = [];
  for (const [name, { asks, isAffected }] of Object.entries(TOOLS))
    for (const program of find(name)) {
      const version = versionIn((await outputOf(program, asks)) ?? '');
      const text = `${program} is ${version ? version.join('.') : 'of an unknown version'}`;
      (version && !isAffected(version) ? sound : affected).push(text);
    }
  if (affected.length)
    return warning(
      `${affected.join(', ')}: SQLite below 3.51.3 has a bug that can destroy a database which two programs have open. Never open purser.db with it while Purser runs; open a copy made by \`purser backup\`, or update the program.`,
    );
  return sound.length ? sound.join(', ') : 'no sqlite3 and no litestream on the PATH';
}
