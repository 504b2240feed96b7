import { existsSync } from 'node:fs';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { AGENT_DIRECTORIES } from '../components.ts';
import { hasComponent } from '../helper/component.ts';

/** Returns whether an agent can be run here. */
export const hasAgent = (t: Pick<TestContext, 'skip'>, program: string): boolean =>
  hasComponent(t, 'agents', () => AGENT_DIRECTORIES.some((it) => existsSync(join(it, program))));
