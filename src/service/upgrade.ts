import { hash } from 'node:crypto';
import { existsSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { parseJson } from '../base/parse-json.ts';
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
import { openService, refused, type Service } from './own-service.ts';
import { mustRun, mustRunWithin } from './program.ts';
import { isForOther, isOlder, readRelease } from './release-file.ts';
import { makeRootsDirectory, putFile } from './roots-own.ts';
import { SERVICE } from './unit.ts';

const DIRECTORY = SERVICE.upgrades;
const [STAGED, FORMER] = ['new', 'former'].map((it) => join(DIRECTORY, it)) as [string, string];
const SIGNALS = ['SIGHUP', 'SIGINT', 'SIGTERM'] as const;

type UpgradeOrder = { file: string; insecure: boolean };
type Upgraded = { from: string; to: string; done: string[] };

/**
 * An upgrade that has begun to change the machine, on disk until it has ended: a process that finds it knows that the upgrade died.
 * `back`: the books may have been put back in part.
 */
type UpgradeState = {
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
    const earlier = existsSync(UPGRADE_STATE)
      ? (parseJson(readFileSync(UPGRADE_STATE, 'utf8')) as UpgradeState)
      : undefined;
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
  service.tryOnCopy(STAGED, to);
  done.push(`${to} takes the settings, and the books: a copy was migrated and verified.`);

  putFile(FORMER, former, { mode: 0o755 });
  // One that ends and is started again and again, which an upgrade may cure, is active too: only a stopped one stays so.
  const wasActive = mustRun('systemctl', 'show', SERVICE.unit, '--property=ActiveState', '--value') !== 'inactive';
  const fault = wasActive ? service.faultOf() : undefined;
  const state: UpgradeState = {
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
async function swap(service: Service, state: UpgradeState, bytes: Buffer): Promise<void> {
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

const note = (state: UpgradeState) => putFile(UPGRADE_STATE, `${JSON.stringify(state)}\n`, { mode: 0o600 });
const stop = () => mustRunWithin(STOP_MILLISECONDS, 'systemctl', 'stop', SERVICE.unit);

/** Finishes an upgrade whose process was ended, or goes back. Throws in that case, with the state that it leaves. */
async function endEarlier(service: Service, state: UpgradeState, done: string[]): Promise<void> {
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
  service.dropBooks(); // This run may find nothing else to do, and then removes none.
  rmSync(UPGRADE_STATE);
}

/** Goes back, and always throws: with the reason, and with what serves now. */
async function goBack(service: Service, state: UpgradeState, reason: string): Promise<never> {
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
async function wentBack(service: Service, state: UpgradeState, why: string): Promise<string> {
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
