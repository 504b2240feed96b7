import assert from 'node:assert/strict';
import test from 'node:test';
import { createOnce } from '../../src/ui/once.ts';
import { openTestServer } from '../helper/server.ts';
import { asOperator } from './sample.ts';

test('a form of the operator that is sent twice debits once and makes one wallet', async (t) => {
  const purser = await openTestServer(t);
  const browser = await asOperator(purser);
  const keyIn = (html: string) => /name="key" value="([^"]+)"/.exec(html)?.[1] as string;
  const path = `/accounts/${purser.accountId}`;
  const available = async () => (await purser.run('account.show', { id: purser.accountId })).available_cents;
  const before = await available();
  const debit = { amount: '-1', reason: 'by mistake', key: keyIn((await browser.get(path)).html) };
  for (let i = 0; i < 2; i++) {
    const { status, headers } = await browser.post(`${path}/credit`, debit);
    assert.deepEqual([status, headers.location], [303, `${path}?done=debited`]);
  }
  assert.equal(await available(), before - 100);
  assert.equal((await browser.post(`${path}/credit`, { ...debit, amount: '1' })).status, 409, 'the key is of a debit');

  const wallet = { name: 'one', budget: '5', life: '3600', account: purser.accountId };
  const order = { ...wallet, key: keyIn((await browser.get('/wallets/new')).html) };
  const tokens: (string | undefined)[] = [];
  for (let i = 0; i < 2; i++)
    tokens.push(/svc_agent_\w{49}/.exec((await browser.post('/wallets/new', order)).html)?.[0]);
  assert.ok(tokens[0]);
  assert.equal(tokens[1], tokens[0]);
  assert.equal((await purser.run('wallet.list', {})).total, 1);
  assert.equal((await browser.post('/wallets/new', { ...order, budget: '6' })).status, 409);
  assert.deepEqual(purser.problems(), []);
});

test('a form that is sent twice makes one account and one key, and shows it both times', async (t) => {
  const purser = await openTestServer(t);
  const browser = await asOperator(purser);
  const keyIn = (html: string, action: string) =>
    new RegExp(`action="${action}"[^]*?name="key" value="([^"]+)"`).exec(html)?.[1] as string;
  const account = { name: 'once', key: keyIn((await browser.get('/accounts')).html, '/accounts') };
  const [one, two] = await Promise.all([browser.post('/accounts', account), browser.post('/accounts', account)]);
  assert.deepEqual([one.status, two.status], [303, 303]);
  assert.equal(one.headers.location, two.headers.location);
  assert.equal((await purser.run('account.list', {})).accounts.length, 2);
  const again = { name: 'once', key: keyIn((await browser.get('/accounts')).html, '/accounts') };
  assert.equal((await browser.post('/accounts', again)).status, 409, 'another form, and the name is taken');
  assert.equal(
    (await browser.post('/accounts', { ...again, name: 'twice' })).status,
    303,
    'a refused form is sent anew',
  );

  const at = `${one.headers.location}/keys`;
  const order = { name: 'ci', key: keyIn((await browser.get(one.headers.location as string)).html, at) };
  const shown: (string | undefined)[] = [];
  for (let i = 0; i < 2; i++) shown.push(/cnv_live_\w{49}/.exec((await browser.post(at, order)).html)?.[0]);
  assert.ok(shown[0]);
  assert.equal(shown[1], shown[0]);
  assert.equal((await purser.run('key.list', { account: 'once' })).total, 1);
  const other = await asOperator(purser);
  const theirs = /cnv_live_\w{49}/.exec((await other.post(at, order)).html)?.[0];
  assert.notEqual(theirs, shown[0], 'another session does not see it');
});

test('a script that sends one key of its own to the forms of two accounts gets a key of each', async (t) => {
  const purser = await openTestServer(t);
  const browser = await asOperator(purser);
  const other = await purser.run('account.create', { name: 'other', creditCents: 500 });
  const shown: (string | undefined)[] = [];
  for (const id of [purser.accountId, other.id, other.id]) {
    const { html } = await browser.post(`/accounts/${id}/keys`, { name: 'ci', key: 'set-up' });
    shown.push(/cnv_live_\w{49}/.exec(html)?.[0]);
  }
  assert.notEqual(shown[1], shown[0], 'the second account was handed a key to the money of the first');
  assert.equal(shown[2], shown[1], 'the same form of the same account is done once');
  assert.equal((await purser.run('key.list', { account: other.id })).total, 1);
  assert.deepEqual(purser.problems(), []);
});

test('a form that is sent again after a restart makes no second key, and a new one does', async (t) => {
  const purser = await openTestServer(t);
  const browser = await asOperator(purser);
  const at = `/accounts/${purser.accountId}`;
  const formIn = (html: string) => ({
    name: 'again',
    key: new RegExp(`action="${at}/keys"[^]*?name="key" value="([^"]+)"`).exec(html)?.[1] as string,
  });
  const form = formIn((await browser.get(at)).html);
  assert.equal((await browser.post(`${at}/keys`, form)).status, 200);
  const { total } = await purser.run('key.list', { account: purser.accountId });
  await purser.reopen();
  const { status, html } = await browser.post(`${at}/keys`, form);
  assert.equal(status, 409);
  assert.match(html, /restarted since this form was shown/);
  assert.equal((await purser.run('key.list', { account: purser.accountId })).total, total);
  assert.equal((await browser.post(`${at}/keys`, formIn((await browser.get(at)).html))).status, 200);
});

test('a form that is sent again after a minute does nothing, and shows no secret', (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  const once = createOnce();
  const form = new URLSearchParams({ key: once.newKey(), name: 'ci' });
  const visit = {
    viewer: { kind: 'operator', sessionId: 's', passkeyId: null, subject: null },
    path: '/keys',
    form,
  } as const;
  const make = async () => 'secret';
  return once.run(visit, make).then(async (first) => {
    assert.equal(first, 'secret');
    t.mock.timers.tick(60_000);
    assert.throws(() => once.run(visit, make), { code: 'conflict' });
    const failing = { ...visit, form: new URLSearchParams({ key: once.newKey() }) };
    await assert.rejects(once.run(failing, () => Promise.reject(new Error('no'))));
    assert.equal(await once.run(failing, make), 'secret', 'what failed may be sent again');
  });
});
