import assert from 'node:assert/strict';
import test from 'node:test';
import { endSpending } from '../../src/wallet/close.ts';
import { openTestServer } from '../helper/server.ts';
import { childOf } from '../helper/tenants.ts';
import { openMemoryServer } from '../lease/leases.ts';
import { asAccount, asOperator, type Browser, tableOf } from './sample.ts';

const namesOn = (html: string) => tableOf(html, 'Wallets').map((it) => (it.Name as string).split(' ')[0] as string);
const linkOf = (html: string, text: string) =>
  new RegExp(`href="([^"]+)">${text}</a>`).exec(html)?.[1]?.replaceAll('&amp;', '&') as string;

/** Wallets of two accounts that differ in everything by which a list is sorted. */
async function openDiffering(t: Parameters<typeof openTestServer>[0]) {
  const purser = await openTestServer(t);
  const other = await purser.run('account.create', { name: 'Another', creditCents: 5000 });
  const open = (account: string, name: string, budget_cents: number, expires_in_seconds: number) =>
    purser.run('wallet.create', { account, name, budget_cents, expires_in_seconds });
  const ant = await open(purser.accountId, 'ant', 300, 7200);
  const Bee = await open(other.id, 'Bee', 200, 0);
  await open(purser.accountId, 'cat', 500, 3600);
  const dog = await open(other.id, 'dog', 400, 86_400);
  const eel = await open(purser.accountId, 'eel', 100, 60);
  const chat = async (wallet: { agent_token: string }, times: number) => {
    for (let i = 0; i < times; i++)
      assert.equal((await purser.chat(wallet.agent_token, { model: 'flat' })).status, 200);
  };
  await chat(ant, 11);
  await chat(dog, 1);
  await chat(eel, 3);
  purser.clock.advance(30);
  await chat(Bee, 2);
  await chat(ant, 1);
  await purser.run('wallet.freeze', { id: ant.id });
  await purser.run('wallet.close', { id: dog.id });
  purser.clock.advance(40); // eel has expired.
  return { purser, other };
}

/** The names by each order, smallest first. Those without a value are last in both directions. */
const ORDERS: Record<string, [smallestFirst: string[], without?: string[]]> = {
  name: [['ant', 'Bee', 'cat', 'dog', 'eel']],
  state: [['cat', 'Bee', 'dog', 'eel', 'ant']], // active, active, closed, expired, frozen
  used: [['cat', 'dog', 'Bee', 'eel', 'ant']],
  spent: [['cat', 'dog', 'Bee', 'eel', 'ant']],
  available: [['dog', 'eel', 'Bee', 'ant', 'cat']],
  budget: [['eel', 'Bee', 'ant', 'dog', 'cat']],
  last: [['dog', 'eel', 'Bee', 'ant'], ['cat']],
  expires: [['eel', 'cat', 'ant', 'Bee'], ['dog']],
  account: [['dog', 'Bee', 'eel', 'cat', 'ant']],
};
/** Those that are equal are newest first, whichever way the others go. */
const DESCENDING: typeof ORDERS = {
  state: [['ant', 'eel', 'dog', 'cat', 'Bee']],
  account: [['eel', 'cat', 'ant', 'dog', 'Bee']],
};

test('wallets are sorted by every column, either way, by links of the headings and by a field', async (t) => {
  const { purser } = await openDiffering(t);
  const browser = await asOperator(purser);
  const { html: plain } = await browser.get('/wallets');
  assert.deepEqual(namesOn(plain), ['eel', 'dog', 'cat', 'Bee', 'ant']);
  assert.doesNotMatch(plain, /aria-sort/);
  const headings = [...plain.matchAll(/<th [^>]*><a href="\/wallets\?sort=(-?)(\w+)">/g)].map(([, , by]) => by);
  assert.deepEqual(headings, Object.keys(ORDERS), 'each column');
  for (const [by, [ascending, without = []]] of Object.entries(ORDERS)) {
    const { html } = await browser.get(`/wallets?sort=${by}`);
    assert.deepEqual(namesOn(html), [...ascending, ...without], by);
    assert.match(html, new RegExp(`<option value="${by}" selected>`));
    const down = await browser.get(`/wallets?sort=-${by}`);
    const [descending] = DESCENDING[by] ?? [ascending.toReversed()];
    assert.deepEqual(namesOn(down.html), [...descending, ...without], `-${by}`);
    assert.match(html, new RegExp(`aria-sort="ascending"[^>]*><a href="/wallets\\?sort=-${by}">`));
    assert.match(down.html, new RegExp(`aria-sort="descending"[^>]*><a href="/wallets\\?sort=${by}">`));
    assert.equal(html.match(/aria-sort/g)?.length, 1);
  }
  const filtered = (await browser.get('/wallets?state=active&name=a&sort=name')).html;
  assert.deepEqual(namesOn(filtered), ['ant', 'cat'], 'with the filters');
  assert.match(linkOf(filtered, 'Spent'), /^\/wallets\?state=active&name=a&sort=-spent$/);
  assert.deepEqual(
    namesOn((await browser.get('/wallets?sort=secret')).html),
    namesOn(plain),
    'another word sorts nothing',
  );
  const account = await asAccount(purser);
  const { html: own } = await account.get('/wallets?sort=-available');
  assert.deepEqual(namesOn(own), ['cat', 'ant', 'eel']);
  assert.doesNotMatch(own, /sort=-?account/);
});

