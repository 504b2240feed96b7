import { readdirSync, readFileSync, readlinkSync, type Stats, statSync, writeFileSync } from 'node:fs';
import { hostname } from 'node:os';
import { dirname, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { LockedError, readOnlyDisk } from '../files/data-directory.ts';
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
 * Locks the data directory for this process: there is only ever one writer (design, section 4). The lock is SQLite's own lock on a
 * file beside the database, so the kernel releases it however the process ends. `who` names this process to others that want the
 * lock. Throws LockedError at once when a running server holds it, after 5 s when that may be a server in another namespace of
 * processes, and when another process still holds it after 5 s, or after `patience`. Throws `read_only` when the file system cannot
 * be written.
 */
export async function takeLock(file: string, who: string, patience?: LockPatience): Promise<{ release(): void }> {
  const directory = dirname(file);
  const refused = readOnlyDisk(directory);
  if (refused) throw refused;
  const usual = performance.now() + WAIT_MILLISECONDS;
  const deadline = patience ? performance.now() + patience.milliseconds : usual;
  let isPatient = false;
  for (;;) {
    const client = connect(file, { timeout: 0 });
    try {
      client.pragma('journal_mode = MEMORY'); // Nothing is ever written, so there is no journal file beside it.
      client.exec('begin exclusive');
      name(file, `${who} (process ${process.pid} on ${hostname()})\n${namespaceOf()}\n`);
      return {
        release() {
          name(file, '');
          client.close();
        },
      };
    } catch (error) {
      client.close();
      if (!String((error as { code?: string }).code).startsWith('SQLITE_BUSY')) throw error;
      const { holder, server } = holderOf(file);
      const isOver = performance.now() > (server === 'unknown' ? usual : deadline);
      if (isOver || server === 'runs')
        throw new LockedError(`${directory} is in use by ${holder}. Only one process may write there.`);
      if (performance.now() > usual && !isPatient) {
        isPatient = true;
        patience?.waits(holder);
      }
    }
    await sleep(TRY_MILLISECONDS);
  }
}

/** Records the holder of the lock. Failing to write is harmless: the lock itself does not depend on it. */
function name(file: string, who: string): void {
  try {
    writeFileSync(`${file}.holder`, who, { mode: 0o600 });
  } catch {}
}

/**
 * Returns the name of the lock's holder, and whether it is a running server, which keeps the lock for as long as it lives. A killed
 * server leaves its name behind, and then another process holds the lock. The id of a process means nothing in another namespace,
 * where the server may run.
 */
function holderOf(file: string): { holder: string; server: 'none' | 'runs' | 'unknown' } {
  let [holder, namespace]: (string | undefined)[] = [];
  try {
    [holder, namespace] = readFileSync(`${file}.holder`, 'utf8').split('\n');
  } catch {}
  const pid = /^purser serve \(process (\d+)[ )]/.exec(holder ?? '')?.[1];
  if (!holder || pid === undefined) return { holder: holder || 'another process', server: 'none' };
  if (namespace !== namespaceOf()) return { holder, server: 'unknown' };
  return { holder, server: isAlive(Number(pid)) ? 'runs' : 'none' };
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}

/** Returns the identity of this namespace of processes among all on this machine, and of the machine. */
function namespaceOf(): string {
  try {
    return `${readlinkSync('/proc/self/ns/pid')} ${hostname()}`;
  } catch {
    return hostname();
  }
}

/**
 * Makes sure that no other process has this database open under another name. A hard link has a log and a lock file of its own, so
 * only SQLite's lock on the database itself shows the other process. Processes that read under this name do not matter. Throws
 * LockedError when another is still there after 5 s.
 */
export async function refuseOtherName(database: string): Promise<void> {
  if (statSync(database).nlink < 2) return;
  const deadline = performance.now() + WAIT_MILLISECONDS;
  while (isOpenElsewhere(database)) {
    const users = usersOf(database);
    if (users?.length === 0) return;
    if (performance.now() > deadline)
      throw new LockedError(
        `${database} has a second name (a hard link), under which it is in use by ${users ? `process ${users.join(', ')} on ${hostname()}` : 'a process that this one cannot see'}. Only one process may write it. Stop the other, or remove the other name.`,
      );
    await sleep(TRY_MILLISECONDS);
  }
}

/** Returns whether another connection has the database open: every one holds a shared lock on the file. */
function isOpenElsewhere(database: string): boolean {
  const client = connect(database, { timeout: 0 });
  try {
    client.pragma('locking_mode = EXCLUSIVE');
    client.prepare('select count(*) from sqlite_schema').get(); // Takes the exclusive lock.
    return false;
  } catch (error) {
    if (!String((error as { code?: string }).code).startsWith('SQLITE_BUSY')) throw error;
    return true;
  } finally {
    client.close();
  }
}

/**
 * Returns the ids of the processes that lock this database under another name: they have not opened the index of the log beside it.
 * Undefined where the kernel shows none at all: for another namespace, or without /proc.
 */
function usersOf(database: string): number[] | undefined {
  const { ino } = statSync(database);
  const index = statSync(`${database}-shm`, { throwIfNoEntry: false });
  const users = new Set<number>();
  try {
    for (const line of readFileSync('/proc/locks', 'utf8').split('\n')) {
      const [, pid, inode] = /^\d+:[ >-]*POSIX +\w+ +\w+ +(\d+) [0-9a-f]+:[0-9a-f]+:(\d+) /.exec(line) ?? [];
      if (inode === String(ino)) users.add(Number(pid));
    }
  } catch {}
  if (!users.size) return undefined;
  return [...users].filter((pid) => !index || !hasOpen(pid, index));
}

function hasOpen(pid: number, { ino, dev }: Stats): boolean {
  try {
    const folder = `/proc/${pid}/fd`;
    return readdirSync(folder).some((it) => {
      const opened = statSync(join(folder, it), { throwIfNoEntry: false });
      return opened?.ino === ino && opened.dev === dev;
    });
  } catch {
    return false; // It has ended, or belongs to another user.
  }
}
