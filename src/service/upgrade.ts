import { hash } from 'node:crypto';
import { existsSync, readFileSync, rmSync, statSync } from 'node:fs';
import { basename, join } from 'node:path';
import { parseJson } from '../base/parse-json.ts';
import { Refusal } from '../base/refusal.ts';
import { readConfig } from '../config/config.ts';
import { takeLock } from '../db/lock.ts';
import { files } from '../files/data-directory.ts';
import {
  isInstalled,
  isPackaged,
  refuseElsewhere,
  refuseOthersSettings,
  STOP_MILLISECONDS,
  UPGRADE_STATE,
} from './install.ts';
import { findInstalled } from './installed.ts';
import { mustRun, mustRunWithin, type Ran, runProgram, runWithin } from './program.ts';
import { isForOther, isOlder, isVersion, readRelease } from './release-file.ts';
import { makeRootsDirectory, putFile } from './roots-own.ts';
import { SERVICE } from './unit.ts';

const DIRECTORY = SERVICE.upgrades;
const [STAGED, FORMER] = ['new', 'former'].map((it) => join(DIRECTORY, it)) as [string, string];
/** What the service's user keeps, below the data directory: a backup, the books as they were, and a copy to try. */
const WORK = 'upgrade';
/** Books of ten million entries are copied and verified in a few minutes. */
const BOOKS_MILLISECONDS = 30 * 60_000;
const CHECK_MILLISECONDS = 60_000;
const READY_MILLISECONDS = 120_000;
const TRY_MILLISECONDS = 1000;
const SIGNALS = ['SIGHUP', 'SIGINT', 'SIGTERM'] as const;
const NO_ANSWER = 'it does not answer';

/**
 * The database first, whose log then fits it. A kill leaves the rest to the next run: files move, so what was written after the move is
 * never replaced.
 */
const MOVE_BACK = `[ -d ${WORK}/return ] || exit 0
if [ -e ${WORK}/return/purser.db ]; then rm -f purser.db-wal purser.db-shm; fi
for it; do if [ -e "${WORK}/return/$it" ]; then mv -f "${WORK}/return/$it" .; fi; done
sync; rmdir ${WORK}/return`;

type UpgradeOrder = { file: string; insecure: boolean };
export type Upgraded = { from: string; to: string; done: string[] };

/**
 * An upgrade that has begun to change the machine, on disk until it has ended: whoever finds it knows that its process did not live
 * to the end. `back`: the books may have been put back in part.
 */
type State = {
  step: 'swap' | 'back';
  from: string;
  to: string;
  /** The SHA-256 of the former and of the new executable. */
  former: string;
  fresh: string;
  wasActive: boolean;
  /** Why the service was not ready before; the new version need not do better. */
  fault?: string | undefined;
};

const refused = (why: string) => new Refusal('conflict', why);

/**
 * Replaces the executable of the service by `file`, a release's, and goes back by itself where that fails. Verifies the file by the
 * SHA256SUMS beside it and their signature; with `insecure` by the sums alone. Tries the new version on a copy of the books before
 * anything changes. Throws `conflict` with the reason and the state that it leaves.
 */
export async function upgrade({ file, insecure }: UpgradeOrder): Promise<Upgraded> {
  refuseElsewhere();
  if (!isInstalled())
    throw refused(
      isPackaged()
        ? 'A package installed the service. Run: apt-get install ./purser_VERSION_ARCHITECTURE.deb'
        : 'There is no service here that `purser install` made. Run: purser install',
    );
  makeRootsDirectory(DIRECTORY);
  const lock = await takeLock(files(DIRECTORY).lock, 'purser upgrade');
  // The service is stopped for a while: a lost terminal or an impatient Ctrl-C must not leave it so. The programs that run meanwhile
  // may be ended by them, and what fails so is taken back.
  const stay = () => {};
  for (const it of SIGNALS) process.on(it, stay);
  try {
    const service = openService();
    const done: string[] = [];
    const earlier = existsSync(UPGRADE_STATE) ? (parseJson(readFileSync(UPGRADE_STATE, 'utf8')) as State) : undefined;
    if (earlier) await endEarlier(service, earlier, done);
    const bytes = readRelease(file, insecure ? undefined : trustedKeys(service), done);
    putFile(STAGED, bytes, { mode: 0o755 });
    try {
      return await replaceBy(service, bytes, done);
    } finally {
      rmSync(STAGED, { force: true });
    }
  } finally {
    for (const it of SIGNALS) process.off(it, stay);
    lock.release();
  }
}

