import assert from 'node:assert/strict';
import http from 'node:http';
import test, { type TestContext } from 'node:test';
import { openTestServer, type TestServer } from '../helper/server.ts';
import { waitFor } from '../helper/waiting.ts';
import { LONG, openMemoryServer } from '../lease/leases.ts';
import { asAccount, asOperator, type Browser, openBrowser } from './sample.ts';

type Stream = { next(): Promise<Record<string, string>>; ended: Promise<void> };

/** Opens a stream as a browser does. `next` resolves with the figures of the next event. */
async function open(t: TestContext, purser: TestServer, browser: Browser, path: string): Promise<Stream> {
  const cookie = [...browser.cookies].map(([name, value]) => `${name}=${value}`).join('; ');
  const waiting: ((figures: Record<string, string>) => void)[] = [];
  const arrived: Record<string, string>[] = [];
  const ended = Promise.withResolvers<void>();
  const response = await new Promise<http.IncomingMessage>((resolve, reject) => {
    const request = http.get(`${purser.url}${path}`, { headers: { cookie }, agent: false }, resolve);
    request.on('error', reject);
    t.after(() => request.destroy());
  });
  assert.equal(response.statusCode, 200);
  assert.match(response.headers['content-type'] as string, /^text\/event-stream/);
  assert.match(response.headers['x-request-id'] as string, /^req_/);
  let text = '';
  response.on('data', (chunk) => {
    text += chunk;
    for (let end = text.indexOf('\n\n'); end >= 0; end = text.indexOf('\n\n')) {
      const [, data] = /^data: (.*)$/.exec(text.slice(0, end)) ?? [];
      text = text.slice(end + 2);
      if (data === undefined) continue;
      const figures = JSON.parse(data) as Record<string, string>;
      const waiter = waiting.shift();
      if (waiter) waiter(figures);
      else arrived.push(figures);
    }
  });
  response.on('end', ended.resolve);
  response.on('close', ended.resolve);
  response.on('error', () => ended.resolve());
  return {
    next: () =>
      new Promise((resolve) => {
        const first = arrived.shift();
        if (first) resolve(first);
        else waiting.push(resolve);
      }),
    ended: ended.promise,
  };
}

test('the figures of a page move with the books, and only those that changed are sent', async (t) => {
  const purser = await openTestServer(t);
  const { id, token } = await purser.openWallet({ budget_cents: 500 });
  const browser = await asOperator(purser);
  const stream = await open(t, purser, browser, `/live?wallet=${id}`);
  const first = await stream.next();
  assert.equal(first.free, '$5.00');
  assert.equal(first.spent, '$0.00');
  const { html } = await browser.get(`/wallets/${id}`);
  for (const key of Object.keys(first).filter((it) => !it.endsWith('.bar')))
    assert.ok(html.includes(`data-live="${key}">${first[key]}<`), `${key} is on the page as the stream has it`);
  await purser.chat(token, { model: 'flat' });
  const known = { ...first };
  // It may have looked while the money was held.
  while (known.spent !== '$0.01')
    for (const [key, value] of Object.entries(await stream.next())) {
      assert.notEqual(value, known[key], `${key} is sent again`);
      known[key] = value;
    }
  assert.deepEqual([known.free, known.held], ['$4.99', first.held]);
  assert.notEqual(known['spent.bar'], first['spent.bar']);
});

test('an open page of a wallet adds up after a raise and after the first delegation', async (t) => {
  const purser = await openTestServer(t);
  const { id, token } = await purser.openWallet({ budget_cents: 500 });
  const browser = await asAccount(purser);
  const { html } = await browser.get(`/wallets/${id}`);
  const stream = await open(t, purser, browser, `/live?wallet=${id}`);
  const known = await stream.next();
  for (const key of Object.keys(known)) assert.match(html, new RegExp(`data-live(-bar)?="${key}"`), key);
  assert.match(html, /<li data-unless="\$0\.00" hidden><span class="swatch delegated">/, 'nothing is not named');
  await purser.run('wallet.budget', { id, add_cents: 200 });
  const body = { name: 'child', budget_usd: '1.50' };
  await purser.ask('POST', '/v1/run/wallets', { token, key: 'c', body });
  while (known.delegated === '$0.00') Object.assign(known, await stream.next());
  assert.deepEqual([known.budget, known.delegated, known.free], ['$7.00', '$1.50', '$5.50']);
  const { html: after } = await browser.get(`/wallets/${id}`);
  assert.match(after, /<li data-unless="\$0\.00"><span class="swatch delegated">/);
});

test('every figure that a stream sends is on its page', async (t) => {
  const purser = await openTestServer(t);
  const [operator, account] = [await asOperator(purser), await asAccount(purser)];
  const { accountId } = purser;
  for (const [browser, query, path] of [
    [operator, '?page=now', '/'],
    [operator, '', '/'],
    [operator, `?account=${accountId}`, `/accounts/${accountId}`],
    [account, '?page=home', '/'],
    [account, '', '/'],
    [account, `?account=${accountId}`, '/'],
  ] as const) {
    const figures = await (await open(t, purser, browser, `/live${query}`)).next();
    const { html } = await browser.get(path);
    assert.ok(Object.keys(figures).length > 3);
    for (const key of Object.keys(figures))
      assert.match(html, new RegExp(`data-live(-bar)?="${RegExp.escape(key)}"`), key);
    for (const [, key] of html.matchAll(/data-live(?:-bar)?="([^"]+)"/g))
      assert.ok(figures[key as string] !== undefined, key);
  }
  for (const [browser, path, stream] of [
    [operator, '/', 'page=now'],
    [operator, `/accounts/${accountId}`, `account=${accountId}`],
    [account, '/', 'page=home'],
  ] as const)
    assert.ok((await browser.get(path)).html.includes(`data-stream="/live?${stream}"`), path);
});

