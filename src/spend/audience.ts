/** Seconds after which a client that was told to come back is expected. */
export const COME_BACK_SECONDS = 5;

/** Calls the listener when a client's response is over, at once if it already is, and says whether all of it was sent. */
export type WhenOver = (listener: (isDelivered: boolean) => void) => void;

/** The clients that wait for an attempt. */
export type Audience = {
  /**
   * Counts a client until its response is over. One that got a whole response while the attempt goes on was told to come
   * back: it counts until it can have done so. Without `whenOver` the client counts for good.
   */
  admit(whenOver: WhenOver | undefined): void;
  /**
   * Calls `listener` once nobody has been there for some seconds. `patience` says how many when the last client leaves, or
   * now where there is none; undefined is for ever. Returns what ends the watch, of which there is one at a time.
   */
  watch(patience: () => number | undefined, listener: () => void): () => void;
  /** Returns whether the attempt has been given up: a watch found that nobody came back. */
  isGivenUp(): boolean;
  /** Calls `listener` when the attempt has ended and the responses to all of its clients are over. One may be set at a time. */
  whenServed(listener: () => void): void;
  /** Says that the attempt has ended: nobody is waited for any more. */
  close(): void;
};

/** Creates an audience with nobody in it. */
export function createAudience(): Audience {
  let count = 0;
  /** Clients whose response is not over: an answer stays in memory until the last of them has taken it. */
  let unservedCount = 0;
  let served = () => {};
  let watched: { patience: () => number | undefined; listener: () => void } | undefined;
  let stopWaiting = () => {};
  let isGivenUp = false;
  let isClosed = false;

  /** Runs after so many seconds, which keep no process alive. Returns what prevents it. */
  function after(seconds: number, run: () => void): () => void {
    const limit = AbortSignal.timeout(seconds * 1000);
    limit.addEventListener('abort', run, { once: true });
    return () => limit.removeEventListener('abort', run);
  }

  function waitIfDeserted(): void {
    const seconds = count === 0 ? watched?.patience() : undefined;
    if (seconds === undefined) return;
    stopWaiting = after(seconds, () => {
      isGivenUp = true;
      watched?.listener();
    });
  }

  function leave(): void {
    count--;
    waitIfDeserted();
  }

  function tellServed(): void {
    if (isClosed && unservedCount === 0) served();
  }

  return {
    admit(whenOver) {
      count++;
      if (whenOver) unservedCount++;
      stopWaiting();
      whenOver?.((isDelivered) => {
        unservedCount--;
        if (isClosed) return tellServed();
        if (isDelivered) after(COME_BACK_SECONDS, leave);
        else leave();
      });
    },
    watch(patience, listener) {
      watched = { patience, listener };
      waitIfDeserted();
      return () => {
        watched = undefined;
        stopWaiting();
      };
    },
    isGivenUp: () => isGivenUp,
    whenServed(listener) {
      served = listener;
    },
    close() {
      isClosed = true;
      watched = undefined;
      stopWaiting();
      tellServed();
    },
  };
}
