import { Readable } from 'node:stream';
import { createGunzip, gzipSync } from 'node:zlib';
import { collectPieces } from '../net/pieces.ts';

/**
 * The size of the compressed segments, small enough that a thousand streams at once do not fill the memory with their
 * replays.
 */
const SEGMENT_BYTES = 64 * 1024;
const PACKED_BYTES_MAX = 8 * 1024 * 1024;
/** This much of a transcript is not counted: nearly all are shorter. */
const FREE_BYTES = 128 * 1024;

/** The bytes streamed to a client, recorded for replays. */
type Transcript = {
  push(bytes: Buffer): undefined;
  /** Returns concatenated gzip members, or null if the transcript became too long to keep. */
  finish(): Buffer | null;
};

/** The memory that a tenant may use. */
export type TranscriptMemory = { tryTake(bytes: number): boolean; release(bytes: number): void };
const UNBOUNDED: TranscriptMemory = { tryTake: () => true, release() {} };

/**
 * Creates an empty transcript. Memory beyond the free part is taken from `memory`; if that is used up, the transcript is
 * too long to keep.
 */
export function createTranscript(memory: TranscriptMemory = UNBOUNDED): Transcript {
  let loose: Buffer[] = [];
  let looseBytes = 0;
  // Copied into blocks: zlib returns the used part of a 16 KiB block, which would keep the whole block in memory.
  const packed = collectPieces();
  let isTooLong = false;
  let taken = 0;
  function tryTake(): boolean {
    const more = packed.length() - FREE_BYTES - taken;
    if (more <= 0) return true;
    if (!memory.tryTake(more)) return false;
    taken += more;
    return true;
  }
  function pack() {
    if (isTooLong || !looseBytes) return;
    packed.add(gzipSync(Buffer.concat(loose, looseBytes), { level: 1 }));
    loose = [];
    looseBytes = 0;
    isTooLong = packed.length() > PACKED_BYTES_MAX || !tryTake();
    if (!isTooLong) return;
    packed.clear();
    memory.release(taken);
  }
  return {
    push(bytes) {
      if (isTooLong) return;
      loose.push(bytes);
      looseBytes += bytes.length;
      if (looseBytes >= SEGMENT_BYTES) pack();
    },
    finish() {
      pack();
      return isTooLong ? null : packed.whole();
    },
  };
}

/** Decompresses a transcript in pieces. */
export function readTranscript(packed: Buffer): AsyncIterable<Buffer> {
  return Readable.from([packed]).pipe(createGunzip());
}
