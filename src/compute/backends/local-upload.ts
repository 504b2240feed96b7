import { randomBytes } from 'node:crypto';
import { constants } from 'node:fs';
import { type FileHandle, lstat, mkdir, open, rename, rm } from 'node:fs/promises';
import { Refusal } from '../../refusal.ts';

/** What the tenant can cause by what lies in the way: his to mend. */
const IN_THE_WAY = new Set(['ENOTDIR', 'ELOOP', 'EACCES', 'EISDIR', 'ENAMETOOLONG', 'ENOTEMPTY', 'EEXIST']);
const FOLDER = constants.O_RDONLY | constants.O_DIRECTORY | constants.O_NOFOLLOW;
const FRESH = constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL | constants.O_NOFOLLOW;

/**
 * Writes a file below `home`, whole or not at all: `/work/x` lands in `home/work/x`. Every folder on the way is opened
 * from the one before it and never by way of a link, so that nothing in the lease leads the file out of it.
 */
export async function receive(home: string, path: string, content: Buffer): Promise<void> {
  const inside = path.startsWith(`${home}/`) ? path.slice(home.length) : path; // As `pwd` says it in there.
  const names = inside.split('/').filter(Boolean);
  const name = names.pop() as string;
  let folder: FileHandle | undefined;
  try {
    folder = await open(home, FOLDER);
    for (const it of names) {
      const next = await openFolder(below(folder, it));
      await folder.close();
      folder = next;
    }
    await replace(folder, name, content);
  } catch (error) {
    const { code = '' } = error as NodeJS.ErrnoException;
    if (!IN_THE_WAY.has(code)) throw error;
    throw new Refusal('invalid_request', `path: cannot be written there (${code}); links are not followed.`);
  } finally {
    await folder?.close();
  }
}

/** A name in a folder that is open, whatever has become of the folder's own name (Linux, proc(5)). */
const below = (folder: FileHandle, name: string) => `/proc/self/fd/${folder.fd}/${name}`;

async function openFolder(path: string): Promise<FileHandle> {
  await mkdir(path).catch((error: NodeJS.ErrnoException) => {
    if (error.code !== 'EEXIST') throw error;
  });
  return open(path, FOLDER);
}

async function replace(folder: FileHandle, name: string, content: Buffer): Promise<void> {
  const target = below(folder, name);
  const isFolder = await lstat(target).then(
    (it) => it.isDirectory(),
    () => false,
  );
  if (isFolder) throw new Refusal('invalid_request', 'path: is a directory.');
  const fresh = below(folder, `.purser-${randomBytes(8).toString('hex')}`);
  try {
    const file = await open(fresh, FRESH, 0o644);
    await file.writeFile(content).finally(() => file.close());
    await rename(fresh, target);
  } catch (error) {
    await rm(fresh, { force: true });
    throw error;
  }
}
