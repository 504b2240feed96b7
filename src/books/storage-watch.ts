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
   * Resolves when a commit that was made after the call is on disk: the caller's knowledge is still true of these books. A full
   * disk counts, since it is there. Throws `operation_uncertain` or `read_only` when the storage has failed.
   */
  confirm(): Promise<void>;
  /**
   * Undefined while this process has looked at its disk in time. If it stood still, as where the kernel let it wait for a frozen
   * disk, another server may have the books by now: then resolves like `confirm`.
   */
  confirmAfterPause(): Promise<void> | undefined;
  /** Notes a use of the books, so that they are written to within seconds. */
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
   * Reports an error of a read. After an error of the disk the storage has failed; where the books seem damaged, a commit decides,
   * and damaged books are served no longer. Returns the read's refusal; undefined for other errors.
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
  const { time, stallSeconds } = parts;
  const commits = createAwaitedCommits(parts.write);
  const looks = createLooks(time, stallSeconds);
  const { write, confirm, failure } = commits;
  const { end, beforeEnd } = createEnd(parts, commits, () => clearInterval(timer));
  const failedRead = createReadJudge(parts, { end, failure, checkDisk });
  const findLostDirectory = createDirectoryCheck(parts.directory);
  let checkedAt = 0; // When the disk was last checked, or the books were unused.
  let isUsed = false;
  let isBeating = false;
  let isBusy = () => false;
  let isStopped = false;
  let timer: NodeJS.Timeout | undefined;

  /** Writes to the books, and makes sure that their directory is still the one that was opened. Returns false after the stop. */
  async function checkDisk(): Promise<boolean> {
    isBeating = true;
    await confirm().catch(() => {}); // It has failed, or is closing.
    isBeating = false;
    const fault = isStopped ? undefined : await findLostDirectory();
    if (fault !== undefined) end(fault);
    return !isStopped;
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
    const { passed, awake } = looks.look();
    if (commits.silentFor(passed) > stallSeconds() * 1000)
      end(`the disk has confirmed no commit for ${stallSeconds()} s`);
    if (isBeating) return;
    if (!isInUse()) checkedAt = awake;
    // Whatever else is written: what is refused writes nothing, and a directory that is gone still takes commits.
    if (failure() || awake - checkedAt < BEAT_MILLISECONDS) return;
    checkedAt = awake;
    isUsed = false;
    void checkDisk();
  }

  return {
    write,
    confirm,
    confirmAfterPause: () => (looks.isPaused() ? confirm().then(looks.confirmed) : undefined),
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
      looks.begin();
      timer = setInterval(look, LOOK_MILLISECONDS);
      timer.unref();
    },
    beforeEnd,
    failure,
    stop() {
      isStopped = true;
      clearInterval(timer);
    },
  };
}

/** Creates a check that a directory is still there, and still the same. It returns what is wrong. */
function createDirectoryCheck(directory: string): () => Promise<string | undefined> {
  const { dev, ino } = statSync(directory);
  return async () => {
    const now = await stat(directory).catch((error: Error) => error);
    if (now instanceof Error) return `the data directory is gone (${now.message})`;
    if (now.dev === dev && now.ino === ino) return undefined;
    return `another directory is at ${directory} now: the disk was unmounted`;
  };
}

/** Creates the end of a process whose storage has failed. */
function createEnd({ health, fatal }: StorageWatchParts, { failure, fail }: AwaitedCommits, stop: () => void) {
  let before: (() => Promise<void>) | undefined;
  return {
    end(reason: string, error = new Error(reason)): void {
      if (failure()) return;
      health.fault = reason;
      stop();
      fail(reason);
      const over = () => fatal(error);
      if (before) before().then(over, over);
      else over();
    },
    beforeEnd(act: () => Promise<void>): void {
      before = act;
    },
  };
}

