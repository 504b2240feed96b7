import type { TestContext } from 'node:test';
import { waitFor } from './waiting.ts';

/** Time limits of the product that expire when the test says so. */
export type HeldTimeouts = {
  /** Resolves when the product has set this many of them. */
  set(count: number): Promise<void>;
  /** Returns how many it has set. */
  count(): number;
  /** Expires those that have been set so far. */
  expire(): void;
};

/**
 * Makes every `AbortSignal.timeout(milliseconds)` of this test last until the test expires it: the test does not wait for the
 * product's own limit, and a busy machine does not reach it. Other limits are unchanged.
 */
export function holdTimeouts(t: TestContext, milliseconds: number): HeldTimeouts {
  const real = AbortSignal.timeout.bind(AbortSignal);
  const held: AbortController[] = [];
  const waiting = new Set<() => void>();
  t.mock.method(AbortSignal, 'timeout', (asked: number) => {
    if (asked !== milliseconds) return real(asked);
    const controller = new AbortController();
    held.push(controller);
    for (const look of waiting) look();
    return controller.signal;
  });
  return {
    set: (count) =>
      waitFor(
        () => `${count} limits of ${milliseconds} ms are set; there are ${held.length}`,
        new Promise((resolve) => {
          const look = () => held.length >= count && resolve();
          waiting.add(look);
          look();
        }),
      ),
    count: () => held.length,
    expire() {
      for (const it of held) it.abort(new DOMException('The operation was aborted due to timeout', 'TimeoutError'));
    },
  };
}