async function replaceBy(service: Service, bytes: Buffer, done: string[]): Promise<Upgraded> {
  const former = readFileSync(SERVICE.executable);
  // Tried, it would be taken for a script of the shell.
  if (isForOther(bytes, former)) throw refused('The file is for another processor. Nothing was changed.');
  const [is, will] = [service.versionOf(SERVICE.executable), service.versionOf(STAGED)];
  const [from, to] = [is.version, will.version];
  if (is.bundle_sha256 === will.bundle_sha256 && from === to) {
    done.push(`${from} is installed already.`);
    return { from, to, done };
  }
  if (isOlder(to, from)) throw refused(`${to} is older than ${from}, which is installed. Nothing was changed.`);
  if (from === to) done.push(`It is another build of ${from}.`);
  service.tryOnCopy(to);
  done.push(`${to} takes the settings, and the books: a copy was migrated and verified.`);

  putFile(FORMER, former, { mode: 0o755 });
  // One that ends and is started again and again, which an upgrade may cure, is active too: only a stopped one stays so.
  const wasActive = mustRun('systemctl', 'show', SERVICE.unit, '--property=ActiveState', '--value') !== 'inactive';
  const fault = wasActive ? service.faultOf() : undefined;
  const state: State = {
    ...{ step: 'swap', from, to, wasActive, fault },
    ...{ former: hash('sha256', former), fresh: hash('sha256', bytes) },
  };
  note(state);
  await swap(service, state, bytes);
  rmSync(UPGRADE_STATE);
  service.dropBooks();
  done.push(
    wasActive ? `${to} serves.` : `${to} is installed. The service was not running, and was not started.`,
    `The former executable is ${FORMER}; a backup of before is ${service.backup}. \`purser install\` writes the unit of ${to}.`,
  );
  return { from, to, done };
}

/** Starts the service with the new executable, or goes back. */
async function swap(service: Service, state: State, bytes: Buffer): Promise<void> {
  let why: string | undefined;
  try {
    stop();
    service.keepBooks();
    putFile(SERVICE.executable, bytes, { mode: 0o755 });
    why = await service.start(state);
  } catch (error) {
    why = (error as Error).message;
  }
  if (why !== undefined) await goBack(service, state, why);
}

const note = (state: State) => putFile(UPGRADE_STATE, `${JSON.stringify(state)}\n`, { mode: 0o600 });
const stop = () => mustRunWithin(STOP_MILLISECONDS, 'systemctl', 'stop', SERVICE.unit);

/** Finishes an upgrade whose process was ended, or goes back. Throws in that case, with the state that it leaves. */
async function endEarlier(service: Service, state: State, done: string[]): Promise<void> {
  const { step, from, to, wasActive } = state;
  const present = hash('sha256', readFileSync(SERVICE.executable));
  const ended = `An earlier upgrade from ${from} to ${to} was ended`;
  if (step === 'swap' && present === state.former) {
    if (wasActive) mustRun('systemctl', 'start', SERVICE.unit);
    done.push(`${ended} before it changed anything.`);
  } else if (step === 'swap' && present === state.fresh) {
    const fault = await service.start(state);
    if (fault !== undefined) await goBack(service, state, `${ended} while it waited. ${fault}`);
    done.push(`${ended} near its end. ${to} ${wasActive ? 'serves' : 'is installed'}.`);
  } else if (step === 'back') await goBack(service, state, `${ended} on its way back`);
  else throw refused(`${ended}, and ${SERVICE.executable} is neither. If it is the right one: rm ${UPGRADE_STATE}`);
  rmSync(UPGRADE_STATE);
}

/** Goes back, and always throws: with the reason, and with what serves now. */
async function goBack(service: Service, state: State, reason: string): Promise<never> {
  const why = reason.replace(/\.$/, '');
  let ended: string;
  try {
    ended = await wentBack(service, state, why);
  } catch (error) {
    throw refused(
      `${state.to} was not installed: ${why}. The way back failed too: ${(error as Error).message.replace(/\.$/, '')}. ${SERVICE.unit} may be stopped. When this is mended, run \`purser upgrade\` again: it goes on from here. The former executable is ${FORMER}; a backup of before is ${service.backup}.`,
    );
  }
  rmSync(UPGRADE_STATE);
  throw refused(ended);
}

/**
 * Puts the former executable back. The books stay where they have changed and it can read them; else they become what they were,
 * unless that lost an entry: then the new version stays. Returns what serves now.
 */
