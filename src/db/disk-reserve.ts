import { randomFillSync } from 'node:crypto';
import { ftruncateSync, rmSync, statfsSync, statSync } from 'node:fs';
import { type FileHandle, open } from 'node:fs/promises';
import { dirname } from 'node:path';
import { contained } from '../base/fault.ts';
import { Refusal } from '../base/refusal.ts';
import type { Reader, Tx } from './handle.ts';
import { plain } from './plain.ts';

/** The reserve takes at most this much, enough for some thousands of settlements. */
const RESERVE_BYTES_MAX = 16 * 1024 * 1024;
/** The reserve takes one part in this many of a small disk. */
const RESERVE_PART = 8;
/** The part of the reserve that must be free besides it before new work is started: one in this many. */
const MARGIN_PART = 4;
/** Space counted for settling one request in flight: its rows, its log pages and an ordinary answer. */
const IN_FLIGHT_BYTES = 64 * 1024;
/** Milliseconds for which one disk check stays valid. */
const CHECK_VALID_MILLISECONDS = 100;
/**
 * Interval between disk checks while space or the reserve is missing. Also the delay after the start before the reserve
 * is made: a server that has just started is busy, and may stop at once.
 */
const CHECK_INTERVAL_MILLISECONDS = 2000;
const SLICE_BYTES = 1024 * 1024;
const RETRY_SECONDS = 5;

/**
 * The disk space reserved for settlements (docs/decisions/0078): a file of real blocks beside the database. New work needs free
 * space besides it and is refused early; settling work gets the reserve when the disk is full.
 */
export type DiskReserve = {
  /** Returns why no new work may be started, or undefined. */
  shortage(): string | undefined;
  /** Returns for how many seconds the last `shortage` has been known; undefined if there is none. */
  shortSeconds(): number | undefined;
  /** Frees the reserve after a write found the disk full. Returns false when it is already used up. */
  release(): boolean;
  /** Makes the reserve, now or as soon as there is space. */
  start(): void;
  stop(): Promise<void>;
  freeBytes(): number;
};

export type DiskReserveEvents = {
  /** Reports that no new work is started any more, and the reason. */
  diskLow(reason: string): void;
  diskEnough(freeBytes: number): void;
  reserveMade(bytes: number): void;
  reserveUsed(): void;
  failed(where: string, error: unknown): void;
};

/** Returns the size of the reserve on a disk of this size. */
export function reserveOn(diskBytes: number): number {
  const part = Math.floor(diskBytes / RESERVE_PART / SLICE_BYTES) * SLICE_BYTES;
  return Math.min(RESERVE_BYTES_MAX, Math.max(SLICE_BYTES, part));
}

/** Returns the free space on the disk of a directory, and the size of the reserve on it, in bytes. */
function spaceOf(directory: string): { free: number; reserve: number } {
  const { bavail, bsize, blocks } = statfsSync(directory);
  return { free: bavail * bsize, reserve: reserveOn(blocks * bsize) };
}

/** Returns how many bytes may be written to the disk of the books, in this directory, before no new work is started. */
export function spareBytes(directory: string): number {
  const { free, reserve } = spaceOf(directory);
  return free - reserve / MARGIN_PART;
}

/** Returns whether the disk of a directory is too small for a whole reserve. */
export const isSmallDisk = (directory: string): boolean => spaceOf(directory).reserve < RESERVE_BYTES_MAX;

/**
 * Returns how many bytes must be free before new work is started, with `madeBytes` of the reserve made and nothing in
 * flight.
 */
export const freeNeeded = (reserveBytes: number, madeBytes: number): number =>
  reserveBytes / MARGIN_PART + Math.max(0, reserveBytes - madeBytes);

const reads = plain({ bytes: 'select page_count * page_size from pragma_page_count, pragma_page_size' });

/**
 * Returns the bytes by which a database file will grow when its log is written back: in one piece, up to the length of the log.
 * Returns 0 where the file cannot be read: others report that.
 */
export function growthAhead(read: Reader, file: string): number {
  try {
    const bytes = Number(reads(read).bytes.get<[bigint]>()?.[0]);
    return Math.max(0, bytes - statSync(file).size);
  } catch {
    return 0;
  }
}

/**
 * Creates the reserve at `file`. `inFlight` returns how many requests still have to be settled, `ahead` the bytes that will be written
 * also if none is.
 */
