import { after, before, type TestContext } from 'node:test';

/**
 * Called in a suite: opens something before its tests, and closes it after them. Returns a function that returns it. For tests
 * that leave a server as they found it: a start takes longer than most of what they ask.
 */
export function openedOnce<T>(open: (t: Pick<TestContext, 'after'>) => Promise<T>): () => T {
  const ends: (() => unknown)[] = [];
  let opened: T;
  before(async () => {
    opened = await open({ after: ((end: () => unknown) => ends.push(end)) as unknown as TestContext['after'] });
  });
  after(async () => {
    for (const end of ends) await end();
  });
  return () => opened;
}
