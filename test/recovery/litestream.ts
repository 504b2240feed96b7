import { type ChildProcess, spawn } from 'node:child_process';
import type { TestContext } from 'node:test';
import { findLitestream } from '../components.ts';
import { hasComponent } from '../helper/component.ts';

/** Litestream's path. Undefined, and the test skipped, where there is none. */
export const litestreamFor = (t: TestContext): string | undefined =>
  hasComponent(t, 'litestream') ? findLitestream() : undefined;

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