export function createDiskReserve(
  file: string,
  inFlight: () => number,
  events: DiskReserveEvents,
  ahead: () => number = () => 0,
): DiskReserve {
  const directory = dirname(file);
  const space = () => spaceOf(directory);
  const reserved = openReserveFile(file);
  let timer: NodeJS.Timeout | undefined;
  let started = false;
  let seen: { at: number; shortage: string | undefined } | undefined;
  let shortSince: number | undefined;

  function shortage(): string | undefined {
    const at = performance.now();
    if (seen && at - seen.at < CHECK_VALID_MILLISECONDS) return seen.shortage;
    const wasShort = shortSince !== undefined; // Does not use `seen`: that is cleared whenever the disk must be checked again.
    seen = { at, shortage: shortageIn(directory, reserved.bytes(), inFlight() * IN_FLIGHT_BYTES + ahead()) };
    shortSince = seen.shortage === undefined ? undefined : (shortSince ?? at);
    if (seen.shortage && !wasShort) {
      events.diskLow(seen.shortage);
      checkLater();
    }
    if (!seen.shortage && wasShort) events.diskEnough(space().free);
    return seen.shortage;
  }

  function release(): boolean {
    seen = undefined;
    if (!reserved.free()) return false;
    events.reserveUsed();
    checkLater();
    return true;
  }

  /** Keeps checking the disk while space or the reserve is missing. */
  function checkLater() {
    if (!started || timer) return;
    timer = setTimeout(recheck, CHECK_INTERVAL_MILLISECONDS);
    timer.unref();
  }
  const recheck = contained('timer', recheckOnce, checkLater);

  async function recheckOnce(): Promise<void> {
    timer = undefined;
    if (reserved.making() || shortage()) return checkLater();
    try {
      const { reserve } = space();
      if (reserved.bytes() >= reserve) return;
      await reserved.make(reserve, () => started);
      if (reserved.bytes()) events.reserveMade(reserved.bytes());
    } catch (error) {
      events.failed('reserve', error);
      checkLater();
    } finally {
      seen = undefined;
    }
  }

  // Opening the database on a full disk takes space, too.
  if (reserved.bytes() && space().free < SLICE_BYTES) release();

  return {
    shortage,
    shortSeconds: () => (shortSince === undefined ? undefined : Math.floor((performance.now() - shortSince) / 1000)),
    release,
    start() {
      started = true;
      checkLater();
    },
    async stop() {
      started = false;
      clearTimeout(timer);
      timer = undefined;
      await reserved.making();
    },
    freeBytes: () => space().free,
  };
}

/** Returns why no new work may be started on this disk, where `aheadBytes` are written in any case; undefined if it may. */
function shortageIn(directory: string, madeBytes: number, aheadBytes: number): string | undefined {
  const { free, reserve } = spaceOf(directory);
  const needed = freeNeeded(reserve, madeBytes) + aheadBytes;
  if (free >= needed) return undefined;
  return `the disk has ${mebibytes(free)} MiB free and needs ${mebibytes(needed)} for requests in flight`;
}

/** Opens the file of the reserve, which may be missing. */
function openReserveFile(file: string) {
  let made = sizeOf(file);
  let making: { handle: FileHandle; ended: Promise<void> } | undefined;
  return {
    bytes: () => made,
    /** Returns the end of the file's making; undefined when it is not being made. */
    making: () => making?.ended,

    /** Deletes the file. Returns false if there is none. */
    free(): boolean {
      if (!made) return false;
      // A file being written is still open: truncating frees its blocks, deleting its name does not.
      if (making && making.handle.fd >= 0) ftruncateSync(making.handle.fd);
      rmSync(file, { force: true });
      made = 0;
      return true;
    },

    /**
     * Writes random bytes: on a file system that compresses or shares blocks, zeros would reserve nothing. Leaves no file if
     * it is freed, or no longer wanted, in the meantime.
     */
    async make(bytes: number, isWanted: () => boolean): Promise<void> {
      const handle = await open(file, 'w', 0o600);
      const { promise: ended, resolve: end } = Promise.withResolvers<void>();
      making = { handle, ended };
      made = 0;
      try {
        const slice = Buffer.alloc(SLICE_BYTES);
        for (let at = 0; at < bytes && isWanted() && made === at; at += SLICE_BYTES) {
          await handle.write(randomFillSync(slice), 0, SLICE_BYTES, at);
          if (made === at) made += SLICE_BYTES;
        }
        if (made === bytes) await handle.datasync();
      } finally {
        if (made < bytes) {
          made = 0;
          rmSync(file, { force: true });
        }
        await handle.close();
        making = undefined;
        end();
      }
    },
  };
}

function sizeOf(file: string): number {
  return statSync(file, { throwIfNoEntry: false })?.size ?? 0;
}

const mebibytes = (bytes: number) => (bytes / 1024 / 1024).toFixed(1);

const reserves = new WeakMap<object, Pick<DiskReserve, 'shortage'>>();

/** Makes new work in this database subject to the reserve. */
export function attachReserve(tx: Tx, reserve: Pick<DiskReserve, 'shortage'>): void {
  reserves.set(tx, reserve);
}

/** Throws `read_only` when the disk has only its reserve left. Called by everything that starts new work. */
export function refuseOnLowDisk(read: Reader): void {
  const shortage = reserves.get(read)?.shortage();
  if (shortage)
    throw new Refusal('read_only', `No new work can be started: ${shortage}. Retry later.`, {
      retryAfterSeconds: RETRY_SECONDS,
    });
}
