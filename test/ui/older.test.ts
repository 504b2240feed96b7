import assert from 'node:assert/strict';
import test from 'node:test';
import { placeHold } from '../../src/ledger/hold.ts';
import { settle } from '../../src/ledger/operation.ts';
import { writeWith } from '../helper/closures.ts';
import { openTestServer } from '../helper/server.ts';
import { gate, reset } from '../helper/upstream.ts';
import { openMemoryServer } from '../lease/leases.ts';
import { done, holdOrder } from '../ledger/books.ts';
import { asAccount, asOperator, type Browser } from './sample.ts';

/** The part of a page under a heading. */
const cardOf = (html: string, heading: string) => {
  const found = [...html.matchAll(/<section class="card".*?<\/section>/gs)].find(([it]) =>
    it.includes(`<h2>${heading}</h2>`),
  );
  return found?.[0] ?? assert.fail(`no ${heading} on the page`);
};
/** The way that a list says leads on. */
const wayIn = (card: string, word: string) =>
  new RegExp(`href="([^"#]+)(?:#[^"]*)?">${word}</a>`).exec(card)?.[1]?.replaceAll('&amp;', '&');

/** Goes through a list to its end by the way on each page, and returns what `pattern` finds on each. */
async function walk(browser: Browser, path: string, heading: string, word: string, pattern: RegExp): Promise<string[]> {
  const found: string[] = [];
  let at: string | undefined = path;
  for (let pages = 0; at !== undefined; pages++) {
    assert.ok(pages < 50, `${path} goes round`);
    const { status, html } = await browser.get(at);
    assert.equal(status, 200, at);
    const card = cardOf(html, heading);
    if (pages > 0) assert.ok(card.includes('<tbody'), `${at} is an empty page`);
    found.push(...[...card.matchAll(pattern)].map(([, it]) => it as string));
    if (pages > 0) assert.ok(wayIn(card, word === 'Older' ? 'Newest' : '(?:First|Oldest)'), `the way back is on ${at}`);
    at = wayIn(card, word);
  }
  return found;
}
/** Fewer at once than wait to be accepted (`listen(2)`): on a busy machine the system resets what is too much. */
const AT_ONCE = 200;
async function times(n: number, make: (i: number) => Promise<unknown>): Promise<void> {
  for (let at = 0; at < n; at += AT_ONCE)
    await Promise.all(Array.from({ length: Math.min(AT_ONCE, n - at) }, (_, i) => make(at + i)));
}

