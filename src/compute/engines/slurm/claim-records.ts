import { randomUUID } from 'node:crypto';
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { writeDurablySync } from '../../../files/durable-file.ts';

/**
 * Keeps records, by user id, of submissions with an unknown outcome, written before Slurm is asked: such a user may have a job that
 * no list shows yet. A process reads the records of others, too: of the one before it, which may have been killed, and of a doctor
 * or a server beside it.
 */
export function createClaimRecords(root: string, now: () => number) {
  const owner = randomUUID();
  const file = (uid: number) => join(root, String(uid));
  const read = (uid: number) => {
    try {
      return readFileSync(file(uid), 'utf8');
    } catch {
      return undefined; // Its owner has just removed it.
    }
  };
  return {
    write(uid: number): void {
      mkdirSync(root, { recursive: true, mode: 0o700 });
      writeDurablySync(file(uid), `${now()} ${owner}`);
    },
    /** Returns the records of other processes that are younger than this, or dated in the future because the clock was set back. */
    others(seconds: number): { uid: number; text: string }[] {
      if (!existsSync(root)) return [];
      const uids = readdirSync(root).filter((name) => /^\d+$/.test(name));
      return uids.map(Number).flatMap((uid) => {
        const text = read(uid) ?? '';
        const isInDoubt = text !== '' && !text.endsWith(owner) && now() - Number.parseInt(text, 10) < seconds;
        return isInDoubt ? [{ uid, text }] : [];
      });
    },
    /** Removes the record of this user, if it is this process's own. */
    remove(uid: number): void {
      try {
        if (read(uid)?.endsWith(owner)) rmSync(file(uid), { force: true });
      } catch {} // It stays on a disk that cannot be written, and claims its user for two minutes after a start.
    },
  };
}