/** Creates the judge of errors of reads (`StorageWatch.failedRead`). */
function createReadJudge(
  { health, damaged }: StorageWatchParts,
  watch: { checkDisk(): Promise<boolean>; end(reason: string, error: Error): void } & Pick<StorageWatch, 'failure'>,
): StorageWatch['failedRead'] {
  /** Finds out whether the disk is gone or the books on it are damaged: only a disk that is there takes a commit. */
  async function judgeDamage(error: Error): Promise<void> {
    if (!(await watch.checkDisk()) || health.fault !== undefined) return;
    health.fault = `the books cannot be read: ${error.message}`;
    damaged(error);
  }
  return (error) => {
    const { code = '', message } = error as { code?: string; message?: string };
    const reason = `a read failed (${message})`;
    if (READ_FAULT.test(code)) watch.end(reason, error as Error);
    else if (DAMAGE.test(code)) void judgeDamage(error as Error);
    else return undefined;
    return watch.failure() ?? uncertain(reason);
  };
}

/** Notes how long this process has been looking, and whether it stood still between two looks. */
function createLooks(time: StorageWatchParts['time'], stallSeconds: () => number) {
  let awake = 0; // Milliseconds that it has been looking.
  let lookedAt = time.monotonic();
  let hasBegun = false;
  let isPaused = false; // It stood still, and no commit has been confirmed since.
  const stoodStill = () => hasBegun && time.monotonic() - lookedAt > stallSeconds() * 1000;
  const isStill = () => {
    isPaused ||= stoodStill();
    return isPaused;
  };
  return {
    begin(): void {
      lookedAt = time.monotonic();
      hasBegun = true;
    },
    look(): { passed: number; awake: number } {
      isStill();
      const now = time.monotonic();
      const passed = Math.min(now - lookedAt, LOOK_MILLISECONDS_MAX);
      awake += passed;
      lookedAt = now;
      return { passed, awake };
    },
    isPaused: isStill,
    /** Notes that a commit was confirmed that began after the pause. */
    confirmed(): void {
      isPaused = stoodStill();
    },
  };
}

const uncertain = (reason: string) =>
  new Refusal('operation_uncertain', `Whether this took effect is not known: ${reason}. ${RETRY_SAME_KEY}`, {
    retryAfterSeconds: RETRY_SECONDS,
  });

type AwaitedCommits = ReturnType<typeof createAwaitedCommits>;

/** Creates the commits that callers wait for, which also know how long the disk has confirmed none of them. */
function createAwaitedCommits(commit: Ledger['write']) {
  const waiting = new Set<{ since: number; reject: (reason: unknown) => void }>();
  let now = 0; // Milliseconds that have passed.
  let answeredAt = 0;
  /** The reason why nothing is written any more. */
  let why: string | undefined;

  const write: Ledger['write'] = (it, data) =>
    new Promise((resolve, reject) => {
      if (why !== undefined)
        throw new Refusal('read_only', `Nothing can be written: ${why}.`, { retryAfterSeconds: RETRY_SECONDS });
      const waiter = { since: now, reject };
      waiting.add(waiter);
      const answered = () => {
        waiting.delete(waiter);
        answeredAt = now;
      };
      commit(it, data).then(
        (value) => {
          answered();
          resolve(value); // Without effect for a caller that has been refused.
        },
        (error) => {
          answered();
          reject(error);
        },
      );
    });

  return {
    write,
    async confirm(): Promise<void> {
      try {
        await write(beat, {});
      } catch (error) {
        // A disk that reports that it is full is there.
        if (why !== undefined || !(error instanceof Refusal) || error.code !== 'read_only') throw error;
      }
    },
    /** Refuses all further writes, and answers all waiting callers; the commits themselves continue. */
    fail(reason: string): void {
      why = reason;
      for (const it of waiting) it.reject(uncertain(reason));
    },
    failure: (): Refusal | undefined => (why === undefined ? undefined : uncertain(why)),
    /** Lets milliseconds pass. Returns how many have passed since the last commit was confirmed, or the oldest one began to wait. */
    silentFor(passed: number): number {
      now += passed;
      const [oldest] = waiting;
      return oldest ? now - Math.max(oldest.since, answeredAt) : 0;
    },
  };
}