async function wentBack(service: Service, state: State, why: string): Promise<string> {
  const { from, to, wasActive } = state;
  stop();
  service.finishReturn();
  // Asked of the books each time: the service may have run since an earlier attempt, as after a reboot.
  const change = service.changeSince();
  const keeps = change !== 'none' && service.canRead(FORMER);
  if (change === 'entries' && !keeps) {
    const fault = await service.start(state);
    return `${to} is installed, and is not well: ${why}. It has booked entries, which ${from} cannot read, so the books stay with it. ${fault ?? 'It serves now.'} The books of before are in ${service.backup}.`;
  }
  note({ ...state, step: 'back' });
  putFile(SERVICE.executable, readFileSync(FORMER), { mode: 0o755 });
  if (!keeps) service.putBooksBack();
  const fault = await service.start(state);
  const failed = `${to} was not installed: ${why}.`;
  const books = keeps ? 'with what has changed meanwhile' : 'on the books as they were';
  const lost =
    change === 'quiet' && !keeps
      ? ' What has changed meanwhile and moved no money is lost, such as a revoked key: look at it, and do it again.'
      : '';
  return fault !== undefined
    ? `${failed} ${from} is back ${books}, but is not well either: ${fault} A backup is ${service.backup}.${lost}`
    : `${failed} ${from} ${wasActive ? 'serves again' : 'is back'}, ${books}.${lost}`;
}

/** Returns the public keys that the settings trust. Throws `conflict` where there are none, or others than root can change them. */
function trustedKeys({ data, settings, environment }: Service): readonly string[] {
  refuseOthersSettings(settings);
  const { trusted_keys: keys } = readConfig({ data, config: settings, withoutKey: true }, environment).upgrade;
  if (keys.length) return keys;
  throw refused(
    `The settings trust no key. Write that of the releases into ${settings}: upgrade: { trusted_keys: ["ssh-ed25519 …"] }.`,
  );
}

/** The service, and what is done as its user: root reads and writes nothing in a directory of another user. */
type Service = ReturnType<typeof openService>;

