import { type ChildProcess, spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { delimiter, join } from 'node:path';
import type { TestContext } from 'node:test';
import { hasComponent } from '../helper/component.ts';

/**
 * npm has it for Linux on x64 alone. So it is an optional dependency: a machine of another kind installs without it, which
 * npm would refuse for one that is in devDependencies.
 */
const PACKAGE = join(import.meta.dirname, '../../node_modules/@flydotio/litestream-linux-x64/litestream');

/** Litestream itself: from the PATH, or from the package. Undefined, and the test skipped, where there is none. */
export function findLitestream(t: TestContext): string | undefined {
  const places = (process.env.PATH ?? '').split(delimiter).map((it) => join(it, 'litestream'));
  const found = [...places, PACKAGE].find((it) => existsSync(it));
  return hasComponent(t, 'litestream', () => found !== undefined) ? found : undefined;
}

/** Starts a program that runs until it is told to end; at the latest with the test. */
export function startBeside(t: TestContext, command: readonly [string, ...string[]], env = process.env): ChildProcess {
  const child = spawn(command[0], command.slice(1), { stdio: 'ignore', env });
  t.after(() => end(child));
  return child;
}

export async function end(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const ended = new Promise((resolve) => child.once('close', resolve));
  child.kill('SIGTERM');
  await ended;
}
