import { statSync } from 'node:fs';
import { basename, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseJson } from '../base/parse-json.ts';
import { Refusal } from '../base/refusal.ts';
import { files } from '../files/data-directory.ts';
import { findInstalled } from './installed.ts';
import { mustRun, type Ran, runProgram, runWithin } from './program.ts';
import { isVersion } from './release-file.ts';
import { SERVICE } from './unit.ts';

/** The files of the service's user below the data directory: a backup, the books as they were, and a copy to try. */
const WORK = 'upgrade';
/** Books of ten million entries are copied and verified in a few minutes. */
const BOOKS_MILLISECONDS = 30 * 60_000;
const CHECK_MILLISECONDS = 60_000;
const READY_MILLISECONDS = 120_000;
const TRY_MILLISECONDS = 1000;
const NO_ANSWER = 'it does not answer';

/**
 * Moves the books back: the database first, whose log then fits it. A kill leaves the rest to the next run: files move, so what was
 * written after the move is never replaced.
 */
const MOVE_BACK = `[ -d ${WORK}/return ] || exit 0
if [ -e ${WORK}/return/purser.db ]; then rm -f purser.db-wal purser.db-shm; fi
for it; do if [ -e "${WORK}/return/$it" ]; then mv -f "${WORK}/return/$it" .; fi; done
sync; rmdir ${WORK}/return`;

/**
 * Ends a move back that a kill has interrupted. One that has not moved the database is undone, as the present one may have been served
 * since: whether it has changed is asked again.
 */
const FINISH_MOVE = `if [ -e ${WORK}/return/purser.db ]; then mv ${WORK}/return ${WORK}/books; fi
${MOVE_BACK}`;

/** The service before an upgrade: whether it was active, and why it was not ready. */
type EarlierService = { wasActive: boolean; fault?: string | undefined };

export const refused = (why: string) => new Refusal('conflict', why);
const backupIn = (data: string) => join(data, WORK, 'backup.db');

/** The service, and what is done as its user: root reads and writes nothing in a directory of another user. */
export type Service = ReturnType<typeof openService>;

/** Opens the service of this machine. Throws `conflict` where systemd does not know it or its books are not there. */
export function openService() {
  const runner = openRunner();
  const { data, environment } = runner;
  return {
    ...{ data, environment, settings: environment.PURSER_CONFIG ?? SERVICE.settings },
    backup: backupIn(data),
    versionOf: (executable: string) => versionOf(runner, executable),
    tryOnCopy: (staged: string, to: string) => tryOnCopy(runner, staged, to),
    ...keptBooks(runner),
    faultOf: () => faultOf(runner),
    start: (before: EarlierService) => start(runner, before),
  };
}

type Runner = ReturnType<typeof openRunner>;

/** Returns what runs programs as the user of the service. */
function openRunner() {
  const installed = findInstalled();
  if (!installed) throw refused(`systemd does not know ${SERVICE.unit}. Run: systemctl daemon-reload`);
  const { user, group, data, environment } = installed;
  if (!statSync(data, { throwIfNoEntry: false })?.isDirectory())
    throw refused(`There is no directory ${data}, where the books are. Is its disk mounted? Nothing was changed.`);
  const gid = group && !/^\d+$/.test(group) ? mustRun('getent', 'group', group).split(':')[2] : group || undefined;
  const as = {
    cwd: data,
    ...(user ? { uid: Number(mustRun('id', '-u', user)), gid: Number(gid ?? mustRun('id', '-g', user)) } : {}),
  };
  const env = { PATH: '/usr/sbin:/usr/bin:/sbin:/bin', LANG: 'C.UTF-8', HOME: data };
  const { database, head, tip, clock } = files(data);
  // Without the index of the log (-shm), which SQLite makes again.
  const books = [database, `${database}-wal`, head, tip, clock].map((it) => basename(it));

  /** Runs a program on no settings. */
  const run = (milliseconds: number, program: string, ...args: string[]): Ran =>
    runWithin(milliseconds, { ...as, env }, program, ...args);
  /** Runs a program on the settings of the service. */
  const runAsService = (milliseconds: number, program: string, ...args: string[]): Ran =>
    runWithin(milliseconds, { ...as, env: { ...env, ...environment, PURSER_DATA: data } }, program, ...args);
  const shell = (script: string) =>
    succeeded(run(BOOKS_MILLISECONDS, 'sh', '-euc', script, 'sh', ...books), 'The books could not be copied');
  return { data, environment, run, runAsService, shell };
}