test('every movement of a wallet is reached by "Older", in both views, and every hold by "More"', async (t) => {
  const purser = await openTestServer(t);
  const { id, token } = await purser.openWallet({ budget_cents: 2000 });
  await times(120, (i) => purser.chat(token, { model: 'flat' }, `k${i}`));
  const slow = gate();
  purser.upstream.handle = slow.handler;
  const before = purser.upstream.calls.length;
  const held = times(60, (i) => purser.chat(token, { model: 'flat' }, `h${i}`));
  await purser.upstream.arrived(before + 60);
  for (const browser of [await asOperator(purser), await asAccount(purser)]) {
    const at = `/wallets/${id}`;
    const card = 'Where the money went';
    const shown = await walk(browser, at, card, 'Older', /title="(op_\w+)"/g);
    assert.equal(new Set(shown).size, 180, 'each request once');
    assert.equal((await walk(browser, at, card, 'Older', /<tr[^>]*>.*?<td class="text[^>]*>(opened)/gs)).length, 1);
    const steps = await walk(
      browser,
      `${at}?steps=all`,
      card,
      'Older',
      /<td class="text[^>]*>(held|charged|released|opened)/g,
    );
    assert.equal(steps.length, 1 + 180 + 120, 'every step');
    const open = await walk(browser, at, 'On hold now', 'More', /title="(op_\w+)"/g);
    assert.deepEqual(open, [...new Set(open)]);
    assert.equal(open.length, 60);
  }
  slow.open();
  await held;
});

test('every operation of a wallet with a long life is reached by "Older"', async (t) => {
  const purser = await openTestServer(t);
  const { id } = await purser.openWallet({ budget_cents: 100_000 });
  // As the ledger writes chats: their requests took a quarter of the processor time of this file.
  const now = purser.app.clock.now();
  await writeWith(purser.app.ledger, (tx) => {
    for (let i = 0; i < 2050; i++) {
      const operation = placeHold(tx, holdOrder(id, 1000n), now);
      settle(tx, operation.id, done(1000n), 'answer', now);
    }
  });
  const shown = await walk(await asAccount(purser), `/wallets/${id}`, 'Operations', 'Older', /title="(op_\w+)"/g);
  assert.equal(new Set(shown).size, 2050);
});

test('the statement and the keys of an account, and all accounts, are reached to their end', async (t) => {
  const purser = await openTestServer(t);
  const { accountId } = purser;
  await times(120, (i) => purser.run('account.credit', { id: accountId, cents: 1, reason: `invoice ${i}.` }));
  await times(60, (i) => purser.run('key.create', { account: accountId, name: `key ${i}.` }));
  await times(210, (i) => purser.run('account.create', { name: `team ${i}.` }));
  const operator = await asOperator(purser);
  const at = `/accounts/${accountId}`;
  assert.equal(new Set(await walk(operator, at, 'Statement', 'Older', /(invoice \d+\.)/g)).size, 120);
  assert.equal(new Set(await walk(operator, at, 'Keys', 'Older', /(key \d+\.)/g)).size, 60);
  const account = await asAccount(purser);
  assert.equal(new Set(await walk(account, '/keys', 'Keys of the account', 'Older', /(key \d+\.)/g)).size, 60);
  assert.equal(new Set(await walk(operator, '/accounts', 'Accounts', 'More', /(team \d+\.)/g)).size, 210);
  const [last] = (await purser.run('account.list', {})).accounts.slice(-1);
  const { html } = await operator.get(`/wallets/new?account=${last?.id}`);
  assert.deepEqual(
    [...html.matchAll(/<option value="(acct_\w+)"/g)].map(([, id]) => id),
    [last?.id],
  );
});

test('every event and every operation of unknown outcome is reached', async (t) => {
  const purser = await openTestServer(t, { unknownCountMax: 1000 });
  const { token } = await purser.openWallet({ budget_cents: 2000 });
  purser.upstream.handle = reset;
  await times(130, (i) => purser.chat(token, { model: 'flat' }, `k${i}`));
  const operator = await asOperator(purser);
  const list = '/operations?state=uncertain';
  assert.equal(new Set(await walk(operator, list, 'Operations', 'More', /href="\/operations\/(op_\w+)"/g)).size, 130);
  const all = await walk(operator, '/operations', 'Operations', 'Older', /href="\/operations\/(op_\w+)"/g);
  assert.equal(new Set(all).size, 130);
  const { total } = await purser.run('events.list', {});
  assert.ok(total > 100);
  const rows = await walk(
    operator,
    '/events',
    'Events',
    'Older',
    /<td class="text[^>]*>(operation\.uncertain|upstream\.\w+|wallet\.\w+)/g,
  );
  assert.equal(rows.length, total);
});

test('a list that ends on a full page goes on to no empty one', async (t) => {
  const purser = await openTestServer(t, { unknownCountMax: 1000 });
  const wallets: { id: string; token: string }[] = [];
  await times(100, async (i) => wallets.push(await purser.openWallet({ name: `wallet ${i}.`, budget_cents: 100 })));
  purser.upstream.handle = reset;
  await times(100, (i) => purser.chat((wallets[i] as { token: string }).token, { model: 'flat' }));
  const operator = await asOperator(purser);
  assert.equal((await walk(operator, '/wallets', 'Wallets', 'Older', /(wallet \d+\.)/g)).length, 100);
  const operation = /href="\/operations\/(op_\w+)"/g;
  assert.equal((await walk(operator, '/operations', 'Operations', 'Older', operation)).length, 100);
  assert.equal((await walk(operator, '/operations?state=uncertain', 'Operations', 'More', operation)).length, 100);
  const type = 'operation.uncertain';
  assert.equal((await purser.run('events.list', { type })).total, 100);
  const { html } = await operator.get(`/events?type=${type}`);
  assert.equal(wayIn(cardOf(html, 'Events'), 'Older'), undefined);
});

test('the leases and the children of a wallet are reached from it', async (t) => {
  const purser = await openMemoryServer(t);
  const { id, token } = await purser.openWallet({ budget_cents: 3000, expires_in_seconds: 86_400 });
  await times(23, (i) => purser.rent(token, `r${i}`));
  await times(22, (i) =>
    purser.ask('POST', '/v1/run/wallets', {
      token,
      key: `c${i}`,
      body: { name: `child ${i}.`, budget_usd: '0.10', expires_in_seconds: 3600 },
    }),
  );
  const other = await purser.openWallet();
  await purser.rent(other.token);
  for (const browser of [await asOperator(purser), await asAccount(purser)]) {
    const { html } = await browser.get(`/wallets/${id}`);
    const leases = wayIn(cardOf(html, 'Leases'), 'All 23') as string;
    const { html: list } = await browser.get(leases);
    assert.equal(new Set([...list.matchAll(/<td[^>]*><a href="\/leases\/(res_\w+)"/g)].map(([, it]) => it)).size, 23);
    assert.match(list, new RegExp(`name="wallet"[\\s\\S]*?value="${id}" selected`), 'the filter keeps the wallet');
    const children = await browser.get(wayIn(cardOf(html, 'Child wallets'), 'All 22') as string);
    assert.equal(new Set([...children.html.matchAll(/(child \d+\.)/g)].map(([, it]) => it)).size, 22);
  }
  const stranger = await purser.run('account.create', { name: 'other', creditCents: 500 });
  const theirs = await purser.run('wallet.create', { account: stranger.id, name: 'w', budget_cents: 100 });
  const account = await asAccount(purser);
  for (const path of [`/leases?wallet=${theirs.id}`, `/wallets?parent=${theirs.id}`, '/leases?wallet=wal_unknown'])
    assert.equal((await account.get(path)).status, 404, path);
});
