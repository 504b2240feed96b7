import { Readable } from 'node:stream';
import { createGunzip, gzipSync } from 'node:zlib';

/** Packed whenever so much has come: a thousand streams at once must not fill the memory with their repetitions. */
const SEGMENT_BYTES = 64 * 1024;
const PACKED_BYTES_MAX = 8 * 1024 * 1024;

/** What was streamed to a client, kept for its replay. */
export type Transcript = {
  push(bytes: Buffer): void;
  /** Gzip members one after the other, or null when it became too long to be kept. */
  finish(): Buffer | null;
};

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

/** The bytes of a transcript, a piece at a time. */
export function readTranscript(packed: Buffer): AsyncIterable<Buffer> {
  return Readable.from([packed]).pipe(createGunzip());
}
