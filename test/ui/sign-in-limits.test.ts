import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import test from 'node:test';
import { PAGE_CLIENT } from '../access/oidc-issuer.ts';
import { openTestServer, type TestServer } from '../helper/server.ts';
import { addTenant } from '../helper/tenants.ts';
import { until } from '../helper/waiting.ts';
import { asAccount, asOperator, type Browser, openBrowser } from './sample.ts';
import { isIn, rows } from './sessions-shared.ts';

async function signIn(purser: TestServer, key: string): Promise<{ browser: Browser; status: number }> {
  const browser = openBrowser(purser);
  const { status } = await browser.post('/sign-in/key', { key });
  return { browser, status };
}

test('an account key has twenty sessions, of which the oldest ends for the next', async (t) => {
  const purser = await openTestServer(t);
  const operator = await asOperator(purser);
  const other = await addTenant(purser, 'other');
  const neighbour = await signIn(purser, other.accountKey);
  const before = rows(purser);
  const browsers: Browser[] = [];
  for (let i = 0; i < 25; i++) {
    const { browser, status } = await signIn(purser, purser.accountKey);
    assert.equal(status, 303);
    browsers.push(browser);
  }
  assert.equal(rows(purser), before + 20);
  const isOpen = await Promise.all(browsers.map(isIn));
  assert.deepEqual(isOpen, [...Array(5).fill(false), ...Array(20).fill(true)]);
  for (const browser of [operator, neighbour.browser]) assert(await isIn(browser));
  const more = await purser.run('key.create', { account: purser.accountId, name: 'more' });
  assert.equal((await signIn(purser, more.key)).status, 303);
  assert.equal(rows(purser), before + 21, 'another key has its own');
  assert.deepEqual(purser.problems(), []);
});

test('signing in counts against the limit of the account, and leaves nothing beyond it', async (t) => {
  const limits = { wallet_requests_per_minute: 0, account_requests_per_minute: 3, failed_auth_per_minute: 0 };
  const purser = await openTestServer(t, { settings: { limits } });
  const other = await addTenant(purser, 'other');
  for (let i = 0; i < 3; i++) assert.equal((await signIn(purser, purser.accountKey)).status, 303);
  const before = rows(purser);
  for (let i = 0; i < 3; i++) assert.equal((await signIn(purser, purser.accountKey)).status, 429);
  assert.equal(rows(purser), before);
  assert.equal((await signIn(purser, other.accountKey)).status, 303);
});

test('wrong credentials of one network are limited', async (t) => {
  const purser = await openTestServer(t, {
    settings: { limits: { wallet_requests_per_minute: 0, account_requests_per_minute: 0, failed_auth_per_minute: 5 } },
  });
  const browser = openBrowser(purser);
  const statuses: number[] = [];
  for (let i = 0; i < 4; i++) statuses.push((await browser.post('/sign-in/key', { key: 'cnv_live_x' })).status);
  for (let i = 0; i < 3; i++) statuses.push((await browser.get('/sign-in/link/guess')).status);
  assert.deepEqual(statuses, [401, 401, 401, 401, 401, 429, 429]);
});

test('a page that is refused for a while says for how long', async (t) => {
  const purser = await openTestServer(t, {
    settings: { limits: { wallet_requests_per_minute: 0, account_requests_per_minute: 3, failed_auth_per_minute: 2 } },
  });
  const [browser, guesser] = [await asAccount(purser), openBrowser(purser)]; // The sign-in is the first of the three.
  for (let i = 0; i < 2; i++) assert.equal((await browser.get('/wallets')).status, 200);
  for (let i = 0; i < 2; i++) assert.equal((await guesser.post('/sign-in/key', { key: 'cnv_live_x' })).status, 401);
  const viewed = await browser.get('/wallets');
  assert.deepEqual([viewed.status, viewed.headers['retry-after']], [429, '20']);
  const guessed = await guesser.post('/sign-in/key', { key: 'cnv_live_x' });
  assert.deepEqual([guessed.status, guessed.headers['retry-after']], [429, '30']);
});

test('however many visitors come back from the identity provider at once, few of a network are asked of it at a time', async (t) => {
  const held = new Set<ServerResponse>();
  let [most, asked] = [0, 0];
  const server = createServer((request, response) => {
    if (request.url !== '/token') {
      const endpoints = { authorization_endpoint: `${issuer}/authorize`, token_endpoint: `${issuer}/token` };
      return response.end(JSON.stringify({ issuer, jwks_uri: `${issuer}/jwks`, ...endpoints }));
    }
    asked += 1;
    held.add(response);
    most = Math.max(most, held.size);
    response.once('close', () => held.delete(response));
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => server.close());
  t.after(() => server.closeAllConnections());
  const issuer = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const purser = await openTestServer(t, { settings: { identity: { issuer, audience: 'purser', ...PAGE_CLIENT } } });
  const begun = openBrowser(purser);
  const { headers } = await begun.get('/sign-in/issuer');
  const state = new URL(headers.location as string).searchParams.get('state');
  const comeBack = () => begun.get(`/sign-in/callback?code=guess&state=${state}`);
  let refused = 0;
  const visits = Array.from({ length: 60 }, async () => {
    const { status } = await comeBack();
    if (status === 429) refused += 1;
    return status;
  });
  await until('all that may ask have asked', () => asked + refused >= 60);
  assert.ok(most <= 16, `${most} at a time`);
  for (const it of held) it.writeHead(400).end('{"error":"invalid_grant"}');
  await Promise.all(visits);
  assert.equal(refused, 60 - asked);
  const again = comeBack();
  const [next] = await until('the next is asked of it', () => held.size === 1 && [...held]);
  next?.writeHead(400).end('{"error":"invalid_grant"}');
  assert.equal((await again).status, 401, 'there is room again');
});
