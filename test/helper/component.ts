import assert from 'node:assert/strict';
import type { TestContext } from 'node:test';
import { COMPONENTS } from '../components.ts';

export { hasProgram } from '../components.ts';

/** A component of the machine that tests of the engines' layer and of the soak use: a name in test/components.ts. */
export type Component = keyof typeof COMPONENTS;

/** Cached, as some checks call other programs. */
const found = new Map<Component, boolean>();

/**
 * Returns whether this machine has a component. If not, the test is skipped, and the end of the run reports it; with
 * PURSER_TEST_REQUIRE=all a missing component is a failure. `alsoIf` returns whether the component can be used here, where
 * only a trial can show that. Throws in the gate, which does the same on every machine.
 */
export function hasComponent(t: Pick<TestContext, 'skip'>, name: Component, alsoIf = () => true): boolean {
  assert(process.env.PURSER_TEST_LAYER !== 'gate', `${name}: a test of a component belongs into an .engine.test.ts`);
  if (!found.has(name)) found.set(name, COMPONENTS[name].isThere());
  if (found.get(name) && alsoIf()) return true;
  assert.notEqual(process.env.PURSER_TEST_REQUIRE, 'all', `${name} is missing, and PURSER_TEST_REQUIRE=all`);
  t.skip(`component missing: ${name}`);
  return false;
}
