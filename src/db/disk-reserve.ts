import { randomFillSync } from 'node:crypto';
import { ftruncateSync, rmSync, statfsSync, statSync } from 'node:fs';
import { type FileHandle, open } from 'node:fs/promises';
import { dirname } from 'node:path';
import { isReadOnly, READ_ONLY } from '../files/data-directory.ts';
import { Refusal } from '../refusal.ts';
import type { Tx } from './handle.ts';

/** The reserve takes an eighth of a small disk, and never more than this: some thousands of settlements. */
const RESERVE_BYTES_MAX = 16 * 1024 * 1024;
const RESERVE_PART = 8;
/** This part of the reserve has to be free beside it before anything new is begun. */
const MARGIN_PART = 4;
/** What the settlement of one request in flight is counted with: its rows, its log pages and an ordinary answer. */
const IN_FLIGHT_BYTES = 64 * 1024;
/** How long one look at the disk is believed. */
const LOOK_MILLISECONDS = 100;
/** Also how long a server runs before it makes its reserve: one that has just started is busy, and may be gone at once. */
const LOOK_AGAIN_MILLISECONDS = 2000;
const SLICE_BYTES = 1024 * 1024;
const RETRY_SECONDS = 5;

/**
 * The space that settlements need (docs/decisions/0017). Beside the database lies a file of real blocks, the reserve. What
 * begins something new needs free space beside it, and is refused early; what ends something gets the reserve when it
 * finds the disk full.
 */
export type DiskReserve = {
  /** Why nothing new may be begun, or undefined. */
  shortage(): string | undefined;
  /** The disk was found full: gives the reserve to what has to be written. False when it is used up already. */
  release(): boolean;
  /** Whether the file system takes no writes any more, asked of it now. */
  isReadOnly(): boolean;
  /** Makes the reserve, now or as soon as there is space again. */
  start(): void;
  stop(): Promise<void>;
  freeBytes(): number;
};

export type DiskReserveEvents = {
  /** Nothing new is begun any more, for this reason. */
  diskLow(reason: string): void;
  diskEnough(freeBytes: number): void;
  reserveMade(bytes: number): void;
  reserveUsed(): void;
  failed(where: string, error: unknown): void;
};

/** How large the reserve is on a disk of so many bytes. */
export function reserveOn(diskBytes: number): number {
  const part = Math.floor(diskBytes / RESERVE_PART / SLICE_BYTES) * SLICE_BYTES;
  return Math.min(RESERVE_BYTES_MAX, Math.max(SLICE_BYTES, part));
}

/** What has to be free before anything new is begun, when so much of the reserve is made and nothing is in flight. */
export const freeNeeded = (reserveBytes: number, madeBytes: number): number =>
  reserveBytes / MARGIN_PART + Math.max(0, reserveBytes - madeBytes);

/** `file` is the reserve; `inFlight` says how many requests will want to be settled. */
export function createDiskReserve(file: string, inFlight: () => number, events: DiskReserveEvents): DiskReserve {
  const directory = dirname(file);
  const space = () => {
    const { bavail, bsize, blocks } = statfsSync(directory);
    return { free: bavail * bsize, reserve: reserveOn(blocks * bsize) };
  };
  let made = sizeOf(file);
  let making: { handle: FileHandle; ended: Promise<void> } | undefined;
  let timer: NodeJS.Timeout | undefined;
  let started = false;
  let seen: { at: number; lack: string | undefined } | undefined;

  function look(): string | undefined {
    if (isReadOnly(directory)) return READ_ONLY;
    const { free, reserve } = space();
    const needed = freeNeeded(reserve, made) + inFlight() * IN_FLIGHT_BYTES;
    if (free >= needed) return undefined;
    return `the disk has ${mebibytes(free)} MiB free and needs ${mebibytes(needed)} for what is under way`;
  }
  function lack(): string | undefined {
    const at = performance.now();
    if (seen && at - seen.at < LOOK_MILLISECONDS) return seen.lack;
    const before = seen?.lack;
    seen = { at, lack: look() };
    if (seen.lack && !before) {
      events.diskLow(seen.lack);
      lookLater();
    }
    if (!seen.lack && before) events.diskEnough(space().free);
    return seen.lack;
  }

  function release(): boolean {
    seen = undefined;
    if (!made) return false;
    // One that is being made is open: its blocks are free when it is cut, not when its name is gone.
    if (making && making.handle.fd >= 0) ftruncateSync(making.handle.fd);
    rmSync(file, { force: true });
    made = 0;
    events.reserveUsed();
    lookLater();
    return true;
  }

  /** While something is missing, space or the reserve, the disk is looked at again and again. */
  function lookLater() {
    if (!started || timer) return;
    timer = setTimeout(() => {
      timer = undefined;
      if (making || lack()) return lookLater();
      make().catch((error) => {
        events.failed('reserve', error);
        lookLater();
      });
    }, LOOK_AGAIN_MILLISECONDS);
    timer.unref();
  }

  /** Random bytes, written for real: a file system that packs or shares blocks would make no reserve of zeros. */
  async function make(): Promise<void> {
    const { reserve } = space();
    if (made >= reserve) return;
    const handle = await open(file, 'w', 0o600);
    const { promise: ended, resolve: end } = Promise.withResolvers<void>();
    making = { handle, ended };
    made = 0;
    try {
      const slice = Buffer.alloc(SLICE_BYTES);
      // Released meanwhile, or stopped: it ends here.
      for (let at = 0; at < reserve && started && made === at; at += SLICE_BYTES) {
        await handle.write(randomFillSync(slice), 0, SLICE_BYTES, at);
        if (made === at) made += SLICE_BYTES;
      }
      if (made === reserve) await handle.datasync();
    } finally {
      if (made < reserve) {
        made = 0;
        rmSync(file, { force: true });
      }
      await handle.close();
      making = undefined;
      seen = undefined;
      end();
    }
    if (made) events.reserveMade(made);
  }

  // To open the database on a full disk takes space, too.
  if (made && space().free < SLICE_BYTES) release();

  return {
    shortage: lack,
    release,
    isReadOnly: () => isReadOnly(directory),
    start() {
      started = true;
      lookLater();
    },
    async stop() {
      started = false;
      clearTimeout(timer);
      timer = undefined;
      await making?.ended;
    },
    freeBytes: () => space().free,
  };
}

function sizeOf(file: string): number {
  return statSync(file, { throwIfNoEntry: false })?.size ?? 0;
}

const mebibytes = (bytes: number) => (bytes / 1024 / 1024).toFixed(1);

const rooms = new WeakMap<object, DiskReserve>();

/** From now on what is begun in this database needs room. */
export function attachReserve(tx: Tx, room: DiskReserve): void {
  rooms.set(tx, room);
}

/** Refuses with `read_only` where the disk has only its reserve left: for whatever begins something new. */
export function refuseOnLowDisk(tx: Tx): void {
  const lack = rooms.get(tx)?.shortage();
  if (lack)
    throw new Refusal('read_only', `Nothing new can be begun: ${lack}. Retry later.`, {
      retryAfterSeconds: RETRY_SECONDS,
    });
}
