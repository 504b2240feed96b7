import assert from 'node:assert/strict';
import type { TestContext } from 'node:test';
import { COMPONENTS } from '../components.ts';

export { hasProgram } from '../components.ts';

/** A component of the machine that tests of the engines' layer use: a name in test/components.ts. */
export type Component = keyof typeof COMPONENTS;

/** What was found is found: some ask other programs. */
const found = new Map<Component, boolean>();

/**
 * Returns whether this machine has a component. If not, the test is skipped, and the end of the run says so; with
 * PURSER_TEST_REQUIRE=all a missing component is a failure. `alsoIf` tells whether it can be used here, where that takes a
 * trial. Throws in the gate, which does the same on every machine.
 */
export function hasComponent(t: Pick<TestContext, 'skip'>, name: Component, alsoIf = () => true): boolean {
  assert(process.env.PURSER_TEST_LAYER !== 'gate', `${name}: a test of a component belongs into an .engine.test.ts`);
  if (!found.has(name)) found.set(name, COMPONENTS[name].isThere());
  if (found.get(name) && alsoIf()) return true;
  assert.notEqual(process.env.PURSER_TEST_REQUIRE, 'all', `${name} is missing, and PURSER_TEST_REQUIRE=all`);
  t.skip(`component missing: ${name}`);
  return false;
}
