import { Refusal } from '../base/refusal.ts';
import { createShares } from '../base/shares.ts';

/** Maximum bytes of bodies, output and responses in memory at a time, for one caller and for all. */
const BYTES_MAX = { each: 64 * 1024 * 1024, all: 256 * 1024 * 1024 };
const RETRY_SECONDS = 2;
const STOPPING_RETRY_SECONDS = 5;

/** Counts the memory that one request uses. */
export type Allowance = {
  /** Adds bytes of a body. Throws `rate_limited` when they exceed the quota. */
  take(bytes: number): void;
  /** Like `take`, but returns false instead of throwing. */
  tryTake(bytes: number): boolean;
  /** Adds bytes of a response. Never refuses, as the response exists; the caller's next body may be refused instead. */
  add(bytes: number): void;
  /** Subtracts bytes that are no longer in memory. */
  release(bytes: number): void;
  /** Releases all bytes. */
  close(): void;
  /** Calls `refuse` with `read_only` when `cutOff` is called. Returns a function that removes `refuse`. */
  onCutOff(refuse: (refusal: Refusal) => void): () => void;
};

/**
 * Limits the memory that callers use: for bodies until they have been forwarded or processed, the output of running commands,
 * responses until they have been read, and listings and unread input of SSH clients. Neither slow senders nor slow readers nor many
 * concurrent requests can exhaust memory.
 */
export type MemoryQuota = {
  open(caller: string): Allowance;
  /** Refuses every body that is being read with `read_only`, for a server that is stopping. */
  cutOff(): void;
};

/** Creates the quota of one server, with nothing in use. */
export function createMemoryQuota(): MemoryQuota {
  const shares = createShares(BYTES_MAX);
  const pending = new Set<(refusal: Refusal) => void>();

  const tooMuch = () =>
    new Refusal(
      'rate_limited',
      'This caller uses too much memory: request bodies in progress, command output, and responses that have not been read. Retry when some are done.',
      { retryAfterSeconds: RETRY_SECONDS },
    );

  const stopping = () =>
    new Refusal('read_only', 'The server is stopping, and this body is not complete. Retry in a moment.', {
      retryAfterSeconds: STOPPING_RETRY_SECONDS,
    });
  function onCutOff(refuse: (refusal: Refusal) => void): () => void {
    pending.add(refuse);
    return () => pending.delete(refuse);
  }

  return {
    cutOff() {
      for (const refuse of pending) refuse(stopping());
    },
    open(caller) {
      let used = 0;
      function add(bytes: number) {
        shares.add(caller, bytes);
        used += bytes;
      }
      function tryTake(bytes: number): boolean {
        if (!shares.tryTake(caller, bytes)) return false;
        used += bytes;
        return true;
      }
      function release(wanted: number) {
        const bytes = Math.min(wanted, used); // A caller may release something after it has closed.
        if (bytes) shares.release(caller, bytes);
        used -= bytes;
      }
      return {
        take(bytes) {
          if (!tryTake(bytes)) throw tooMuch();
        },
        tryTake,
        add,
        onCutOff,
        release,
        close: () => release(used),
      };
    },
  };
}