test('the leases of a list and of a wallet are told of until they have ended, be it before the stream was opened', async (t) => {
  const purser = await openMemoryServer(t);
  const [mine, other] = [await purser.openWallet(LONG), await purser.openWallet(LONG)];
  const rented: string[] = [];
  for (const { token } of [mine, mine, other]) rented.push((await purser.rent(token)).body.id);
  const [first, second, foreign] = rented as [string, string, string];
  const browser = await asAccount(purser);
  const streamOf = (html: string) => (/data-stream="([^"]+)"/.exec(html)?.[1] ?? '').replaceAll('&amp;', '&');
  const leasesOn = (html: string) =>
    new Set([...html.matchAll(/data-live(?:-bar)?="(res_\w+)\.(?:left|bar)"/g)].map(([, id]) => id as string));
  for (const [path, shown] of [
    ['/leases', rented],
    [`/leases?wallet=${mine.id}`, [first, second]],
    [`/wallets/${mine.id}`, [first, second]],
  ] as const) {
    const { html } = await browser.get(path);
    assert.deepEqual(leasesOn(html), new Set(shown), path);
    const figures = await (await open(t, purser, browser, streamOf(html))).next();
    for (const id of rented)
      assert.equal(`${id}.left` in figures, (shown as string[]).includes(id), `${id} on ${path}`);
    for (const [, key, text] of html.matchAll(/data-live="(res_\w+\.left)">([^<]+)</g))
      assert.equal(figures[key as string], text, path);
  }
  const { html } = await browser.get('/leases');
  const stream = await open(t, purser, browser, streamOf(html));
  await stream.next();
  await purser.stop(mine.token, first);
  for (let left: string | undefined; left !== 'ended'; ) {
    const figures = await stream.next();
    left = figures[`${first}.left`];
    if (left === 'ended') assert.equal(figures[`${first}.bar`], '0 100%');
  }
  // A browser opens a stream after the page, and again after it broke off.
  const late = await (await open(t, purser, browser, streamOf(html))).next();
  assert.deepEqual([late[`${first}.left`], late[`${first}.bar`]], ['ended', '0 100%']);
  assert.match(late[`${foreign}.left`] as string, / left$/);
  const bare = await (await open(t, purser, browser, '/live?page=leases')).next();
  const runs = rented.map((lease) => `${lease}.left` in bare);
  assert.deepEqual(runs, [false, true, true], 'without a word, those that run');
  const stranger = openBrowser(purser);
  const { id } = await purser.run('account.create', { name: 'other' });
  await stranger.post('/sign-in/key', { key: (await purser.run('key.create', { account: id, name: 'k' })).key });
  assert.equal((await stranger.get(streamOf(html))).status, 404);
});

test('a stream of a wallet or an account that there is not is not found, nor is that of another account', async (t) => {
  const purser = await openTestServer(t);
  const [operator, account] = [await asOperator(purser), await asAccount(purser)];
  for (const browser of [operator, account])
    for (const query of ['wallet=wal_none', 'account=acct_none', 'page=leases&leases=res_none'])
      assert.equal((await browser.get(`/live?${query}`)).status, 404, query);
  const { id } = await purser.run('account.create', { name: 'other' });
  assert.equal((await account.get(`/live?account=${id}`)).status, 404);
  const figures = await (await open(t, purser, operator, `/live?account=${id}`)).next();
  assert.equal(figures['account.available'], '$0.00');
});

test('a stream ends with its session, and with the server', async (t) => {
  const purser = await openTestServer(t);
  const [one, two] = [await asOperator(purser), await asOperator(purser)];
  const first = await open(t, purser, one, '/live?page=now');
  const second = await open(t, purser, two, '/live?page=now');
  await Promise.all([first.next(), second.next()]);
  await one.post('/sign-out');
  await first.ended;
  await waitFor('the server stops: a page that stays open does not hold it up', purser.close());
  await second.ended;
});

test('one account that opens stream after stream takes neither those of others nor those of the operator', async (t) => {
  const purser = await openTestServer(t);
  const [operator, account] = [await asOperator(purser), await asAccount(purser)];
  for (let i = 0; i < 20; i++) await open(t, purser, account, '/live?page=home');
  assert.equal((await account.get('/live?page=home')).status, 429);
  const other = await purser.run('account.create', { name: 'other' });
  const { key } = await purser.run('key.create', { account: other.id, name: 'k' });
  const neighbour = openBrowser(purser);
  await neighbour.post('/sign-in/key', { key });
  for (const [browser, page] of [
    [operator, 'now'],
    [neighbour, 'home'],
  ] as const)
    assert.ok(Object.keys(await (await open(t, purser, browser, `/live?page=${page}`)).next()).length > 3);
});

test('opening streams counts against the limit of the account', async (t) => {
  const purser = await openTestServer(t, {
    settings: { limits: { wallet_requests_per_minute: 0, account_requests_per_minute: 4, failed_auth_per_minute: 0 } },
  });
  const account = await asAccount(purser); // The sign-in is the first of the four.
  for (let i = 0; i < 3; i++) await open(t, purser, account, '/live?page=home');
  assert.equal((await account.get('/live?page=home')).status, 429);
});
