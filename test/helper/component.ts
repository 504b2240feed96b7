import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import type { TestContext } from 'node:test';

/**
 * Returns whether this machine has a real component. If not, the test is skipped, and the end of the run says so; with
 * PURSER_TEST_REQUIRE=all a missing component is a failure.
 */
export function hasComponent(t: Pick<TestContext, 'skip'>, name: string, isThere: () => boolean): boolean {
  if (isThere()) return true;
  assert.notEqual(process.env.PURSER_TEST_REQUIRE, 'all', `${name} is missing, and PURSER_TEST_REQUIRE=all`);
  t.skip(`component missing: ${name}`);
  return false;
}

/** Returns whether a program is on the PATH. */
export function hasProgram(name: string): boolean {
  try {
    execFileSync('sh', ['-c', `command -v ${name}`], { stdio: 'ignore' });
    return true;
  } catch {
    return false;
  }
}
