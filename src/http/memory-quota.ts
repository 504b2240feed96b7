import { Refusal } from '../refusal.ts';

/** Bytes of bodies, output and answers that are kept in memory at this moment, of one caller and of all. */
const HELD_BYTES_MAX = { caller: 64 * 1024 * 1024, all: 256 * 1024 * 1024 };
const RETRY_SECONDS = 2;
const STOPPING_RETRY_SECONDS = 5;

/** What one request keeps in memory. */
export type Allowance = {
  /** So many bytes more of a body. Refuses with `rate_limited` what would be too much. */
  take(bytes: number): void;
  /** The same, but false where it would be too much. */
  tryTake(bytes: number): boolean;
  /** So many bytes more of an answer: it is there, so it is never refused. The caller's next body is. */
  add(bytes: number): void;
  /** So many of these bytes are not kept any more. */
  release(bytes: number): void;
  /** Nothing is kept any more. */
  close(): void;
  /** Reads on, unless `cutOff` comes first. */
  unlessCutOff<T>(read: () => Promise<T>): Promise<T>;
};

/**
 * Counts what callers keep in memory: a body until it was sent on or is done with, the output of a command while it runs,
 * an answer until the client has taken it, listings and unread input of SSH clients. So neither slow senders, nor slow
 * readers, nor many who wait for the same fill the memory.
 */
export type MemoryQuota = {
  open(caller: string): Allowance;
  /** Refuses whatever is still being read; for a server that stops. */
  cutOff(): void;
};

export function createMemoryQuota(): MemoryQuota {
  const byCaller = new Map<string, number>();
  const cuts = new Set<(refusal: Refusal) => void>();
  let all = 0;

  /** When all is full, whoever has less than an even share still gets it: no few callers can shut the others out. */
  const isRoom = (own: number, sum: number, callers: number) =>
    own <= HELD_BYTES_MAX.caller && (sum <= HELD_BYTES_MAX.all || own <= HELD_BYTES_MAX.all / callers);
  const tooMuch = () =>
    new Refusal(
      'rate_limited',
      'Too much is in memory for this caller: bodies that are being worked on, output of commands, and answers that were not read to their end. Retry when some are done.',
      { retryAfterSeconds: RETRY_SECONDS },
    );

  const stopping = () =>
    new Refusal('read_only', 'The server is stopping, and this body has not come to its end. Retry in a moment.', {
      retryAfterSeconds: STOPPING_RETRY_SECONDS,
    });
  async function unlessCutOff<T>(read: () => Promise<T>): Promise<T> {
    const { promise, reject } = Promise.withResolvers<never>();
    cuts.add(reject);
    try {
      return await Promise.race([read(), promise]);
    } finally {
      cuts.delete(reject);
    }
  }

  return {
    cutOff() {
      for (const cut of cuts) cut(stopping());
    },
    open(caller) {
      let kept = 0;
      function add(bytes: number) {
        byCaller.set(caller, (byCaller.get(caller) ?? 0) + bytes);
        all += bytes;
        kept += bytes;
      }
      function tryTake(bytes: number): boolean {
        const before = byCaller.get(caller);
        const callers = byCaller.size + (before === undefined ? 1 : 0);
        if (!isRoom((before ?? 0) + bytes, all + bytes, callers)) return false;
        add(bytes);
        return true;
      }
      function release(most: number) {
        const bytes = Math.min(most, kept); // Whoever has left may still let go of something.
        const left = (byCaller.get(caller) ?? 0) - bytes;
        if (left > 0) byCaller.set(caller, left);
        else byCaller.delete(caller);
        all -= bytes;
        kept -= bytes;
      }
      return {
        take(bytes) {
          if (!tryTake(bytes)) throw tooMuch();
        },
        tryTake,
        add,
        unlessCutOff,
        release,
        close: () => release(kept),
      };
    },
  };
}
