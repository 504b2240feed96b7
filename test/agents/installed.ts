import { existsSync } from 'node:fs';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { hasComponent, hasProgram } from '../helper/component.ts';

const MODULES = join(import.meta.dirname, 'node_modules');
const PLATFORM = `${process.platform}-${process.arch}`;

/** Where the programs of test/agents/package.json are. Two packages put theirs into place by a script, and none is run here. */
export const DIRECTORIES = [
  join(MODULES, `@anthropic-ai/claude-code-${PLATFORM}`),
  join(MODULES, `opencode-${PLATFORM}/bin`),
  join(MODULES, '.bin'),
];

/** Returns whether an agent can be run here. */
export const hasAgent = (t: Pick<TestContext, 'skip'>, program: string): boolean =>
  hasComponent(t, 'root', () => process.getuid?.() === 0) &&
  hasComponent(t, 'unshare', () => hasProgram('unshare') && hasProgram('ip')) &&
  hasComponent(t, 'an agent of test/agents', () => DIRECTORIES.some((it) => existsSync(join(it, program))));