test('a row of a wallet has what is available, and when it was last used', async (t) => {
  const { purser } = await openDiffering(t);
  const rows = tableOf((await (await asOperator(purser)).get('/wallets')).html, 'Wallets');
  const cells = rows.map((it) => [it.Name, it.State, it.Spent, it.Available, it['Last used'], it.Expires]);
  assert.deepEqual(cells, [
    ['eel', 'expired', '0.030000000', '0.970000000', '1 min 10 s ago', '10 s ago'],
    ['dog', 'closed', '0.010000000', '0.000000000', '1 min 10 s ago', '–'],
    ['cat', 'active', '0.000000000', '5.000000000', 'never', 'in 58 min 50 s'],
    ['Bee', 'active', '0.020000000', '1.980000000', '40 s ago', 'never'],
    ['ant', 'frozen', '0.120000000', '2.880000000', '40 s ago', 'in 1 h 58 min'],
  ]);
});

async function walk(browser: Browser, path: string): Promise<string[][]> {
  const pages: string[][] = [];
  for (let at = path; at; ) {
    const { html } = await browser.get(at);
    pages.push(namesOn(html));
    if (pages.length > 1) assert.equal(linkOf(html, 'First'), path);
    at = linkOf(html, 'More');
  }
  return pages;
}

test('a sorted list goes on by pages, and begins anew where it is sorted otherwise', async (t) => {
  const purser = await openTestServer(t, { creditCents: 100_000 });
  const budgets = Array.from({ length: 110 }, (_, i) => 100 + ((i * 37) % 110));
  for (const [i, budget_cents] of budgets.entries()) await purser.openWallet({ name: `w${i}`, budget_cents });
  const browser = await asOperator(purser);
  const pages = await walk(browser, '/wallets?sort=budget');
  assert.deepEqual(
    pages.map((it) => it.length),
    [50, 50, 10],
  );
  const byBudget = budgets.map((budget, i) => ({ budget, name: `w${i}` })).sort((a, b) => a.budget - b.budget);
  assert.deepEqual(
    pages.flat(),
    byBudget.map(({ name }) => name),
  );
  const { html } = await browser.get('/wallets?sort=budget&from=50');
  assert.equal(linkOf(html, 'Name'), '/wallets?sort=name');
  for (const from of ['-1', '1e3', '999999999', 'x'])
    assert.equal((await browser.get(`/wallets?sort=budget&from=${from}`)).status, 200, from);
});

test('a wallet that has ended with the one above it says so, and is offered nothing that is refused', async (t) => {
  const purser = await openTestServer(t);
  await purser.app.reaper.stop();
  const { ledger, clock } = purser.app;
  const { id, token } = await purser.openWallet({ expires_in_seconds: 0 });
  const child = await childOf(purser, token, '1');
  const frozen = await childOf(purser, token, '1');
  assert.equal((await purser.chat(child.token)).status, 200);
  await purser.run('wallet.freeze', { id: frozen.id });
  const [account, operator] = [await asAccount(purser), await asOperator(purser)];
  const seen = async (it: string) => {
    const { html } = await account.get(`/wallets/${it}`);
    return {
      state: /<span class="row">.*?<span[^>]*>(\w+)/s.exec(html)?.[1],
      offers: ['/freeze"', '/unfreeze"', '/budget"', 'Change it: '].filter((part) => html.includes(part)),
      says: /class="notice warn">(It spends nothing any more since)/.exec(html)?.[1],
    };
  };
  assert.deepEqual(await seen(child.id), { state: 'active', offers: ['/freeze"', 'Change it: '], says: undefined });
  assert.deepEqual((await seen(frozen.id)).offers, ['/unfreeze"', 'Change it: ']);
  const states = (html: string, caption: string) => tableOf(html, caption).map((it) => it.State);
  const shown = async () => {
    const pages: Record<string, unknown> = {};
    for (const it of ['active', 'closing', 'frozen'])
      pages[it] = states((await operator.get(`/wallets?state=${it}`)).html, 'Wallets').length;
    pages.sorted = states((await operator.get('/wallets?sort=state')).html, 'Wallets');
    pages.home = states((await account.get('/')).html, 'Open wallets').length;
    const { html } = await operator.get('/');
    pages.now = [/1 wallet frozen/, new RegExp(`/wallets/${child.id}/freeze`)].map((it) => it.test(html));
    return pages;
  };
  const before = {
    active: 3,
    closing: 0,
    frozen: 1,
    sorted: ['active', 'active', 'frozen'],
    home: 3,
    now: [true, true],
  };
  assert.deepEqual(await shown(), before);
  await ledger.write(endSpending, { id, reason: 'account_request', now: clock.now() });
  const ended = { state: 'closing', offers: [], says: 'It spends nothing any more since' };
  for (const it of [id, child.id, frozen.id]) assert.deepEqual(await seen(it), ended);
  const sorted = ['closing', 'closing', 'closing'];
  assert.deepEqual(await shown(), { active: 0, closing: 3, frozen: 0, sorted, home: 0, now: [false, false] });
});

