import { Readable } from 'node:stream';
import { createGunzip, gzipSync } from 'node:zlib';

/**
 * Compressed in segments of this size, so that a thousand streams at once do not fill the memory with their replays.
 */
const SEGMENT_BYTES = 64 * 1024;
const PACKED_BYTES_MAX = 8 * 1024 * 1024;

/** The bytes streamed to a client, recorded for replays. */
export type Transcript = {
  push(bytes: Buffer): void;
  /** Returns concatenated gzip members, or null if the transcript became too long to store. */
  finish(): Buffer | null;
};

/** Creates an empty transcript. */
export function createTranscript(): Transcript {
  let loose: Buffer[] = [];
  let looseBytes = 0;
  let packed: Buffer[] | undefined = [];
  let packedBytes = 0;
  function pack() {
    if (!packed || !looseBytes) return;
    const segment = gzipSync(Buffer.concat(loose, looseBytes), { level: 1 });
    loose = [];
    looseBytes = 0;
    packedBytes += segment.length;
    if (packedBytes > PACKED_BYTES_MAX) packed = undefined;
    else packed.push(segment);
  }
  return {
    push(bytes) {
      if (!packed) return;
      loose.push(bytes);
      looseBytes += bytes.length;
      if (looseBytes >= SEGMENT_BYTES) pack();
    },
    finish() {
      pack();
      return packed ? Buffer.concat(packed) : null;
    },
  };
}

/** Decompresses a transcript in pieces. */
export function readTranscript(packed: Buffer): AsyncIterable<Buffer> {
  return Readable.from([packed]).pipe(createGunzip());
}
