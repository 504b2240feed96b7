import {
  accessSync,
  constants,
  existsSync,
  lstatSync,
  readdirSync,
  readFileSync,
  realpathSync,
  statSync,
} from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { secretsIn } from '../base/secret.ts';
import { warning } from '../compute/finding.ts';
import { listBackends } from '../compute/settings.ts';
import type { Config } from '../config/config.ts';
import { files, readOnlyDisk } from '../files/data-directory.ts';

/** The doctor's checks of file owners and modes. A check returns its finding, and throws an Error for a fault. */

/** Files that Purser makes in its data directory, for its owner alone. */
const OURS = /^(backup\.lock|purser\.(db|lock|sock)|ledger\.|master\.key|ssh_host_key|reserve)/;
const LISTED_COUNT_MAX = 3;

/** Checks that only the owner can open the data directory, and that no other user can replace it. */
export function judgeDirectory(directory: string): string {
  const mode = statSync(directory).mode & 0o777;
  if (mode & 0o077)
    throw new Error(`${directory} is open to other users (mode ${mode.toString(8)}). Run: chmod 700 ${directory}`);
  judgeParents(directory);
  return directory;
}

/** Returns whether its mount is read-only, whatever its mode: Kubernetes mounts settings and keys with mode 777 that way. */
function isReadOnly(directory: string): boolean {
  try {
    accessSync(directory, constants.W_OK);
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EROFS';
  }
  return false;
}

/** Checks every directory above a file or directory, and above the target of a symbolic link there. */
function judgeParents(path: string): void {
  for (const it of [resolve(path), realpathSync(path)])
    for (let above = dirname(it); above !== dirname(above); above = dirname(above)) {
      const { mode } = statSync(above);
      if (mode & 0o002 && !(mode & 0o1000) && !isReadOnly(above))
        throw new Error(
          `${above} can be written by everybody, who can put something else in place of ${path}. Run: chmod o-w ${above}`,
        );
    }
}

/** Checks that every file in the data directory belongs to its owner, and that the files that are written can be. */
export function judgeFiles(directory: string): string {
  const owner = statSync(directory).uid;
  const names = readdirSync(directory, { recursive: true, encoding: 'utf8' });
  // The server only reads its settings, so they may belong to another user.
  const written = names.filter((it) => it !== 'purser.yaml');
  const foreign = written.filter((it) => uidOf(join(directory, it), owner) !== owner);
  if (foreign.length)
    throw new Error(
      `${listed(foreign)}: not owned by user ${owner}, who owns ${directory}, so the server may be unable to read or write. Run: chown -R ${owner} ${directory}`,
    );
  const open = names.filter((it) => OURS.test(it) && modeOf(join(directory, it)) & 0o077);
  if (open.length)
    throw new Error(
      `${listed(open)}: can be read or changed by others if the directory is ever opened. Run: chmod go-rwx ${open.map((it) => join(directory, it)).join(' ')}`,
    );
  const at = files(directory);
  for (const file of [at.database, `${at.database}-wal`, `${at.database}-shm`, at.head, at.tip])
    if (existsSync(file) && !canWrite(file))
      throw readOnlyDisk(directory) ?? new Error(`${file} cannot be written. Run: chmod u+rw ${file}`);
  const { nlink } = statSync(at.database);
  if (nlink > 1)
    return warning(
      `${at.database} has ${nlink} names (hard links): the other one is not a copy, and changes with it. Find it with: find ${directory} -samefile ${at.database}. Make a real copy, and remove the link.`,
    );
  return `${written.length} files, all owned by user ${owner}`;
}

/**
 * Checks every file that holds a secret, inside or outside the data directory, and the configuration, which decides where secrets
 * go.
 */
export function judgeSecrets(config: Config): string {
  const holding = secretFiles(config).filter((it) => existsSync(it));
  for (const file of holding) {
    const { mode, uid, gid } = statSync(file);
    const self = process.getuid?.() ?? uid;
    if (uid !== self && uid !== 0)
      throw new Error(`${file} holds a secret and belongs to user ${uid}. Run: chown ${self} ${file}`);
    // How a service gets its file: /etc/purser/purser.yaml, owned by root:purser, mode 640.
    const isOurGroup = uid === 0 && self !== 0 && (process.getgroups?.() ?? []).includes(gid);
    if (mode & (isOurGroup ? 0o037 : 0o077))
      throw new Error(
        `${file} holds a secret and is open to others (mode ${(mode & 0o777).toString(8)}). Run: chmod 600 ${file}`,
      );
  }
  const { file } = config;
  if (file && statSync(file).mode & 0o022)
    throw new Error(
      `${file} can be changed by others, who could redirect our keys to a server of theirs. Run: chmod go-w ${file}`,
    );
  if (file) judgeParents(file);
  return holding.length ? `${holding.join(', ')}: closed to others` : 'no file holds one';
}

function secretFiles(config: Config): string[] {
  const backends = listBackends(config.compute).map(({ settings }) => settings);
  const hosts = backends.flatMap((it) => (it.backend === 'ssh' ? it.hosts : []));
  const engines = backends.flatMap((it) => (it.backend === 'container' ? [it] : []));
  const keys = [...hosts, ...engines].map((it) => it.identity_file).concat(engines.map((it) => it.tls?.key));
  const text = config.file ? readFileSync(config.file, 'utf8') : '';
  // The configuration holds no secret if it only refers to them (`${NAME}`).
  const isInFile = secretsIn(config).some((it) => it.reveal() !== '' && text.includes(it.reveal()));
  return [
    ...(config.masterKey.path ? [config.masterKey.path] : []),
    ...new Set(keys.filter((it) => it !== undefined)),
    ...(config.file && isInFile ? [config.file] : []),
  ];
}

const listed = (names: readonly string[]) =>
  names.slice(0, LISTED_COUNT_MAX).join(', ') +
  (names.length > LISTED_COUNT_MAX ? ` and ${names.length - LISTED_COUNT_MAX} more` : '');

// A file that has disappeared since it was listed (a log, a `.new`) is no fault.
const uidOf = (file: string, otherwise: number) => lstatSync(file, { throwIfNoEntry: false })?.uid ?? otherwise;
const modeOf = (file: string) => {
  const it = lstatSync(file, { throwIfNoEntry: false });
  return it && !it.isSymbolicLink() ? it.mode : 0;
};

/** Returns whether this user may read and write a file or a directory. */
export function canWrite(file: string): boolean {
  try {
    accessSync(file, constants.R_OK | constants.W_OK);
    return true;
  } catch {
    return false;
  }
}