test('a wallet below a frozen one is shown as frozen, and unfreezing it alone says that it spends nothing', async (t) => {
  const purser = await openTestServer(t);
  const { id, token } = await purser.openWallet({ name: 'root' });
  const child = await childOf(purser, token, '1');
  const grandchild = await childOf(purser, child.token, '0.5');
  const other = await purser.openWallet({ name: 'apart' });
  const below = await childOf(purser, other.token, '1');
  for (const it of [id, grandchild.id]) await purser.run('wallet.freeze', { id: it });
  const browser = await asOperator(purser);
  const stateOf = async (it: string) =>
    /<span class="row">.*?<span[^>]*>(\w+)/s.exec((await browser.get(`/wallets/${it}`)).html)?.[1];
  const sorted = async () => tableOf((await browser.get('/wallets?sort=state')).html, 'Wallets').map((it) => it.State);
  const refused = async (it: string) => (await purser.chat(it)).body.error?.code;
  const unfreeze = async (it: string) => (await browser.post(`/wallets/${it}/unfreeze`)).headers.location as string;

  for (const [it, credential] of [
    [id, token],
    [child.id, child.token],
    [grandchild.id, grandchild.token],
  ] as const)
    assert.deepEqual([await stateOf(it), await refused(credential)], ['frozen', 'wallet_frozen']);
  for (const it of [other.id, below.id]) assert.equal(await stateOf(it), 'active');
  assert.deepEqual(await sorted(), ['active', 'active', 'frozen', 'frozen', 'frozen']);

  const { html } = await browser.get(await unfreeze(grandchild.id));
  assert.match(html, /The wallet itself is unfrozen\. It spends nothing until/);
  assert.equal(await refused(grandchild.token), 'wallet_frozen');
  assert.match((await browser.get(await unfreeze(id))).html, /may spend again/);
  for (const it of [id, child.id, grandchild.id]) assert.equal(await stateOf(it), 'active');
  assert.deepEqual(await sorted(), Array(5).fill('active'));
});

test('the question before a close tells the number of all leases that end, those of the wallets below too', async (t) => {
  const purser = await openMemoryServer(t);
  const { id, token } = await purser.openWallet({ budget_cents: 500, expires_in_seconds: 7200 });
  const child = await childOf(purser, token, '2');
  const browser = await asAccount(purser);
  const asked = async () => {
    const { html } = await browser.get(`/wallets/${id}/close`);
    return /\d+ running leases? ends?\./.exec(html)?.[0];
  };
  assert.equal(await asked(), undefined);
  assert.equal((await purser.lease(child.token)).status, 200);
  assert.equal(await asked(), '1 running lease ends.');
  for (let i = 0; i < 20; i++) assert.equal((await purser.lease(token)).status, 200);
  assert.equal(await asked(), '21 running leases end.');
});

test('the time since which an expired wallet spends nothing stays the same when its end is written down', async (t) => {
  const purser = await openTestServer(t);
  await purser.app.reaper.stop();
  const { ledger, clock } = purser.app;
  const { id } = await purser.openWallet({ expires_in_seconds: 3600 });
  purser.clock.advance(3 * 3600); // The server was down.
  const browser = await asOperator(purser);
  const since = async () =>
    /It spends nothing any more since(.*?),/s
      .exec((await browser.get(`/wallets/${id}`)).html)?.[1]
      ?.replace(/<.*?>/g, '');
  const before = await since();
  assert.match(`${before}`, /2 h ago/);
  await ledger.write(endSpending, { id, reason: 'expired', now: clock.now() });
  assert.equal(await since(), before);
  assert.equal(purser.wallet(id).closingSince, purser.wallet(id).expiresAt);
});
