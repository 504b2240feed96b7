import assert from 'node:assert/strict';
import test, { type TestContext } from 'node:test';
import { hasComponent } from '../helper/component.ts';
import { freePort } from '../helper/free-port.ts';
import { openLeaseServer } from '../lease/docker-leases.ts';
import { LONG } from '../lease/leases.ts';
import { passed, play } from './played.ts';
import { TEMPLATES } from './shared.ts';

/** Leaves room for sandboxes whose time is over: no reaper runs beside a test. */
function withRoom(settings: Record<string, any>): Record<string, unknown> {
  settings.compute.provider_three.offers[0].count = 8;
  return settings;
}

/** A server with containers of a real engine; undefined, and the test skipped, without that or without E2B's SDK. */
const openReal = async (t: TestContext, settings: Record<string, unknown> = {}) =>
  hasComponent(t, 'e2b')
    ? openLeaseServer(t, { settings: { compute: { templates: TEMPLATES }, ...settings }, change: withRoom })
    : undefined;

test('E2B’s SDK, unmodified, works in sandboxes of a real engine whose image has no bash', async (t) => {
  const purser = await openReal(t);
  if (!purser) return;
  const { token } = await purser.openWallet({ ...LONG, expires_in_seconds: 172_800 });
  passed(await play(purser, token, 'scenarios.mjs'), 21);
  await purser.app.reaper.runOnce();
  assert.deepEqual(await purser.machines(), []);
  assert.deepEqual(purser.problems(), []);
});

test('a restart of the server in the middle ends commands, and neither sandboxes nor their tokens', async (t) => {
  const purser = await openReal(t, { listen: `127.0.0.1:${await freePort()}` });
  if (!purser) return;
  const { token } = await purser.openWallet(LONG);
  const restart = ({ sandbox }: { sandbox?: string }) => (sandbox === undefined ? undefined : purser.reopen());
  const results = await play(purser, token, 'restart.mjs', restart);
  passed(results, 2);
});

test('the client of OpenAI’s Agents SDK for E2B, unmodified, works in a sandbox', async (t) => {
  const purser = await openReal(t);
  if (!purser) return;
  const { token } = await purser.openWallet(LONG);
  passed(await play(purser, token, 'openai.mjs'), 3);
  await purser.app.reaper.runOnce();
  assert.deepEqual(await purser.machines(), []);
});

test('a tool of the AI SDK, unmodified, works in a sandbox', async (t) => {
  const purser = await openReal(t);
  if (!purser) return;
  const { token } = await purser.openWallet(LONG);
  passed(await play(purser, token, 'ai.mjs'), 1);
});
