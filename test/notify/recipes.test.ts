import assert from 'node:assert/strict';
import test from 'node:test';
import { openReceiver } from '../helper/receiver.ts';
import { openTestServer } from '../helper/server.ts';
import { recipe } from './recipes-shared.ts';

// The recipes of docs/events.md, as they are written there, against small receivers on loopback.

test('ntfy: a sentence, as text', async (t) => {
  const receiver = await openReceiver(t);
  const events = recipe('ntfy', { 'https://ntfy.example': receiver.url });
  const purser = await openTestServer(t, { settings: { events } });
  const { id } = await purser.openWallet({ name: 'agent 7' });
  await purser.run('wallet.freeze', { id });
  await receiver.until(() => receiver.got.length === 1);
  const [got] = receiver.got;
  assert.equal(got?.text, `No new holds: wallet agent 7 (${id}) is frozen.`);
  assert.match(got?.path ?? '', /^\/purser-/);
  assert.match(got?.headers['content-type'] ?? '', /^text\/plain/);
});

test('Slack: a JSON object with the member text', async (t) => {
  const receiver = await openReceiver(t);
  const hook = `${receiver.url}/services/T0/B0/canary`;
  const purser = await openTestServer(t, { settings: { events: recipe('Slack', {}, { SLACK_HOOK: hook }) } });
  const { id } = await purser.openWallet({ name: 'agent 7' });
  await purser.run('wallet.freeze', { id });
  await receiver.until(() => receiver.got.length === 1);
  assert.deepEqual(JSON.parse(receiver.got[0]?.text as string), {
    text: `No new holds: wallet agent 7 (${id}) is frozen.`,
  });
  assert.equal(receiver.got[0]?.path, '/services/T0/B0/canary');
});
