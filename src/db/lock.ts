import { readFileSync, writeFileSync } from 'node:fs';
import { dirname } from 'node:path';
import { Refusal } from '../base/refusal.ts';
import { isReadOnly, LockedError } from '../files/data-directory.ts';
import { connect } from './addon.ts';

/** Milliseconds that a command waits for another that holds the lock briefly. */
const WAIT_MILLISECONDS = 5000;
const TRY_MILLISECONDS = 50;

/**
 * A server's longer wait for the lock. A command may be waiting for a backend that hangs, and the server may not be restarted by
 * hand.
 */
export type LockPatience = {
  milliseconds: number;
  /** Called once when the wait takes longer than usual. */
  waits(holder: string): void;
};

/**
 * Locks the data directory for this process: there is only ever one writer (design, section 4). The lock is SQLite's own
 * lock on a file beside the database, so the kernel releases it however the process ends. `who` names this process to others
 * that want the lock. Throws LockedError at once when a running server holds it, and when another process still holds it
 * after 5 s, or after `patience`. Throws `read_only` when the file system cannot be written.
 */
export async function takeLock(file: string, who: string, patience?: LockPatience): Promise<{ release(): void }> {
  const directory = dirname(file);
  if (isReadOnly(directory))
    throw new Refusal(
      'read_only',
      `The file system of ${directory} is read-only: nothing can be written there. The system's log says why (dmesg). Check and mount it again.`,
    );
  const usual = performance.now() + WAIT_MILLISECONDS;
  const deadline = patience ? performance.now() + patience.milliseconds : usual;
  let isPatient = false;
  for (;;) {
    const client = connect(file, { timeout: 0 });
    try {
      client.pragma('journal_mode = MEMORY'); // Nothing is ever written, so there is no journal file beside it.
      client.exec('begin exclusive');
      name(file, `${who} (process ${process.pid})\n`);
      return {
        release() {
          name(file, '');
          client.close();
        },
      };
    } catch (error) {
      client.close();
      if (!String((error as { code?: string }).code).startsWith('SQLITE_BUSY')) throw error;
      const holder = holderOf(file);
      if (performance.now() > deadline || isServing(holder))
        throw new LockedError(`${directory} is in use by ${holder}. Only one process may write there.`);
      if (performance.now() > usual && !isPatient) {
        isPatient = true;
        patience?.waits(holder);
      }
    }
    await new Promise((resolve) => setTimeout(resolve, TRY_MILLISECONDS));
  }
}

/** Records the holder of the lock. Failing to write is harmless: the lock itself does not depend on it. */
function name(file: string, who: string): void {
  try {
    writeFileSync(`${file}.holder`, who, { mode: 0o600 });
  } catch {}
}

/**
 * Returns whether the holder is a running server, which keeps the lock for as long as it lives. A killed server leaves
 * its name behind, and then another process holds the lock.
 */
function isServing(holder: string): boolean {
  const pid = /^purser serve \(process (\d+)\)$/.exec(holder)?.[1];
  if (pid === undefined) return false;
  try {
    process.kill(Number(pid), 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}

function holderOf(file: string): string {
  try {
    return readFileSync(`${file}.holder`, 'utf8').trim() || 'another process';
  } catch {
    return 'another process';
  }
}
