import assert from 'node:assert/strict';
import test from 'node:test';
import { openTestServer } from '../helper/server.ts';
import { asAccount, asOperator, openBrowser } from './sample.ts';

const keyIn = (html: string) =>
  /action="\/settings\/operator-keys"[\s\S]*?name="key" value="([^"]*)"/.exec(html)?.[1] as string;

test('an operator makes an operator key once, for an account by name, and revokes it', async (t) => {
  const purser = await openTestServer(t);
  const research = await purser.run('account.create', { name: 'research' });
  const browser = await asOperator(purser);
  const order = { name: 'ci <b>', account: 'research', key: keyIn((await browser.get('/settings')).html) };
  const shown = [];
  for (let time = 0; time < 2; time++) {
    const { status, html } = await browser.post('/settings/operator-keys', order);
    assert.equal(status, 200, html);
    shown.push(/cnv_operator_\w{49}/.exec(html)?.[0]);
  }
  const [token] = shown as [string];
  assert.equal(shown[1], token, 'the same form makes one');
  const { keys } = await purser.run('operator-key.list', {});
  const key = keys.find((it) => it.name === 'ci <b>');
  assert.deepEqual([keys.length, key?.account_id], [2, research.id], 'beside that of the test');
  assert.equal((await purser.ask('GET', '/v1/account', { token })).body.available_cents, 0);
  const { html } = await browser.get('/settings');
  assert.match(html, /ci &lt;b&gt;/);
  assert.ok(!html.includes(token));
  assert.equal((await browser.post('/settings/operator-keys', { name: 'x', account: 'reserch' })).status, 404);
  assert.equal((await browser.post('/settings/operator-keys', { name: '', account: 'research' })).status, 400);

  const at = `/settings/operator-keys/${key?.id}/revoke`;
  assert.match((await browser.get(at)).html, /Revoke it for good/);
  assert.equal((await browser.get('/settings/operator-keys/key_x/revoke')).status, 404);
  assert.equal((await browser.post(at)).headers.location, '/settings?done=revoked#operator-keys');
  assert.equal((await purser.ask('GET', '/v1/account', { token })).status, 401);
  assert.deepEqual(purser.problems(), []);
});

test('neither the holder of an account nor a session of an operator key makes one', async (t) => {
  const purser = await openTestServer(t);
  const [key] = (await purser.run('operator-key.list', {})).keys;
  const byKey = openBrowser(purser);
  await byKey.post('/sign-in/key', { key: purser.operatorKey });
  for (const browser of [await asAccount(purser), byKey])
    for (const path of ['/settings/operator-keys', `/settings/operator-keys/${key?.id}/revoke`])
      assert.equal((await browser.post(path, { name: 'x', account: 'default' })).status, 404, path);
  assert.equal((await purser.run('operator-key.list', {})).keys.length, 1);
});
