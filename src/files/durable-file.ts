import { closeSync, fchmodSync, fchownSync, fsyncSync, openSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { open, rename } from 'node:fs/promises';
import { dirname } from 'node:path';

/** Syncs a directory. Until then a power cut may undo renames in it. */
export function syncDirectory(directory: string): void {
  const handle = openSync(directory, 'r');
  try {
    fsyncSync(handle);
  } finally {
    closeSync(handle);
  }
}

/**
 * Writes a new `FILE.new`, never through another user's link, with this mode and owner (default: the user's own), and syncs it.
 * Returns its path, for a rename or a link. Removes a file that could not be written whole.
 */
export function writeFresh(
  file: string,
  content: string | Buffer,
  { mode, uid, gid }: { mode: number; uid?: number; gid?: number },
): string {
  const fresh = `${file}.new`;
  rmSync(fresh, { force: true });
  const handle = openSync(fresh, 'wx', 0o600);
  try {
    writeFileSync(handle, content);
    if (uid !== undefined && gid !== undefined) fchownSync(handle, uid, gid);
    fchmodSync(handle, mode);
    fsyncSync(handle);
  } catch (error) {
    rmSync(fresh, { force: true }); // A full disk, perhaps.
    throw error;
  } finally {
    closeSync(handle);
  }
  return fresh;
}

/** Writes a file with mode 0600 and syncs it. A power cut leaves either the former file or the new one, whole. */
export function writeDurablySync(file: string, text: string): void {
  const fresh = `${file}.new`;
  writeFileSync(fresh, text, { mode: 0o600, flush: true });
  renameSync(fresh, file);
  syncDirectory(dirname(file));
}

/** Writes a file like `writeDurablySync`, without blocking the event loop. */
export async function writeDurably(file: string, text: string): Promise<void> {
  const fresh = `${file}.new`;
  const handle = await open(fresh, 'w', 0o600);
  try {
    await handle.writeFile(text);
    await handle.sync();
  } finally {
    await handle.close();
  }
  await rename(fresh, file);
  const directory = await open(dirname(file), 'r');
  try {
    await directory.sync();
  } finally {
    await directory.close();
  }
}
