import assert from 'node:assert/strict';
import test from 'node:test';
import type { Statement } from 'better-sqlite3';
import { createKey, listKeys, listOperatorKeys, revokeKey } from '../../src/access/keys.ts';
import { changeBudget } from '../../src/ledger/wallet-change.ts';
import { writeWith } from '../helper/closures.ts';
import { length } from '../helper/random.ts';
import { openTestServer } from '../helper/server.ts';
import { asAccount, asOperator, type Browser, openMany } from './sample.ts';

/** The fast tests take fewer. */
const WALLET_COUNT = length(1500, 10_500);
/** Processor time: far above what a page takes (some 20 ms), and far below what reading each wallet by itself would. */
const PAGE_MILLISECONDS_MAX = 1000;

test(`${WALLET_COUNT} wallets make no page slow or long, and each is found by page, state and name`, async (t) => {
  const purser = await openTestServer(t, { creditCents: 2 * WALLET_COUNT * 100 });
  await openMany(purser, WALLET_COUNT, (at) => `agent-${at}`);
  const browser = await asOperator(purser);
  for (const path of [
    '/',
    '/wallets',
    '/wallets?state=frozen',
    '/wallets?name=agent-77',
    '/wallets?sort=-last',
    `/wallets?sort=available&from=${WALLET_COUNT - 60}`,
    '/accounts',
    `/accounts/${purser.accountId}`,
    '/spend',
    '/journal',
  ]) {
    const times: number[] = [];
    let length = 0;
    for (let i = 0; i < 3; i++) {
      const begun = process.cpuUsage();
      const { status, html } = await browser.get(path);
      const { user, system } = process.cpuUsage(begun);
      times.push((user + system) / 1000);
      assert.equal(status, 200, path);
      length = html.length;
    }
    t.diagnostic(`${path}: ${Math.min(...times).toFixed(0)} ms, ${(length / 1024).toFixed(0)} KB`);
    assert.ok(Math.min(...times) < PAGE_MILLISECONDS_MAX, `${path} takes ${Math.min(...times)} ms`);
    assert.ok(length < 150 * 1024, `${path} has ${length} characters`);
  }
  const { html: sorted } = await browser.get('/wallets?sort=name');
  assert.equal(sorted.includes('Of the newest 10,000 alone'), WALLET_COUNT > 10_000);
  assert.equal((await browser.get('/wallets?sort=name&from=10000')).html.includes('No wallet is like that'), true);
  const names = (html: string) => [...html.matchAll(/>(agent-\d+)</g)].map(([, name]) => name);
  const { html: first } = await browser.get('/wallets');
  assert(first.includes(`50 of ${WALLET_COUNT.toLocaleString('en')}`));
  const older = /href="([^"]+)">Older</.exec(first)?.[1] as string;
  const { html: second } = await browser.get(older.replaceAll('&amp;', '&'));
  assert.equal(names(first).length, 50);
  assert.deepEqual(names(second).length, 50);
  assert.ok(!names(second).some((name) => names(first).includes(name)), 'a page repeats another');
  assert.deepEqual(names((await browser.get('/wallets?name=agent-1234')).html), ['agent-1234']);
});

test('an account may make any number of keys: a page reads those that it shows, and each key is found', async (t) => {
  const purser = await openTestServer(t);
  const KEY_COUNT = 300;
  const order = { kind: 'account' as const, accountId: purser.accountId, mintedBy: 'session' };
  await writeWith(purser.app.ledger, (tx) => {
    for (let i = 0; i < KEY_COUNT; i++) {
      const { key } = createKey(tx, { ...order, name: `key-${i}` }, 1);
      if (i % 2) revokeKey(tx, key.id, 'account', 1);
    }
  });
  const oldest = listKeys(purser.app.ledger.read, purser.accountId, { limit: 1000 }).find((it) => it.name === 'key-0');
  const statements: { all: (this: Statement, ...values: unknown[]) => unknown[] } = Object.getPrototypeOf(
    purser.app.ledger.client.prepare('select 1'),
  );
  const { all } = statements;
  t.after(() => Object.assign(statements, { all }));
  let most = 0;
  statements.all = function (...values) {
    const rows = all.apply(this, values);
    most = Math.max(most, rows.length);
    return rows;
  };
  const names = (html: string) => [...html.matchAll(/>(key-\d+)</g)].map(([, name]) => name);
  const operator = await asOperator(purser);
  const of = async (browser: Browser, path: string) => {
    const { status, html } = await browser.get(path);
    assert.equal(status, 200, path);
    return html;
  };
  const account = await asAccount(purser);
  const [first, second] = [await of(account, '/keys'), await of(account, '/keys?keys=25')];
  assert.deepEqual([names(first)[0], names(second)[0]], ['key-299', 'key-274']);
  assert.deepEqual(names(await of(account, '/keys?keys=1e300')), []);
  const valid = await of(operator, `/accounts/${purser.accountId}?keys=25`);
  assert.deepEqual([names(valid)[0], names(valid).length], ['key-248', 25]);
  const asked = await of(operator, `/accounts/${purser.accountId}/keys/${oldest?.id}/revoke`);
  assert.match(asked, /Revoke key-0/);
  const [operatorsOwn] = listOperatorKeys(purser.app.ledger.read);
  const other = await operator.get(`/accounts/${purser.accountId}/keys/${operatorsOwn?.id}/revoke`);
  assert.equal(other.status, 404, 'an operator key is none of the account');
  assert.ok(most < 100, `${most} rows were read at once`);
});

test('the whole life of a wallet is shown up to 2,000 requests, children and changes of both', async (t) => {
  const purser = await openTestServer(t);
  const { id, token } = await purser.openWallet({ budget_cents: 5000 });
  const open = async (key: string) => {
    const body = { name: key, budget_usd: '1.00' };
    return (await purser.ask('POST', '/v1/run/wallets', { token, key, body })).body.id as string;
  };
  const child = await open('first');
  const raise = (walletId: string, count: number, name: string) =>
    writeWith(purser.app.ledger, (tx) => {
      for (let i = 0; i < count; i++) {
        const rest = { idempotencyKey: `${name} ${i}`, fingerprint: Buffer.alloc(32), requestId: `req_${i}` };
        const order = { walletId, cents: 1, ...rest };
        changeBudget.run(tx, { order, now: purser.app.clock.now(), blocked: undefined });
      }
    });
  assert.equal((await purser.chat(token)).status, 200);
  await raise(id, 998, 'own');
  await raise(child, 1000, 'of a child');
  const browser = await asOperator(purser);
  const cards = async () =>
    [...(await browser.get(`/wallets/${id}`)).html.matchAll(/<h2>(Its life|Where the money went|Operations)</g)].map(
      ([, name]) => name,
    );
  assert.deepEqual(await cards(), ['Its life', 'Where the money went'], '2,000');
  await open('second');
  assert.deepEqual(await cards(), ['Operations'], '2,001');
  assert.equal((await browser.get(`/wallets/${child}`)).html.includes('Its life'), true, 'its child has 1,000');
});