/** Throws with the output of a program, unless it succeeded. */
function succeeded({ status, stdout, stderr }: Ran, what: string): string {
  if (status !== 0) throw refused(`${what}: ${stderr || stdout || `exit code ${status}`}`);
  return stdout;
}

/** Returns the version and the digest of an executable. Throws where it prints neither. */
function versionOf({ run }: Runner, executable: string): { version: string; bundle_sha256: string } {
  const said = run(CHECK_MILLISECONDS, executable, 'version', '--json');
  const text = succeeded(said, `${executable} does not say its version`);
  const { version, bundle_sha256: digest } = (parse(text) ?? {}) as Record<string, unknown>;
  if (typeof version !== 'string' || typeof digest !== 'string' || !isVersion(version))
    throw refused(`${executable} is no Purser: it does not say its version.`);
  return { version, bundle_sha256: digest };
}

/** Lets the staged version check the settings, and migrate and verify a copy of the books. Throws with its output. */
function tryOnCopy(runner: Runner, staged: string, to: string): void {
  const { runAsService, shell } = runner;
  const check = (executable: string) => runAsService(CHECK_MILLISECONDS, executable, 'config', 'check');
  const found = check(staged);
  // A fault that the installed version reports as well is known, and does not keep a better version out.
  if (found.status !== 0 && check(SERVICE.executable).stdout !== found.stdout)
    succeeded(found, `Nothing was changed: ${to} does not take the settings`);
  shell(`umask 077; rm -rf ${WORK}; mkdir ${WORK}`);
  try {
    tryBooks(runner, staged, to);
  } catch (error) {
    shell(`rm -rf ${WORK}`); // On a full disk the service needs the room.
    throw error;
  }
  shell(`rm -rf ${WORK}/trial`);
}

/** Makes a backup, and lets the staged version migrate and verify a copy of it. */
function tryBooks({ data, run, runAsService }: Runner, staged: string, to: string): void {
  const trial = join(data, WORK, 'trial');
  const unchanged = (what: string) => `Nothing was changed: ${what}`;
  const backUp = runAsService(BOOKS_MILLISECONDS, SERVICE.executable, '--data', data, 'backup', backupIn(data));
  succeeded(backUp, unchanged('the backup failed'));
  const on = ['--data', trial];
  const restored = run(BOOKS_MILLISECONDS, staged, ...on, 'restore', backupIn(data), '--without-key', '--yes');
  succeeded(restored, unchanged(`${to} does not migrate a copy of the books`));
  const verified = run(BOOKS_MILLISECONDS, staged, ...on, 'ledger', 'verify');
  succeeded(verified, unchanged(`${to} does not verify a copy of the books`));
}

/** Returns what keeps the books of the stopped service as they were, and puts them back. */
export function keptBooks(runner: Runner) {
  const { data, run, runAsService, shell } = runner;
  return {
    /** Copies the books of the stopped service, to the byte. */
    keepBooks: () =>
      void shell(`umask 077; rm -rf ${WORK}/books ${WORK}/books.part; mkdir ${WORK}/books.part
      for it; do if [ -e "$it" ]; then cp --preserve --reflink=auto "$it" ${WORK}/books.part/; fi; done
      sync; mv ${WORK}/books.part ${WORK}/books`),
    /** Puts them back, which needs no room on the disk. Without a copy the books were not touched. */
    putBooksBack: () => void shell(`if [ -d ${WORK}/books ]; then mv ${WORK}/books ${WORK}/return; fi; ${MOVE_BACK}`),
    /** Ends a return of the books that was interrupted, or undoes it. */
    finishReturn: () => void shell(FINISH_MOVE),
    /** Removes them after an upgrade, also where their copying was interrupted. */
    dropBooks: () => void shell(`rm -rf ${WORK}/books ${WORK}/books.part`),
    /** Returns what the books have that the kept ones lack: entries, commits that moved no money (as revoked keys), or nothing. */
    changeSince(): 'entries' | 'quiet' | 'none' {
      if (run(CHECK_MILLISECONDS, 'test', '-d', `${WORK}/books`).status !== 0) return 'none'; // They were not touched.
      const kept = newestIn(runner, join(data, WORK, 'books'));
      const now = newestIn(runner, data);
      if (!kept || !now) return 'entries'; // It is not known that there are none.
      // The files beside the books may lag behind them, as on a full disk.
      const inBooks = headOf(runner) ?? now;
      if ([now, inBooks].some((it) => it.seq !== kept.seq || it.hash !== kept.hash)) return 'entries';
      return kept.quiet === now.quiet ? 'none' : 'quiet';
    },
    /** Returns whether an executable can read the books as they are. */
    canRead(executable: string): boolean {
      try {
        return runAsService(BOOKS_MILLISECONDS, executable, '--data', data, 'ledger', 'verify').status === 0;
      } catch {
        return false; // It did not end in time: not known to be readable.
      }
    },
  };
}

