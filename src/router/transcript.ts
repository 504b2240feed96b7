import { Readable } from 'node:stream';
import { createGunzip, gzipSync } from 'node:zlib';
import { collectPieces } from '../net/pieces.ts';

/**
 * Compressed in segments of this size, so that a thousand streams at once do not fill the memory with their replays.
 */
const SEGMENT_BYTES = 64 * 1024;
const PACKED_BYTES_MAX = 8 * 1024 * 1024;

/** The bytes streamed to a client, recorded for replays. */
export type Transcript = {
  push(bytes: Buffer): undefined;
  /** Returns concatenated gzip members, or null if the transcript became too long to store. */
  finish(): Buffer | null;
};

/** Creates an empty transcript. */
export function createTranscript(): Transcript {
  let loose: Buffer[] = [];
  let looseBytes = 0;
  // Copied into blocks: what zlib returns is the used part of a block of 16 KiB, which it would keep in memory.
  const packed = collectPieces();
  let isTooLong = false;
  function pack() {
    if (isTooLong || !looseBytes) return;
    packed.add(gzipSync(Buffer.concat(loose, looseBytes), { level: 1 }));
    loose = [];
    looseBytes = 0;
    isTooLong = packed.length() > PACKED_BYTES_MAX;
    if (isTooLong) packed.clear();
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
