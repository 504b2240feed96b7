import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readFileSync, writeFileSync } from 'node:fs';
import { type AddressInfo, createServer } from 'node:net';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { parse, stringify } from 'yaml';
import { browse, openOidcIssuer, PAGE_CLIENT } from '../access/oidc-issuer.ts';
import { openTestServer } from '../helper/server.ts';
import { openBrowser } from './sample.ts';

/** A server whose page signs in at a real issuer. Both clocks are the machine's. */
async function openWithIssuer(t: TestContext, identity: Record<string, unknown> = {}, claims: object = {}) {
  const issuer = await openOidcIssuer(t, claims);
  const purser = await openTestServer(t, {
    settings: { identity: { issuer: issuer.url, audience: 'purser', ...PAGE_CLIENT, ...identity } },
  });
  issuer.register(`${purser.url}/sign-in/callback`);
  return { purser, issuer };
}

type Server = Awaited<ReturnType<typeof openWithIssuer>>['purser'];

/** Begins a sign-in and goes through the issuer's own pages. Returns the address that the issuer sends the browser back to. */
async function goThere(purser: Server, browser: ReturnType<typeof openBrowser>, login: string): Promise<URL> {
  const { status, headers } = await browser.get('/sign-in/issuer');
  assert.equal(status, 303);
  const at = new URL(headers.location as string);
  assert.equal(at.searchParams.get('code_challenge_method'), 'S256');
  assert.equal(at.searchParams.get('response_type'), 'code');
  return browse(at, { login, password: 'any' }, `${purser.url}/sign-in/callback`);
}

test('a person signs in at the identity provider and gets the account of that identity', async (t) => {
  const { purser, issuer } = await openWithIssuer(t);
  const browser = openBrowser(purser);
  assert.match((await browser.get('/sign-in')).html, /href="\/sign-in\/issuer"/);
  const back = await goThere(purser, browser, 'alice');
  const { status, headers } = await browser.get(`${back.pathname}${back.search}`);
  assert.deepEqual([status, headers.location], [303, '/']);
  assert.match((await browser.get('/')).html, /<h1>Overview<\/h1>/);
  const { accounts } = await purser.run('account.list', {});
  assert.equal(accounts.length, 2);
  assert.ok(
    accounts.some(({ name }) => name.startsWith('alice ')),
    'the account is of this subject',
  );

  // What an account key cannot, a person can: a key of their own.
  const made = await browser.post('/keys', { name: 'mine' });
  const key = /cnv_live_\w{49}/.exec(made.html)?.[0] as string;
  assert.equal((await purser.ask('GET', '/v1/account', { token: key })).status, 200);

  const again = openBrowser(purser);
  const second = await goThere(purser, again, 'alice');
  await again.get(`${second.pathname}${second.search}`);
  assert.equal((await purser.run('account.list', {})).accounts.length, 2, 'the second sign-in makes no account');
  assert.ok(!purser.log.join('\n').includes(PAGE_CLIENT.client_secret));
  assert.ok(!JSON.stringify(await purser.run('status', {})).includes(issuer.url));
});

test('a code that another browser asked for, or that was used, signs nobody in', async (t) => {
  const { purser } = await openWithIssuer(t);
  const alice = openBrowser(purser);
  const back = await goThere(purser, alice, 'alice');
  const path = `${back.pathname}${back.search}`;

  const mallory = openBrowser(purser);
  assert.equal((await mallory.get(path)).status, 401, 'without an attempt of its own');
  await mallory.get('/sign-in/issuer');
  assert.equal((await mallory.get(path)).status, 401, 'with the attempt of another');
  const forged = new URL(back);
  forged.searchParams.set('iss', 'https://other.example');
  assert.equal((await alice.get(`${forged.pathname}${forged.search}`)).status, 401, 'from another issuer');
  assert.equal((await alice.get('/sign-in/callback?error=access_denied')).status, 401);
  assert.equal(mallory.cookies.has('purser-session'), false);

  assert.equal((await alice.get(path)).status, 303);
  const cookies = new Map(alice.cookies);
  await alice.get('/sign-in/issuer');
  assert.equal((await alice.get(path)).status, 401, 'a second time');
  assert.ok(cookies.get('purser-session'));
  assert.equal((await purser.run('account.list', {})).accounts.length, 2);
});

test('a sign-in without the required claim is refused, and one that has it in its access token is not', async (t) => {
  const required_claim = { name: 'groups', value: 'agents' };
  const without = await openWithIssuer(t, { required_claim });
  const browser = openBrowser(without.purser);
  const back = await goThere(without.purser, browser, 'bob');
  const { status, html } = await browser.get(`${back.pathname}${back.search}`);
  assert.equal(status, 403);
  assert.match(html, /lacks what this installation asks for in groups/);
  assert.equal((await without.purser.run('account.list', {})).accounts.length, 1);

  const within = await openWithIssuer(t, { required_claim }, { groups: ['agents'] });
  const other = openBrowser(within.purser);
  const there = await goThere(within.purser, other, 'bob');
  assert.equal((await other.get(`${there.pathname}${there.search}`)).status, 303);
});

test('while the issuer is away, the page says so and account keys still sign in', async (t) => {
  const purser = await openTestServer(t, {
    settings: { identity: { issuer: 'http://127.0.0.1:9', audience: 'purser', ...PAGE_CLIENT } },
  });
  const browser = openBrowser(purser);
  assert.equal((await browser.get('/sign-in/issuer')).status, 503);
  assert.equal((await browser.post('/sign-in/key', { key: purser.accountKey })).status, 303);
});

test('an issuer that is away is asked once, however many begin to sign in, and again ten seconds later', async (t) => {
  let asked = 0;
  const away = createServer((socket) => {
    asked += 1;
    socket.on('error', () => {});
    setTimeout(() => socket.destroy(), 200);
  });
  away.listen(0, '127.0.0.1');
  await once(away, 'listening');
  t.after(() => away.close());
  const issuer = `http://127.0.0.1:${(away.address() as AddressInfo).port}`;
  const purser = await openTestServer(t, { settings: { identity: { issuer, audience: 'purser', ...PAGE_CLIENT } } });
  const begin = async () => (await openBrowser(purser).get('/sign-in/issuer')).status;
  assert.deepEqual(new Set(await Promise.all(Array.from({ length: 20 }, begin))), new Set([503]));
  assert.deepEqual([await begin(), asked], [503, 1]);
  purser.clock.advance(10);
  assert.deepEqual([await begin(), asked], [503, 2]);
  assert.equal(purser.log.filter((line) => line.includes('"event":"issuer.failed"')).length, 2);
});

test('without the sign-in, the sessions that it opened are over', async (t) => {
  const { purser } = await openWithIssuer(t);
  const browser = openBrowser(purser);
  const back = await goThere(purser, browser, 'alice');
  await browser.get(`${back.pathname}${back.search}`);
  assert.equal((await browser.get('/wallets')).status, 200);
  const file = join(purser.directory, 'purser.yaml');
  const { identity, ...settings } = parse(readFileSync(file, 'utf8')) as Record<string, unknown>;
  assert.ok(identity);
  await purser.reopen(() => writeFileSync(file, stringify(settings)));
  assert.equal((await openBrowser(purser).get('/')).status, 303);
  assert.equal((await browser.get('/wallets')).status, 303);
  await purser.reopen(() => writeFileSync(file, stringify({ ...settings, identity })));
  assert.equal((await browser.get('/wallets')).status, 303, 'and none of them comes back with the sign-in');
});
