import {
  chmodSync,
  closeSync,
  existsSync,
  fchmodSync,
  fchownSync,
  linkSync,
  lstatSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  realpathSync,
  renameSync,
  rmSync,
  statSync,
} from 'node:fs';
import { dirname } from 'node:path';
import { Refusal } from '../base/refusal.ts';
import { syncDirectory, writeFresh } from '../files/durable-file.ts';

/** Root's files for the service, in directories where only root can put something else in their place. */

/** Refuses a directory that another user than root can change, or one above it, by its own path and behind links. */
export function refuseOthersDirectory(directory: string): void {
  for (const start of [directory, realpathSync(directory)])
    for (let it = start; ; it = dirname(it)) {
      const { uid, mode } = statSync(it);
      if (uid !== 0 || mode & 0o002)
        throw new Refusal(
          'conflict',
          `${it} ${uid === 0 ? 'can be written by everybody' : `belongs to user ${uid}`}, who could put something else in place of what root writes in ${directory}. Run: chown root ${it} && chmod o-w ${it}`,
        );
      if (it === dirname(it)) break;
    }
}

/** Makes a directory, and those above it that are missing, for everybody to read. Refuses one that others can change. */
export function makeRootsDirectory(directory: string): void {
  if (!existsSync(directory)) {
    makeRootsDirectory(dirname(directory));
    mkdirSync(directory, { mode: 0o755 });
    chmodSync(directory, 0o755); // Whatever the umask.
  }
  refuseOthersDirectory(directory);
}

type WriteOptions = {
  mode: number;
  gid?: number;
  /** Leaves a file that is there as it is, also one that appears at the last moment. */
  keep?: boolean;
};

/**
 * Writes a file of root's, whole or not at all; a link there is replaced, not followed. Returns whether it has written it.
 * Throws `conflict` where its directory can be changed by others.
 */
export function putFile(
  path: string,
  content: string | Buffer,
  { mode, gid = 0, keep = false }: WriteOptions,
): boolean {
  makeRootsDirectory(dirname(path));
  const there = lstatSync(path, { throwIfNoEntry: false });
  if (there?.isDirectory()) throw new Refusal('conflict', `${path} is a directory.`);
  if (there && keep) return false;
  const isSame =
    there?.isFile() && (there.mode & 0o7777) === mode && there.uid === 0 && there.gid === gid
      ? readFileSync(path).equals(Buffer.from(content))
      : false;
  if (isSame) return false;
  const fresh = writeFresh(path, content, { mode, uid: 0, gid });
  if (!keep) renameSync(fresh, path);
  else if (!linked(fresh, path)) return false;
  syncDirectory(dirname(path));
  return true;
}

/** Gives a fresh file its name, unless another has that by now. */
function linked(fresh: string, path: string): boolean {
  try {
    linkSync(fresh, path);
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
    return false;
  } finally {
    rmSync(fresh, { force: true });
  }
}

/**
 * Makes a directory of the service's user, mode 0700, unless it exists; hands an empty one of root's, as of a new disk, over.
 * Returns whether it was made. Throws `conflict` for anything but a directory, and for another owner.
 */
export function makeUsersDirectory(directory: string, { uid, gid }: { uid: number; gid: number }): boolean {
  const there = statSync(directory, { throwIfNoEntry: false });
  if (there && !there.isDirectory()) throw new Refusal('conflict', `${directory} is not a directory.`);
  const isNew = there?.uid === 0 && readdirSync(directory).every((it) => it === 'lost+found');
  if (there && there.uid !== uid && !isNew)
    throw new Refusal(
      'conflict',
      `${directory} belongs to user ${there.uid}, not to the service's user (${uid}). Run: chown -R ${uid}:${gid} ${directory}`,
    );
  if (there && !isNew) return false;
  makeRootsDirectory(dirname(directory));
  if (!there) mkdirSync(directory, { mode: 0o700 });
  const handle = openSync(directory, 'r');
  try {
    fchmodSync(handle, 0o700);
    fchownSync(handle, uid, gid);
  } finally {
    closeSync(handle);
  }
  return true;
}
