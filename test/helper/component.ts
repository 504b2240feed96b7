import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import type { TestContext } from 'node:test';

/**
 * Whether a real component is on this machine. Where it is not, the test is skipped and the last lines of the run say so;
 * with PURSER_TEST_REQUIRE=all a missing component is a failure.
 */
export function hasComponent(t: Pick<TestContext, 'skip'>, name: string, isThere: () => boolean): boolean {
  if (isThere()) return true;
  assert.notEqual(process.env.PURSER_TEST_REQUIRE, 'all', `${name} is missing, and PURSER_TEST_REQUIRE=all`);
  t.skip(`component missing: ${name}`);
  return false;
}

/** Whether a program can be found. */
export function hasProgram(name: string): boolean {
  try {
    execFileSync('sh', ['-c', `command -v ${name}`], { stdio: 'ignore' });
    return true;
  } catch {
    return false;
  }
}
