import type { UpstreamConfig } from '../config/router.ts';

/** Seconds that the rest of a call may take after `endSoon`. */
const END_SECONDS = 2;

/** The time limits of one call: to its first byte, and as a whole. */
export type CallLimits = {
  firstByte(): void;
  /**
   * Follows the wait of an answer for its room, during which its server stands still: the wait and the rest of the call may each
   * take as long as a whole call. Resolves when the wait is over.
   */
  holdBack(wait: Promise<void>): Promise<void>;
  /** Returns whether the answer has waited for its room: its server works then, however the call ends. */
  wasHeldBack(): boolean;
  /** Limits the rest of the call to two seconds. */
  endSoon(): void;
  exceeded(): string | undefined;
  clear(): void;
};

/** Starts the limits of one call. `abort` is called when one is exceeded, `onByte` with each first byte. */
export function startLimits(config: UpstreamConfig, abort: () => void, onByte: () => void): CallLimits {
  let exceeded: string | undefined;
  const after = (seconds: number, what: string) =>
    // The connection keeps the process alive while needed; the limit of a call that is no longer followed must not.
    setTimeout(() => {
      exceeded = `${what} within ${seconds} s`;
      abort();
    }, seconds * 1000).unref();
  let end: NodeJS.Timeout | undefined;
  let hasEnded = false;
  let wasHeldBack = false;
  let whole = after(config.timeout_seconds, 'no answer');
  const restart = (what: string) => {
    if (hasEnded) return;
    clearTimeout(whole);
    whole = after(config.timeout_seconds, what);
  };
  const first =
    config.first_byte_timeout_seconds === undefined
      ? undefined
      : after(config.first_byte_timeout_seconds, 'no first byte');
  return {
    firstByte() {
      clearTimeout(first);
      onByte();
    },
    async holdBack(wait) {
      wasHeldBack = true;
      restart('no room for its answer');
      await wait;
      restart('no end of its answer');
    },
    wasHeldBack: () => wasHeldBack,
    endSoon() {
      end ??= after(END_SECONDS, 'no end');
    },
    exceeded: () => exceeded,
    clear() {
      hasEnded = true;
      clearTimeout(whole);
      clearTimeout(first);
      clearTimeout(end);
    },
  };
}