function openService() {
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
  const backup = join(data, WORK, 'backup.db');
  const trial = join(data, WORK, 'trial');
  const { database, head, tip, clock } = files(data);
  // Without the index of the log (-shm), which SQLite makes anew.
  const books = [database, `${database}-wal`, head, tip, clock].map((it) => basename(it));

  /** Runs a program on no settings. */
  const run = (milliseconds: number, program: string, ...args: string[]): Ran =>
    runWithin(milliseconds, { ...as, env }, program, ...args);
  /** Runs a program on the settings of the service. */
  const runAsService = (milliseconds: number, program: string, ...args: string[]): Ran =>
    runWithin(milliseconds, { ...as, env: { ...env, ...environment, PURSER_DATA: data } }, program, ...args);
  /** Throws with what a program said, unless it succeeded. */
  const succeeded = ({ status, stdout, stderr }: Ran, what: string): string => {
    if (status !== 0) throw refused(`${what}: ${stderr || stdout || `exit code ${status}`}`);
    return stdout;
  };
  const shell = (script: string) =>
    succeeded(run(BOOKS_MILLISECONDS, 'sh', '-euc', script, 'sh', ...books), 'The books could not be copied');
  /** Returns the newest commit that a directory's files know; undefined where they know none. */
  const newestIn = (directory: string) =>
    run(CHECK_MILLISECONDS, 'sh', '-c', 'cat "$1"/ledger.head "$1"/ledger.tip', 'sh', directory)
      .stdout.split('\n')
      .flatMap((line) => {
        const [, seq, hash, quiet] = /^(\d+) ([0-9a-f]{64}) \d+(?: (\d+))?(?: #|$)/.exec(line.trim()) ?? [];
        return seq === undefined ? [] : [{ seq: Number(seq), hash, quiet: Number(quiet ?? 0) }];
      })
      .sort((a, b) => b.seq - a.seq || b.quiet - a.quiet)[0];

  /** Returns the newest entry of the books themselves; undefined where the present executable cannot read them. */
  function headOf(): { seq: number; hash: string } | undefined {
    const said = runAsService(CHECK_MILLISECONDS, SERVICE.executable, '--data', data, '--json', 'ledger', 'head');
    const { seq, hash: entry } = (parse(said.stdout) ?? {}) as { seq?: unknown; hash?: unknown };
    return said.status === 0 && typeof seq === 'number' && typeof entry === 'string' ? { seq, hash: entry } : undefined;
  }

  /** Returns why the service is not ready, as its executable says; undefined if it is. */
  function faultOf(): string | undefined {
    const said = runAsService(CHECK_MILLISECONDS, SERVICE.executable, '--data', data, '--json', 'status');
    const it = (parse(said.stdout) ?? {}) as { ready?: unknown; uptime_seconds?: unknown; reason?: unknown };
    if (said.status === 0 && it.ready === true && it.uptime_seconds !== null) return undefined;
    return typeof it.reason === 'string' && it.uptime_seconds !== null ? it.reason : NO_ANSWER;
  }

  /** Makes a backup, and lets the staged version migrate and verify a copy of it. */
  function tryBooks(to: string): void {
    const unchanged = (what: string) => `Nothing was changed: ${what}`;
    const backUp = runAsService(BOOKS_MILLISECONDS, SERVICE.executable, '--data', data, 'backup', backup);
    succeeded(backUp, unchanged('the backup failed'));
    const on = ['--data', trial];
    const restored = run(BOOKS_MILLISECONDS, STAGED, ...on, 'restore', backup, '--without-key', '--yes');
    succeeded(restored, unchanged(`${to} does not migrate a copy of the books`));
    const verified = run(BOOKS_MILLISECONDS, STAGED, ...on, 'ledger', 'verify');
    succeeded(verified, unchanged(`${to} does not verify a copy of the books`));
  }

  return {
    ...{ data, environment, settings: environment.PURSER_CONFIG ?? SERVICE.settings },
    backup,
    /** Returns the version and the digest of an executable. Throws where it says neither. */
    versionOf(executable: string): { version: string; bundle_sha256: string } {
      const said = run(CHECK_MILLISECONDS, executable, 'version', '--json');
      const text = succeeded(said, `${executable} does not say its version`);
      const { version, bundle_sha256: digest } = (parse(text) ?? {}) as Record<string, unknown>;
      if (typeof version !== 'string' || typeof digest !== 'string' || !isVersion(version))
        throw refused(`${executable} is no Purser: it does not say its version.`);
      return { version, bundle_sha256: digest };
    },

    /** Lets the staged version check the settings, and migrate and verify a copy of the books. Throws with what it says. */
    tryOnCopy(to: string): void {
      const check = (executable: string) => runAsService(CHECK_MILLISECONDS, executable, 'config', 'check');
      const found = check(STAGED);
      // What the installed version says as well is known, and keeps nobody from a better version.
      if (found.status !== 0 && check(SERVICE.executable).stdout !== found.stdout)
        succeeded(found, `Nothing was changed: ${to} does not take the settings`);
      shell(`umask 077; rm -rf ${WORK}; mkdir ${WORK}`);
      try {
        tryBooks(to);
      } catch (error) {
        shell(`rm -rf ${WORK}`); // On a full disk the service needs the room.
        throw error;
      }
      shell(`rm -rf ${WORK}/trial`);
    },

    /** Copies the books of the stopped service, to the byte. */
    keepBooks: () =>
      void shell(`umask 077; rm -rf ${WORK}/books ${WORK}/books.part; mkdir ${WORK}/books.part
      for it; do if [ -e "$it" ]; then cp --preserve --reflink=auto "$it" ${WORK}/books.part/; fi; done
      sync; mv ${WORK}/books.part ${WORK}/books`),
    /** Puts them back, which needs no room on the disk. Without a copy the books were not touched. */
    putBooksBack: () => void shell(`if [ -d ${WORK}/books ]; then mv ${WORK}/books ${WORK}/return; fi; ${MOVE_BACK}`),
    /** Ends a return of the books that has begun. */
    finishReturn: () => void shell(MOVE_BACK),
    /** Removes them after an upgrade. */
    dropBooks: () => void shell(`rm -rf ${WORK}/books`),
    /** Returns what the books have that the kept ones lack: entries, commits that moved no money (as revoked keys), or nothing. */
    changeSince(): 'entries' | 'quiet' | 'none' {
      if (run(CHECK_MILLISECONDS, 'test', '-d', `${WORK}/books`).status !== 0) return 'none'; // They were not touched.
      const kept = newestIn(join(data, WORK, 'books'));
      const now = newestIn(data);
      if (!kept || !now) return 'entries'; // It is not known that there are none.
      // The files beside the books may lag behind them, as on a full disk.
      const inBooks = headOf() ?? now;
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

    faultOf,
    /** Starts the service, if it was active. Returns a sentence unless it is ready, or as it was before, within two minutes. */
    async start({ wasActive, fault }: State): Promise<string | undefined> {
      if (!wasActive) return undefined;
      const { status, stderr } = runProgram('systemctl', 'start', SERVICE.unit);
      if (status !== 0) return `It does not start: ${stderr}`;
      const deadline = performance.now() + READY_MILLISECONDS;
      let reason: string | undefined;
      let hasEnded = false;
      while (!hasEnded && performance.now() < deadline) {
        reason = faultOf();
        if (reason === undefined || (reason === fault && reason !== NO_ANSWER)) return undefined;
        hasEnded = runProgram('systemctl', 'is-failed', SERVICE.unit).status === 0;
        await new Promise((resolve) => setTimeout(resolve, TRY_MILLISECONDS));
      }
      const last = runProgram(
        'journalctl',
        '--unit',
        SERVICE.unit,
        '--lines',
        '3',
        '--output',
        'cat',
        '--no-pager',
      ).stdout;
      const how = hasEnded ? 'It ended soon' : `It is not ready within ${READY_MILLISECONDS / 1000} s: ${reason}`;
      return `${how}. Its last words: ${last}`;
    },
  };
}

function parse(text: string): unknown {
  try {
    return parseJson(text);
  } catch {
    return undefined;
  }
}
