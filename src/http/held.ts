import { Refusal } from '../refusal.ts';

/** Bytes of bodies and of answers that requests keep in memory at this moment, of one caller and of all. */
const HELD_BYTES_MAX = { caller: 64 * 1024 * 1024, all: 256 * 1024 * 1024 };
const RETRY_SECONDS = 2;
const STOPPING_RETRY_SECONDS = 5;

/** What one request keeps in memory. */
export type Share = {
  /** So many bytes more of a body. Refuses with `rate_limited` what would be too much. */
  take(bytes: number): void;
  /** So many bytes more of an answer: it is there, so it is never refused. The caller's next body is. */
  add(bytes: number): void;
  /** Nothing is kept any more. */
  leave(): void;
  /** Reads on, unless `cutOff` comes first. */
  unlessCutOff<T>(read: () => Promise<T>): Promise<T>;
};

/**
 * Counts what requests keep: a body until it was sent on or is done with, an answer until the client has taken it. So
 * neither slow senders, nor slow readers, nor many who wait for the same fill the memory.
 */
export type Held = {
  enter(caller: string): Share;
  /** Refuses whatever is still being read; for a server that stops. */
  cutOff(): void;
};

export function createHeld(): Held {
  const byCaller = new Map<string, number>();
  const cuts = new Set<(refusal: Refusal) => void>();
  let all = 0;

  /** When all is full, whoever has less than an even share still gets it: no few callers can shut the others out. */
  function refuseTooMuch(own: number, sum: number, callers: number): void {
    if (own <= HELD_BYTES_MAX.caller && (sum <= HELD_BYTES_MAX.all || own <= HELD_BYTES_MAX.all / callers)) return;
    throw new Refusal(
      'rate_limited',
      'Too much is in memory for this caller: bodies that are being worked on, and answers that were not read to their end. Retry when some are done.',
      { retryAfterSeconds: RETRY_SECONDS },
    );
  }

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
    enter(caller) {
      let kept = 0;
      function add(bytes: number) {
        byCaller.set(caller, (byCaller.get(caller) ?? 0) + bytes);
        all += bytes;
        kept += bytes;
      }
      return {
        take(bytes) {
          const before = byCaller.get(caller);
          const callers = byCaller.size + (before === undefined ? 1 : 0);
          refuseTooMuch((before ?? 0) + bytes, all + bytes, callers);
          add(bytes);
        },
        add,
        unlessCutOff,
        leave() {
          const left = (byCaller.get(caller) ?? 0) - kept;
          if (left > 0) byCaller.set(caller, left);
          else byCaller.delete(caller);
          all -= kept;
          kept = 0;
        },
      };
    },
  };
}
