const BLOCK_BYTES = { least: 4 * 1024, most: 64 * 1024 };

/** Bytes that arrive in pieces of any size. */
export type Pieces = {
  /** Copies a piece. */
  add(piece: Buffer): void;
  length(): number;
  /** Everything so far, in one buffer. */
  whole(): Buffer;
  /** Lets go of everything. */
  clear(): void;
};

/**
 * Collects bytes in blocks. A list of the pieces themselves would cost an object of more than a hundred bytes for each,
 * so whoever sends one byte at a time would fill the memory with a hundred times of what is counted.
 * `announced` is how many bytes are expected, where that is known.
 */
export function collectPieces(announced = 0): Pieces {
  let full: Buffer[] = [];
  let block = Buffer.allocUnsafe(announced);
  let used = 0;
  let length = 0;
  return {
    add(piece) {
      for (let at = 0; at < piece.length; ) {
        if (used === block.length) {
          if (used) full.push(block);
          block = Buffer.allocUnsafeSlow(Math.min(Math.max(length, BLOCK_BYTES.least), BLOCK_BYTES.most));
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
