import type { UpstreamConfig } from '../config/router.ts';

/** Seconds that the rest of a call may take after `endSoon`. */
const END_SECONDS = 2;

/** The time limits of one call: to its first byte, and as a whole. */
export type CallLimits = {
  firstByte(): void;
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
  const whole = after(config.timeout_seconds, 'no answer');
  const first =
    config.first_byte_timeout_seconds === undefined
      ? undefined
      : after(config.first_byte_timeout_seconds, 'no first byte');
  return {
    firstByte() {
      clearTimeout(first);
      onByte();
    },
    endSoon() {
      end ??= after(END_SECONDS, 'no end');
    },
    exceeded: () => exceeded,
    clear() {
      clearTimeout(whole);
      clearTimeout(first);
      clearTimeout(end);
    },
  };
}
