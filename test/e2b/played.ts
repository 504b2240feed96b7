import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import type { TestServer } from '../helper/server.ts';

/** What a scenario has printed. */
type Played = { name?: string; error?: string; sandbox?: string };

/**
 * Runs a script with E2B's three variables in a process of its own, as Purser replaces classes of the web in this one. Returns the
 * lines that it prints; `hear` gets each as it comes, and the script
 * a line when that is done.
 */
export async function play(
  purser: TestServer,
  token: string,
  script: string,
  hear: (line: Played) => unknown = () => {},
): Promise<Played[]> {
  const child = spawn(process.execPath, [join(import.meta.dirname, 'sdk', script)], {
    stdio: ['pipe', 'pipe', 'inherit'],
    env: {
      PATH: process.env.PATH,
      E2B_API_URL: `${purser.url}/v1/e2b`,
      E2B_SANDBOX_URL: `${purser.url}/v1/e2b/envd`,
      E2B_API_KEY: token,
    },
  });
  const closed = once(child, 'close');
  child.stdin.on('error', () => {}); // Most scripts read nothing, and end.
  const lines: Played[] = [];
  for await (const text of createInterface({ input: child.stdout })) {
    const line = JSON.parse(text) as Played;
    lines.push(line);
    await hear(line);
    child.stdin.write('\n');
  }
  assert.equal((await closed)[0], 0, JSON.stringify(lines));
  return lines;
}

/** Asserts that all scenarios of a script passed, and that there were `count`. */
export function passed(results: readonly Played[], count: number): void {
  assert.deepEqual(
    results.filter((it) => it.error !== undefined),
    [],
  );
  assert.equal(results.length, count);
}
