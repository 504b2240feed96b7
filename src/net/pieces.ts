const BLOCK_BYTES = { min: 4 * 1024, max: 64 * 1024 };

/** A collector of bytes that arrive in pieces of any size. */
type PieceCollector = {
  /** Copies a piece. */
  add(piece: Buffer): void;
  length(): number;
  /** Returns everything collected so far, in one buffer. */
  whole(): Buffer;
  /** Drops everything collected. */
  clear(): void;
};

/**
 * Collects bytes in blocks. A list of the pieces would cost more than a hundred bytes each: a client that sends single bytes would
 * use a hundred times the counted memory. `announced` is the expected number of bytes, if known.
 */
export function collectPieces(announced = 0): PieceCollector {
  let full: Buffer[] = [];
  let block = Buffer.allocUnsafe(announced);
  let used = 0;
  let length = 0;
  return {
    add(piece) {
      for (let at = 0; at < piece.length; ) {
        if (used === block.length) {
          if (used) full.push(block);
          block = Buffer.allocUnsafeSlow(Math.min(Math.max(length, BLOCK_BYTES.min), BLOCK_BYTES.max));
          used = 0;
        }
        const copied = piece.copy(block, used, at);
        used += copied;
        at += copied;
      }
      length += piece.length;
    },
    length: () => length,
    whole: () => (full.length ? Buffer.concat([...full, block.subarray(0, used)], length) : block.subarray(0, used)),
    clear() {
      full = [];
      block = Buffer.allocUnsafeSlow(0);
      used = 0;
      length = 0;
    },
  };
}

/** Shorter chunks are joined after this many of them in a row. */
const SHORT_BYTES_MAX = 1024;
const SHORT_COUNT_MAX = 1024;

/** The chunks of a body as they come. */
type Chunks = {
  add(chunk: Buffer): void;
  isEmpty(): boolean;
  /** Returns all bytes since the last call; a single chunk is not copied. */
  take(): Buffer;
  /** Drops everything collected. */
  clear(): void;
};

/**
 * Collects chunks without copying them, unlike `collectPieces`. Only a long run of short ones is joined: a server may send single
 * bytes, and an object for each would take a hundred times its memory, and seconds of garbage collection.
 */
export function collectChunks(): Chunks {
  let chunks: Buffer[] = [];
  /** The index of the first of the short chunks at the end. */
  let run = 0;
  function clear() {
    chunks = [];
    run = 0;
  }
  return {
    add(chunk) {
      chunks.push(chunk);
      if (chunk.length > SHORT_BYTES_MAX) run = chunks.length;
      else if (chunks.length - run === SHORT_COUNT_MAX) run = chunks.push(Buffer.concat(chunks.splice(run)));
    },
    isEmpty: () => chunks.length === 0,
    take() {
      const taken = chunks;
      clear();
      return taken.length === 1 ? (taken[0] as Buffer) : Buffer.concat(taken);
    },
    clear,
  };
}

/** Smaller buffers are left to the garbage collector. */
const GIVEN_BACK_BYTES_MIN = 16 * 1024;

/**
 * Frees the memory of these bytes at once, if it is theirs alone and large enough: otherwise V8 frees it with its next
 * collection, which large bodies would trigger again and again (docs/decisions/0062). The bytes are empty afterwards.
 */
export function giveBack({ length, buffer }: Uint8Array): void {
  if (length >= GIVEN_BACK_BYTES_MIN && length === buffer.byteLength) (buffer as ArrayBuffer).transfer(0);
}
