import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import test, { type TestContext } from 'node:test';
import { hasComponent } from '../helper/component.ts';
import type { TestServer } from '../helper/server.ts';
import { openLeaseServer } from '../lease/docker-leases.ts';
import { LONG } from '../lease/leases.ts';
import { TEMPLATES } from './shared.ts';

/** A server with containers of a real engine; undefined, and the test skipped, without that or without E2B's SDK. */
const openReal = async (t: TestContext) =>
  hasComponent(t, 'e2b') ? openLeaseServer(t, { settings: { compute: { templates: TEMPLATES } } }) : undefined;

/** Runs scenarios in a process with E2B's three variables. Purser replaces classes of the web in this one. */
async function play(purser: TestServer, token: string, ...args: string[]) {
  const child = spawn(process.execPath, [join(import.meta.dirname, 'sdk/scenarios.mjs'), ...args], {
    stdio: ['ignore', 'pipe', 'inherit'],
    env: {
      PATH: process.env.PATH,
      E2B_API_URL: `${purser.url}/v1/e2b`,
      E2B_SANDBOX_URL: `${purser.url}/v1/e2b/envd`,
      E2B_API_KEY: token,
    },
  });
  const [output, [code]] = await Promise.all([text(child.stdout), once(child, 'close')]);
  assert.equal(code, 0, output);
  return output
    .trim()
    .split('\n')
    .map((it) => JSON.parse(it) as { name?: string; error?: string; sandbox?: string });
}

test('E2B’s SDK, unmodified, works in sandboxes of a real engine whose image has no bash', async (t) => {
  const purser = await openReal(t);
  if (!purser) return;
  const { token } = await purser.openWallet({ ...LONG, expires_in_seconds: 172_800 });
  const results = await play(purser, token, 'all');
  assert.deepEqual(
    results.filter((it) => it.error !== undefined),
    [],
  );
  assert.equal(results.length, 14);
  await purser.app.reaper.runOnce();
  assert.deepEqual(await purser.machines(), []);
  assert.deepEqual(purser.problems(), []);
});

test('a sandbox outlives a restart of the server, and its client connects to it again', async (t) => {
  const purser = await openReal(t);
  if (!purser) return;
  const { token } = await purser.openWallet(LONG);
  const [left] = await play(purser, token, 'leave');
  await purser.reopen();
  const [after] = await play(purser, token, 'after a restart', left?.sandbox as string);
  assert.equal(after?.error, undefined);
});
