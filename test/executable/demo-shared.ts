import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { chmodSync, mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { Agent } from 'undici';
import { ask, installation } from '../helper/executable.ts';
import { waitFor } from '../helper/waiting.ts';

export type DemoOptions = { command?: readonly string[]; env?: Record<string, string> };

/** The demo in a place of its own: all that it makes is made there. */
export function place(t: TestContext, { command, env }: DemoOptions = {}) {
  const directory = mkdtempSync(join(tmpdir(), 'purser-executable-demo-'));
  chmodSync(directory, 0o777); // Whoever runs it.
  const purser = installation(t, {
    directory,
    settings: null,
    globals: [],
    env: { TMPDIR: directory, ...env },
    ...(command ? { command } : {}),
  });
  function start(...args: string[]) {
    const { child, output, ended } = purser.launch('demo', ...args);
    /** Resolves as soon as it has printed this. */
    const printed = (text: string | RegExp) =>
      waitFor(
        () => `the demo prints ${text}: ${output.stdout}${output.stderr}`,
        new Promise<string>((resolve, reject) => {
          const check = () => output.stdout.match(text) && resolve(output.stdout);
          child.stdout?.on('data', check);
          check();
          void ended.then(() => reject(new Error(`the demo ended without ${text}: ${output.stdout}${output.stderr}`)));
        }),
      );
    return { child, output, ended: waitFor(() => `the demo ends: ${output.stdout}`, ended), printed };
  }
  return { directory, purser, start };
}

/** A demo that keeps serving, and its wallet. */
export async function startServing(t: TestContext) {
  const canary = `canary-${randomBytes(8).toString('hex')}`;
  const { directory, start } = place(t, { env: { PURSER_MASTER_KEY: canary, CANARY: canary } });
  const demo = start();
  const said = await demo.printed(/wallet token {2}\S+\n[\s\S]*OpenAI SDK/);
  const [, url] = /base URL\s+(\S+)/.exec(said) as unknown as [string, string];
  const [, token] = /wallet token\s+(\S+)/.exec(said) as unknown as [string, string];
  const agent = new Agent();
  t.after(() => agent.destroy());
  const compute = async (what: string, body: object) =>
    (await ask(agent, url, 'POST', `/v1/compute/${what}`, { token, key: randomBytes(8).toString('hex'), body })).body;
  /** A lease with processes in it that try to stay. */
  async function rent(provider: string, spec: object): Promise<string> {
    const { id } = await compute('create', { provider, spec: { ...spec, max_seconds: 600 } });
    const command = 'setsid sleep 5151 >/dev/null 2>&1 & nohup sleep 5151 >/dev/null 2>&1 & true';
    assert.equal((await compute('exec', { id, command })).exit_code, 0);
    return id;
  }
  return { directory, demo, said, canary, compute, rent };
}
