import { existsSync, lstatSync, readFileSync, realpathSync, rmSync, statSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { Refusal } from '../base/refusal.ts';
import { readConfig } from '../config/config.ts';
import { variablesIn } from './installed.ts';
import { mustRun, mustRunWithin, runProgram } from './program.ts';
import { makeUsersDirectory, putFile, refuseOthersDirectory } from './roots-own.ts';
import { SERVICE, unitText } from './unit.ts';

const UNIT = `/etc/systemd/system/${SERVICE.unit}`;
/** The drop-in for what the settings ask of the sandbox. An administrator's own drop-ins stay beside it. */
const DROP_IN = `${UNIT}.d/backups.conf`;
const OF_PACKAGE = [`/lib/systemd/system/${SERVICE.unit}`, `/usr/lib/systemd/system/${SERVICE.unit}`];
/** The completions, in the places where bash, zsh and fish look for those of an administrator. */
const COMPLETIONS = {
  bash: '/usr/local/share/bash-completion/completions/purser',
  zsh: '/usr/local/share/zsh/site-functions/_purser',
  fish: '/usr/local/share/fish/vendor_completions.d/purser.fish',
};
type Shell = keyof typeof COMPLETIONS;

/** Returns whether dpkg has settings of a package that was removed and not purged; false where there is no dpkg. */
const hasRemainsOfPackage = (): boolean =>
  /^Status: .* config-files$/m.test(runProgram('dpkg-query', '--status', 'purser').stdout);

/** `drain_seconds` of the unit, TimeoutStopSec, and a moment more. */
export const STOP_MILLISECONDS = 360_000;

type InstallOrder = {
  executable: string;
  /** Makes the text of the first settings, where there are none. */
  settings: () => Promise<string>;
  completion: (shell: Shell) => string;
};

/** Refuses unless root runs this on a machine with systemd. */
export function refuseElsewhere(): void {
  if (process.getuid?.() !== 0)
    throw new Refusal('conflict', 'This changes the machine: users, units and files of root. Run it as root.');
  if (runProgram('systemctl', '--version').status !== 0)
    throw new Refusal('conflict', 'There is no systemd on this machine. In a container run `purser serve` instead.');
}

/** An upgrade that has begun to change the machine, and has not ended. */
export const UPGRADE_STATE = join(SERVICE.upgrades, 'upgrade.json');

/** Refuses where the books may be on their way, and a start would book into what is replaced. */
function refuseDuringUpgrade(): void {
  if (existsSync(UPGRADE_STATE))
    throw new Refusal(
      'conflict',
      'An upgrade is under way, or was ended half-way. Wait for it, or let it go on: purser upgrade FILE',
    );
}

export const isPackaged = () => OF_PACKAGE.some((it) => existsSync(it));

/**
 * Installs the service: user, directories, executable, unit, completion and first settings, and starts it. What is there already
 * stays. Returns what was done, in sentences. Throws `conflict` where something of another stands in the way.
 */
export async function install({ executable, settings, completion }: InstallOrder): Promise<string[]> {
  refuseElsewhere();
  refuseDuringUpgrade();
  const done: string[] = [];
  if (isPackaged()) {
    if (!existsSync(SERVICE.settings))
      throw new Refusal(
        'conflict',
        `${SERVICE.settings} is missing. dpkg brings it back only when told to: apt-get install --reinstall -o Dpkg::Options::=--force-confmiss purser`,
      );
    refuseOthersSettings();
    const { changed } = allowBackups(idsOf(SERVICE.user).uid, done);
    start(changed, done);
    return done;
  }
  refuseAnothers();
  installExecutable(executable, done);
  const ids = makeUser(done);
  if (makeUsersDirectory(SERVICE.data, ids)) done.push(`Made ${SERVICE.data}, for the books and the master key.`);
  await writeSettings(settings, ids.gid, done);
  const unit = putFile(UNIT, unitText(SERVICE.executable), { mode: 0o644 });
  if (unit) done.push(`Wrote ${UNIT}.`);
  const { changed } = allowBackups(ids.uid, done);
  for (const shell of Object.keys(COMPLETIONS) as Shell[])
    if (putFile(COMPLETIONS[shell], completion(shell), { mode: 0o644 })) done.push(`Wrote ${COMPLETIONS[shell]}.`);
  start(unit || changed, done);
  return done;
}

/** Returns whether there is the unit that `install` writes, in whatever version. */
export const isInstalled = () =>
  existsSync(UNIT) &&
  [unitText(SERVICE.executable).split('\n')[0] as string, `ExecStart=${SERVICE.executable} serve`].every((it) =>
    readFileSync(UNIT, 'utf8').split('\n').includes(it),
  );

/** Returns whether an administrator has their own unit: a file, as a link is replaced. */
const isAnothersUnit = () => lstatSync(UNIT, { throwIfNoEntry: false })?.isFile() === true && !isInstalled();

/** Refuses where an administrator has their own unit, or a removed package has a claim to the settings. */
function refuseAnothers(): void {
  if (isAnothersUnit())
    throw new Refusal(
      'conflict',
      `${UNIT} is not what this command writes, and may name other books or another key. Run: mv ${UNIT} ${UNIT}.former, then this again, and put its own lines into a drop-in: systemctl edit purser`,
    );
  if (hasRemainsOfPackage())
    throw new Refusal(
      'conflict',
      `A package was removed and not purged, and purging it would take the settings from the service. If there is a ${SERVICE.settings} to keep, move it away. Then run: apt-get purge purser, and move it back.`,
    );
}

function installExecutable(executable: string, done: string[]): void {
  const bytes = readFileSync(executable);
  const there = lstatSync(SERVICE.executable, { throwIfNoEntry: false });
  if (there && !readFileSync(SERVICE.executable).equals(bytes))
    throw new Refusal(
      'conflict',
      `${SERVICE.executable} is another build. To replace it: purser upgrade ${executable}`,
    );
  if (putFile(SERVICE.executable, bytes, { mode: 0o755 })) done.push(`Wrote ${SERVICE.executable}.`);
}

function makeUser(done: string[]): { uid: number; gid: number } {
  if (runProgram('id', '-u', SERVICE.user).status !== 0) {
    const shell = '/usr/sbin/nologin';
    mustRun(
      'useradd',
      ...['--system', '--user-group', '--no-create-home', '--home-dir', SERVICE.data, '--shell', shell, SERVICE.user],
    );
    done.push(`Made the user ${SERVICE.user}.`);
  }
  const ids = idsOf(SERVICE.user);
  const shell = mustRun('getent', 'passwd', SERVICE.user).split(':').at(-1) as string;
  if (!/\/(nologin|false)$/.test(shell))
    throw new Refusal(
      'conflict',
      `The user ${SERVICE.user} can log in (${shell}), and whoever does reads the books and the master key. If it is the service's alone, run: usermod --shell /usr/sbin/nologin ${SERVICE.user}`,
    );
  if (ids.uid === 0) throw new Refusal('conflict', `The user ${SERVICE.user} is root.`);
  return ids;
}

const idsOf = (user: string) => ({ uid: Number(mustRun('id', '-u', user)), gid: Number(mustRun('id', '-g', user)) });

/** Writes the first settings, which the service may read and not change. Settings that are there stay as they are. */
async function writeSettings(text: () => Promise<string>, gid: number, done: string[]): Promise<void> {
  const former = join(SERVICE.data, 'purser.yaml');
  if (existsSync(SERVICE.settings)) {
    refuseOthersSettings();
    done.push(`Kept ${SERVICE.settings}.`);
  } else if (existsSync(former))
    throw new Refusal(
      'conflict',
      `The service reads ${SERVICE.settings}, and there are settings in ${former}. Run: install -D -o root -g ${SERVICE.user} -m 640 ${former} ${SERVICE.settings} && rm ${former}`,
    );
  else {
    const isOurs = putFile(SERVICE.settings, await text(), { mode: 0o640, gid, keep: true });
    if (!isOurs)
      throw new Refusal(
        'conflict',
        `${SERVICE.settings} was made meanwhile, or is a link that leads nowhere. Look at it, and run this again.`,
      );
    done.push(`Wrote ${SERVICE.settings}.`);
  }
}

/** Refuses settings that another user than root can change: they name what root makes, and whom it trusts. */
export function refuseOthersSettings(settings: string = SERVICE.settings): void {
  if (!existsSync(settings)) throw new Refusal('not_found', `There are no settings ${settings}.`);
  for (const directory of new Set([dirname(realpathSync(settings)), dirname(settings)])) {
    refuseOthersDirectory(directory);
    const { gid, mode } = statSync(directory);
    if (gid !== 0 && mode & 0o020)
      throw new Refusal(
        'conflict',
        `${directory} can be written by its group ${gid}, who could put other settings there. Run: chmod g-w ${directory}`,
      );
  }
  const { uid, mode } = statSync(settings);
  if (uid !== 0 || mode & 0o022)
    throw new Refusal(
      'conflict',
      `${settings} can be changed by others than root. Look through it, then run: chown root:${SERVICE.user} ${settings} && chmod 640 ${settings}`,
    );
}

/** Lets the service write the directory that its settings name for backups, as its sandbox lets it write no other. */
function allowBackups(uid: number, done: string[]): { changed: boolean } {
  const directory = backupDirectory();
  if (directory === undefined) {
    if (!existsSync(DROP_IN)) return { changed: false };
    rmSync(DROP_IN);
    done.push(`Removed ${DROP_IN}: the settings name no directory for backups.`);
    return { changed: true };
  }
  if (/["'\\\p{Cc}]/u.test(directory))
    throw new Refusal('conflict', `backup.directory: systemd takes no quotes and no backslash in a path: ${directory}`);
  // Never made here: a missing one may be a disk that is not mounted.
  const there = statSync(directory, { throwIfNoEntry: false });
  if (!there)
    done.push(`${directory}, where backups go, is missing: mount it, or install -d -o ${SERVICE.user} ${directory}`);
  else if (there.uid !== uid)
    done.push(`${directory}, where backups go, is not the service's: chown ${SERVICE.user} ${directory}`);
  const text = `# Written by \`purser install\` for backup.directory of ${SERVICE.settings}.\n[Service]\nReadWritePaths="-${directory.replaceAll('%', '%%')}"\n`;
  const changed = putFile(DROP_IN, text, { mode: 0o644 });
  if (changed) done.push(`Wrote ${DROP_IN}: the service may write ${directory}.`);
  return { changed };
}

/** Returns the directory as the service reads it, with its variables. Throws ConfigurationFault, which shows no setting's text. */
function backupDirectory(): string | undefined {
  const { data, settings, variables } = SERVICE;
  return readConfig({ data, config: settings, withoutKey: true }, variablesIn(variables)).backup?.directory;
}

/** Returns whether systemd runs this machine, and not only lies in it, as in a machine that is being built. */
export const runsSystemd = (): boolean => existsSync('/run/systemd/system');

function start(hasChanged: boolean, done: string[]): void {
  if (!runsSystemd()) {
    mustRun('systemctl', 'enable', SERVICE.unit);
    done.push('Enabled the service. It starts with the machine.');
    return;
  }
  const wasActive = runProgram('systemctl', 'is-active', SERVICE.unit).status === 0;
  mustRun('systemctl', 'daemon-reload');
  mustRun('systemctl', 'enable', '--now', SERVICE.unit);
  if (!wasActive) done.push('Started the service. It also starts with the machine.');
  else if (hasChanged) done.push('The service runs with its former unit until: systemctl restart purser');
  else done.push('The service runs.');
}

/** Stops the service and removes what `install` made, but not the settings, the books, the key and the user. Returns a report. */
export function remove(): string[] {
  refuseElsewhere();
  refuseDuringUpgrade();
  if (isPackaged() && !isInstalled())
    throw new Refusal('conflict', 'A package installed the service. Run: apt-get remove purser');
  const done: string[] = [];
  if (isAnothersUnit())
    throw new Refusal(
      'conflict',
      `${UNIT} is not what \`purser install\` wrote. Remove it by hand, then run this again.`,
    );
  if (existsSync(UNIT)) {
    if (runsSystemd()) {
      mustRunWithin(STOP_MILLISECONDS, 'systemctl', 'disable', '--now', SERVICE.unit);
      done.push('Stopped the service.');
    } else mustRun('systemctl', 'disable', SERVICE.unit);
  }
  for (const file of [DROP_IN, UNIT, ...Object.values(COMPLETIONS), SERVICE.executable])
    if (lstatSync(file, { throwIfNoEntry: false })) {
      rmSync(file);
      done.push(`Removed ${file}.`);
    }
  if (existsSync(SERVICE.upgrades)) {
    rmSync(SERVICE.upgrades, { recursive: true });
    done.push(`Removed ${SERVICE.upgrades}.`);
  }
  if (runsSystemd()) mustRun('systemctl', 'daemon-reload');
  if (isPackaged()) done.push('There is a package beside it: systemctl enable --now purser starts its service.');
  done.push(
    `Kept ${SERVICE.settings}, ${SERVICE.data} with the books and the master key, and the user ${SERVICE.user}.`,
  );
  return done;
}
