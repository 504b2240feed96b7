import assert from 'node:assert/strict';
import test from 'node:test';
import { changeBudget } from '../../src/ledger/wallet-change.ts';
import { writeWith } from '../helper/closures.ts';
import { length } from '../helper/random.ts';
import { openTestServer } from '../helper/server.ts';
import { asOperator, openMany } from './sample.ts';

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