/** Returns the newest commit that a directory's files know; undefined where they know none. */
const newestIn = ({ run }: Runner, directory: string) =>
  run(CHECK_MILLISECONDS, 'sh', '-c', 'cat "$1"/ledger.head "$1"/ledger.tip', 'sh', directory)
    .stdout.split('\n')
    .flatMap((line) => {
      const [, seq, hash, quiet] = /^(\d+) ([0-9a-f]{64}) \d+(?: (\d+))?(?: #|$)/.exec(line.trim()) ?? [];
      return seq === undefined ? [] : [{ seq: Number(seq), hash, quiet: Number(quiet ?? 0) }];
    })
    .sort((a, b) => b.seq - a.seq || b.quiet - a.quiet)[0];

/** Returns the newest entry of the books themselves; undefined where the present executable cannot read them. */
function headOf({ data, runAsService }: Runner): { seq: number; hash: string } | undefined {
  const said = runAsService(CHECK_MILLISECONDS, SERVICE.executable, '--data', data, '--json', 'ledger', 'head');
  const { seq, hash: entry } = (parse(said.stdout) ?? {}) as { seq?: unknown; hash?: unknown };
  return said.status === 0 && typeof seq === 'number' && typeof entry === 'string' ? { seq, hash: entry } : undefined;
}

/** Returns why the service is not ready, by its executable; undefined if it is. */
function faultOf({ data, runAsService }: Runner): string | undefined {
  const said = runAsService(CHECK_MILLISECONDS, SERVICE.executable, '--data', data, '--json', 'status');
  const it = (parse(said.stdout) ?? {}) as { ready?: unknown; uptime_seconds?: unknown; reason?: unknown };
  if (said.status === 0 && it.ready === true && it.uptime_seconds !== null) return undefined;
  return typeof it.reason === 'string' && it.uptime_seconds !== null ? it.reason : NO_ANSWER;
}

/** Starts the service, if it was active. Returns a sentence unless it is ready, or as it was before, within two minutes. */
async function start(runner: Runner, { wasActive, fault }: EarlierService): Promise<string | undefined> {
  if (!wasActive) return undefined;
  const { status, stderr } = runProgram('systemctl', 'start', SERVICE.unit);
  if (status !== 0) return `It does not start: ${stderr} ${lastWords()}`;
  const deadline = performance.now() + READY_MILLISECONDS;
  let reason: string | undefined;
  let hasEnded = false;
  while (!hasEnded && performance.now() < deadline) {
    reason = faultOf(runner);
    if (reason === undefined || (reason === fault && reason !== NO_ANSWER)) return undefined;
    hasEnded = runProgram('systemctl', 'is-failed', SERVICE.unit).status === 0;
    await sleep(TRY_MILLISECONDS);
  }
  const how = hasEnded ? 'It ended soon' : `It is not ready within ${READY_MILLISECONDS / 1000} s: ${reason}`;
  return `${how}. ${lastWords()}`;
}

function lastWords(): string {
  runProgram('journalctl', '--sync'); // The journal lists systemd's lines on a service before the service's own.
  const last = ['--unit', SERVICE.unit, '--lines', '5', '--output', 'cat', '--no-pager'];
  return `Its last words: ${runProgram('journalctl', ...last).stdout}`;
}

function parse(text: string): unknown {
  try {
    return parseJson(text);
  } catch {
    return undefined;
  }
}
