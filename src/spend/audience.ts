/** Seconds after which a client that was asked to come back is expected. */
export const COME_BACK_SECONDS = 5;

/** Calls the listener when a client's response is over, at once if it already is. The argument is whether all of it was sent. */
export type OnResponseEnd = (listener: (isDelivered: boolean) => void) => void;

/** The clients that wait for an attempt. */
export type Audience = {
  /**
   * Counts a client until its response is over. A client that got a whole response before the attempt ended was asked to come back:
   * it counts until it has had time for that. Without `onResponseEnd` the client counts for good.
   */
  admit(onResponseEnd: OnResponseEnd | undefined): void;
  /**
   * Calls `listener` once there has been no client for `patience` seconds, read when the last client leaves, or now if there is
   * none; undefined means no limit. Returns a function that ends the watch. There is one at a time.
   */
  watch(patience: () => number | undefined, listener: () => void): () => void;
  /** Returns whether the attempt has been given up: a watch ended without a client. */
  isGivenUp(): boolean;
  /**
   * Calls `listener` when the attempt has ended and the responses to all of its clients are over. Only one may be set at a
   * time.
   */
  whenServed(listener: () => void): void;
  /** Records that the attempt has ended, and ends the watch. */
  close(): void;
};

/** Creates an audience without clients. */
export function createAudience(): Audience {
  let count = 0;
  /** Clients whose response is not over: an answer stays in memory until the last of them has read it. */
  let unservedCount = 0;
  let served = () => {};
  let watched: { patience: () => number | undefined; listener: () => void } | undefined;
  let stopWaiting = () => {};
  let isGivenUp = false;
  let isClosed = false;

  /** Calls `run` after `seconds`, without keeping the process alive. Returns a function that prevents it. */
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
    admit(onResponseEnd) {
      count++;
      if (onResponseEnd) unservedCount++;
      stopWaiting();
      onResponseEnd?.((isDelivered) => {
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

/**
 * Begins a wait. It is over once: by its `end`, at its limit (`late`), or when its clients have gone and not come back within the
 * seconds that `patience` returns (`left`). `over` is called first, and then the promise resolves.
 */
export function beginWait<How>(
  audience: Audience,
  limit: AbortSignal,
  patience: () => number,
  over: () => void,
): { ended: Promise<How | 'late' | 'left'>; end(how: How | 'late' | 'left'): void } {
  const { promise: ended, resolve } = Promise.withResolvers<How | 'late' | 'left'>();
  const late = () => end('late');
  const stopWatching = audience.watch(patience, () => end('left'));
  limit.addEventListener('abort', late);
  const end = (how: How | 'late' | 'left') => {
    over();
    limit.removeEventListener('abort', late);
    stopWatching();
    resolve(how);
  };
  return { ended, end };
}
