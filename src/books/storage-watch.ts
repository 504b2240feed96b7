import { statSync } from 'node:fs';
import { stat } from 'node:fs/promises';
import type { TimeSource } from '../base/clock.ts';
import type { ServerHealth } from '../base/health.ts';
import { RETRY_SAME_KEY, Refusal } from '../base/refusal.ts';
import { beat } from '../ledger/installation.ts';
import type { Ledger } from '../ledger/ledger.ts';

/** Interval between two looks at the commits that are awaited. */
const LOOK_MILLISECONDS = 500;
/** The most that counts of the time between two looks: during more, this process itself stood still, and not the disk. */
const LOOK_MILLISECONDS_MAX = 2000;
/** The disk is checked, and the books are written to, this often while they are used. */
const BEAT_MILLISECONDS = 5000;
const RETRY_SECONDS = 5;
/** SQLite's codes for a read that a lost disk refuses. A full disk refuses none. */
const READ_FAULT = /^SQLITE_IOERR_(READ|SHORT_READ|FSTAT)$/;
/** SQLite's codes for damage; it calls a page that the kernel could not read (EIO) damaged, too. */
const DAMAGE = /^SQLITE_(CORRUPT|NOTADB)/;

/** Watches that what is written reaches the disk (docs/decisions/0078). */
export type StorageWatch = {
  /** The ledger's write. When the storage has failed, it rejects, also for callers that are waiting. */
  write: Ledger['write'];
  /**
   * Resolves when a commit that was made after the call is on disk: what the caller knew before is still true of these books. A
   * full disk will do, since it is there. Throws `operation_uncertain` or `read_only` when the storage has failed.
   */
  confirm(): Promise<void>;
  /**
   * Undefined while this process has looked at its disk in time. If it stood still, as where the kernel let it wait for a frozen
   * disk, another server may have the books by now: then resolves like `confirm`.
   */
  confirmAfterPause(): Promise<void> | undefined;
  /** Notes that somebody uses the books, so that they are written to within seconds. */
  used(): void;
  /** Begins to look at the disk. `isBusy` returns whether something is leased or in flight. */
  start(isBusy: () => boolean): void;
  /** Takes one look, and fails when no commit has been confirmed for too long. */
  look(): void;
  /** Reports how long a commit took, before those who wait for it resume. */
  took(milliseconds: number): void;
  /** Reports a commit that failed. */
  fail(error: unknown): void;
  /**
   * Reports an error of a read. Where it is the disk's, the storage has failed; where the books seem damaged, a commit shows which it
   * is, and damaged books are served no longer. Returns the refusal of what read; undefined for any other error.
   */
  failedRead(error: unknown): Refusal | undefined;
  /** Sets what answers those who wait and ends all that goes out, before the process ends. */
  beforeEnd(end: () => Promise<void>): void;
  /** Returns the refusal of what was in flight when the storage failed; undefined while it has not. */
  failure(): Refusal | undefined;
  stop(): void;
};

type StorageWatchParts = {
  /** The data directory. */
  directory: string;
  /** The ledger's write without a watch. */
  write: Ledger['write'];
  /** Returns how long a commit may take. */
  stallSeconds: () => number;
  time: Pick<TimeSource, 'monotonic'>;
  health: ServerHealth;
  /** Must end the process. */
  fatal: (error: unknown) => void;
  /** Reports that the books are damaged. */
  damaged: (error: unknown) => void;
};

