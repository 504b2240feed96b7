import type { TestContext } from 'node:test';

/**
 * Makes every `AbortSignal.timeout(milliseconds)` of this test end after `shortened` milliseconds instead, so that the test
 * does not wait for the product's own limit. Other limits stay. Returns a function that tells how many it has shortened.
 */
export function shortenTimeout(t: TestContext, milliseconds: number, shortened = 2000): () => number {
  const real = AbortSignal.timeout.bind(AbortSignal);
  let count = 0;
  t.mock.method(AbortSignal, 'timeout', (asked: number) => {
    if (asked !== milliseconds) return real(asked);
    count++;
    return real(shortened);
  });
  return () => count;
}
