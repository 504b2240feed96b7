import type { TestContext } from 'node:test';

/**
 * Makes every `AbortSignal.timeout(milliseconds)` of this test end after `shortened` milliseconds instead, so that nobody
 * waits for the product's own limit. Other limits stay. Answers how many signals it has shortened so far.
 */
export function shortenTimeout(t: TestContext, milliseconds: number, shortened = 200): () => number {
  const real = AbortSignal.timeout.bind(AbortSignal);
  let count = 0;
  t.mock.method(AbortSignal, 'timeout', (asked: number) => {
    if (asked !== milliseconds) return real(asked);
    count++;
    return real(shortened);
  });
  return () => count;
}