/** Creates the watch, which looks at nothing before `start`. */
export function watchStorage(parts: StorageWatchParts): StorageWatch {
  const { directory, health, time, stallSeconds, fatal, damaged } = parts;
  const { dev, ino } = statSync(directory);
  const commits = createAwaitedCommits(parts.write);
  let awake = 0; // Milliseconds that this process has been looking.
  let lookedAt = time.monotonic();
  let checkedAt = 0; // When the disk was last checked, or nobody used the books.
  let isUsed = false;
  let isBeating = false;
  let why: string | undefined;
  let before: (() => Promise<void>) | undefined;
  let isBusy = () => false;
  let isStopped = false;
  let isPaused = false; // It stood still, and no commit has been confirmed since.
  let timer: NodeJS.Timeout | undefined;

  const write: Ledger['write'] = (it, data) => {
    if (why !== undefined)
      return Promise.reject(
        new Refusal('read_only', `Nothing can be written: ${why}.`, { retryAfterSeconds: RETRY_SECONDS }),
      );
    return commits.write(it, data);
  };

  async function confirm(): Promise<void> {
    try {
      await write(beat, {});
    } catch (error) {
      // A disk that says that it is full is there.
      if (why !== undefined || !(error instanceof Refusal) || error.code !== 'read_only') throw error;
    }
  }

  const stoodStill = () => timer !== undefined && time.monotonic() - lookedAt > stallSeconds() * 1000;

  function confirmAfterPause(): Promise<void> | undefined {
    isPaused ||= stoodStill();
    if (!isPaused) return undefined;
    return confirm().then(() => {
      isPaused = stoodStill();
    });
  }

  /** Writes to the books, and makes sure that their directory is still the one that was opened. */
  async function checkDisk(): Promise<void> {
    isBeating = true;
    await confirm().catch(() => {}); // It has failed, or is closing.
    isBeating = false;
    if (isStopped) return;
    const now = await stat(directory).catch((error: Error) => error);
    if (now instanceof Error) return end(`the data directory is gone (${now.message})`);
    if (now.dev !== dev || now.ino !== ino) end(`another directory is at ${directory} now: the disk was unmounted`);
  }

  const failure = (): Refusal | undefined => (why === undefined ? undefined : uncertain(why));

  function end(reason: string, error = new Error(reason)): void {
    if (why !== undefined) return;
    why = reason;
    health.fault = reason;
    clearInterval(timer);
    commits.reject(() => uncertain(reason));
    const over = () => fatal(error);
    if (before) before().then(over, over);
    else over();
  }

  function failedRead(error: unknown): Refusal | undefined {
    const { code = '', message } = error as { code?: string; message?: string };
    const reason = `a read failed (${message})`;
    if (READ_FAULT.test(code)) end(reason, error as Error);
    else if (DAMAGE.test(code)) void judgeDamage(error as Error);
    else return undefined;
    return failure() ?? uncertain(reason);
  }

  /** Finds out whether the disk is gone or the books on it are damaged: only a disk that is there takes a commit. */
  async function judgeDamage(error: Error): Promise<void> {
    await checkDisk();
    if (isStopped || health.fault !== undefined) return;
    health.fault = `the books cannot be read: ${error.message}`;
    damaged(error);
  }

  function isInUse(): boolean {
    try {
      return isUsed || isBusy();
    } catch (error) {
      failedRead(error);
      return true; // Whether they can be written shows whether the disk is gone.
    }
  }

  function look(): void {
    const now = time.monotonic();
    isPaused ||= stoodStill();
    const passed = Math.min(now - lookedAt, LOOK_MILLISECONDS_MAX);
    awake += passed;
    lookedAt = now;
    if (commits.silentFor(passed) > stallSeconds() * 1000)
      end(`the disk has confirmed no commit for ${stallSeconds()} s`);
    if (isBeating) return;
    if (!isInUse()) checkedAt = awake;
    // Whatever else is written: what is refused writes nothing, and a directory that is gone still takes commits.
    if (why !== undefined || awake - checkedAt < BEAT_MILLISECONDS) return;
    checkedAt = awake;
    isUsed = false;
    void checkDisk();
  }

  return {
    write,
    confirm,
    confirmAfterPause,
    took(milliseconds) {
      if (milliseconds > stallSeconds() * 1000) end(`a commit took ${Math.round(milliseconds / 1000)} s`);
    },
    fail: (error) => end(`a commit failed (${(error as Error).message})`, error as Error),
    failedRead,
    look,
    used() {
      isUsed = true;
    },
    start(busy) {
      isBusy = busy;
      lookedAt = time.monotonic();
      timer = setInterval(look, LOOK_MILLISECONDS);
      timer.unref();
    },
    beforeEnd(act) {
      before = act;
    },
    failure,
    stop() {
      isStopped = true;
      clearInterval(timer);
    },
  };
}

const uncertain = (reason: string) =>
  new Refusal('operation_uncertain', `Whether this took effect is not known: ${reason}. ${RETRY_SAME_KEY}`, {
    retryAfterSeconds: RETRY_SECONDS,
  });

/** The commits that callers wait for, and how long the disk has confirmed none of them. */
type AwaitedCommits = {
  write: Ledger['write'];
  /** Rejects for all callers that are waiting; the commits themselves go on. */
  reject(refusal: () => Refusal): void;
  /** Lets milliseconds pass. Returns how many have passed since the last commit was confirmed, or the oldest one began to wait. */
  silentFor(passed: number): number;
};

function createAwaitedCommits(commit: Ledger['write']): AwaitedCommits {
  const waiting = new Set<{ since: number; reject: (reason: unknown) => void }>();
  let now = 0; // Milliseconds that have passed.
  let answeredAt = 0;
  return {
    write: (it, data) =>
      new Promise((resolve, reject) => {
        const waiter = { since: now, reject };
        waiting.add(waiter);
        const answered = () => {
          waiting.delete(waiter);
          answeredAt = now;
        };
        commit(it, data).then(
          (value) => {
            answered();
            resolve(value); // Without effect for a caller that was refused meanwhile.
          },
          (error) => {
            answered();
            reject(error);
          },
        );
      }),
    reject(refusal) {
      for (const it of waiting) it.reject(refusal());
    },
    silentFor(passed) {
      now += passed;
      const [oldest] = waiting;
      return oldest ? now - Math.max(oldest.since, answeredAt) : 0;
    },
  };
}
