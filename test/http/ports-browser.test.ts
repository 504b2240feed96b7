import assert from 'node:assert/strict';
import test from 'node:test';
import { openPort } from './ports-shared.ts';
import { assertRefused } from './refused.ts';

/** A browser as far as cookies and headers go. */
function pageOf(purser: { ask: Awaited<ReturnType<typeof openPort>>['purser']['ask'] }, url: string) {
  const { host, origin, pathname, search } = new URL(url);
  let cookie = '';
  return {
    origin,
    host,
    async open() {
      const answer = await purser.ask('GET', pathname + search, { headers: { host } });
      cookie = String(answer.headers['set-cookie'] ?? '').split(';')[0] as string;
      return answer;
    },
    cookie: () => cookie,
    ask: (path: string, headers: Record<string, string> = {}, method = 'GET') =>
      purser.ask(method, path, { headers: { host, cookie, ...headers } }),
  };
}

/** Cookies that a browser would send back as Purser's own. */
const FORGED = [
  'purser-port=evil; Path=/',
  '=purser-port=evil',
  ' = purser-port=evil; Path=/',
  'purser-port',
  'PURSER-PORT=evil',
];

test('a link opens a port once, for a browser, on a host name of its own', async (t) => {
  const { purser, token, id, port, tenant, base } = await openPort(t, (request, response) => {
    if (request.url === '/own') return response.writeHead(302, { location: `http://localhost:${port}/x` }).end();
    response
      .writeHead(200, {
        'set-cookie': ['a=1; Domain=localhost; Path=/', ...FORGED, 'b=2; HttpOnly'],
        'clear-site-data': '"*"',
      })
      .end(request.url);
  });
  const mint = async (body = { id, port }) => (await purser.ask('POST', '/v1/compute/port', { token, body })).body;
  const link = await mint();
  const { port: own } = new URL(purser.url);
  assert.equal(new URL(link.url).host, `${port}-${id.slice(4)}.localhost:${own}`);
  assert.equal(link.expires_at, purser.app.clock.now() + 300);
  const page = pageOf(purser, link.url);
  assertRefused(await page.ask('/'), 401, 'unauthenticated');
  const opened = await page.open();
  assert.deepEqual([opened.status, opened.headers.location], [303, '/']);
  assert.match(
    String(opened.headers['set-cookie']),
    /^purser-port=session\.[^;]+; Path=\/; HttpOnly; SameSite=Lax; Max-Age=43200$/,
  );
  // The same signature can be written in other ways: its last character carries two bits that say nothing.
  const last = link.url.at(-1) as string;
  const alphabet = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_';
  const twin = alphabet[alphabet.indexOf(last) ^ 1];
  for (const url of [link.url, link.url.slice(0, -1) + twin, `${link.url}!`, `${link.url}=`])
    assertRefused(await pageOf(purser, url).open(), 401, 'unauthenticated');

  const cookies = `theirs=1; ${page.cookie()}; more=2`;
  const headers = { cookie: cookies, origin: page.origin, referer: `${page.origin}/x`, authorization: 'token theirs' };
  const answer = await page.ask('/lab?x=1', headers);
  assert.deepEqual([answer.status, answer.text], [200, '/lab?x=1']);
  assert.deepEqual(answer.headers['set-cookie'], ['a=1; Path=/', 'b=2; HttpOnly']);
  assert.equal(answer.headers['clear-site-data'], undefined);
  assert.equal(answer.headers['content-security-policy'], undefined);
  const heard = tenant.heard.at(-1)?.headers;
  assert.deepEqual(
    [heard?.cookie, heard?.origin, heard?.referer, heard?.host, heard?.authorization],
    ['theirs=1; more=2', `http://localhost:${port}`, `http://localhost:${port}/x`, `localhost:${port}`, 'token theirs'],
  );
  assert.equal((await page.ask('/own')).headers.location, '/x');

  // Nothing of Purser is there, whatever is asked for, and with whatever token.
  assert.equal((await page.ask('/v1/budget', { authorization: `Bearer ${token}` })).text, '/v1/budget');
  assert.equal(tenant.heard.at(-1)?.headers.authorization, undefined);
  assert.equal((await page.ask('/sign-in')).text, '/sign-in');
  assert.equal((await page.ask(`${base}/`)).text, `${base}/`);

  const count = tenant.heard.length;
  const foreign: Record<string, string>[] = [
    { origin: 'https://evil.example' },
    { origin: 'null' },
    { 'sec-fetch-site': 'same-site', 'sec-fetch-mode': 'no-cors', 'sec-fetch-dest': 'script' },
    { 'sec-fetch-site': 'cross-site', 'sec-fetch-mode': 'navigate', 'sec-fetch-dest': 'iframe' },
    { origin: purser.url, 'sec-fetch-site': 'same-site', 'sec-fetch-mode': 'cors' },
  ];
  for (const it of foreign) assertRefused(await page.ask('/', it), 403, 'wrong_token_scope');
  const followed = { 'sec-fetch-site': 'cross-site', 'sec-fetch-mode': 'navigate', 'sec-fetch-dest': 'document' };
  assertRefused(await page.ask('/', followed, 'POST'), 403, 'wrong_token_scope');
  assert.equal(tenant.heard.length, count);
  assert.equal((await page.ask('/', followed)).status, 200);
});

test('a session of a browser opens its own port alone, and ends with the lease', async (t) => {
  const { purser, token, id, port, tenant } = await openPort(t);
  const other = (await purser.lease(token)).body.id as string;
  const mint = async (id: string, port: number) =>
    (await purser.ask('POST', '/v1/compute/port', { token, body: { id, port } })).body.url as string;
  const page = pageOf(purser, await mint(id, port));
  await page.open();
  assert.equal((await page.ask('/')).status, 200);
  const cookie = page.cookie();
  const hosts = [`${port}-${other.slice(4)}.localhost`, `${port === 65_535 ? 1 : port + 1}-${id.slice(4)}.localhost`];
  for (const name of hosts) {
    const host = `${name}:${new URL(purser.url).port}`;
    assertRefused(await purser.ask('GET', '/', { headers: { host, cookie } }), 401, 'unauthenticated');
    const code = new URL(await mint(id, port)).searchParams.get('code');
    const taken = await purser.ask('GET', `/.purser/open?code=${code}`, { headers: { host } });
    assertRefused(taken, 401, 'unauthenticated');
  }
  const forged = [
    cookie.replace(id, other),
    cookie.replace('session.', 'link.'),
    cookie.replace(/\.(\d{10})\./, (_, at) => `.${Number(at) + 100}.`),
    `${cookie}x`,
    'purser-port=',
  ];
  for (const it of forged) assertRefused(await page.ask('/', { cookie: it }), 401, 'unauthenticated');
  // A link is no session, and a session no link.
  const code = new URL(await mint(id, port)).searchParams.get('code');
  assertRefused(await page.ask('/', { cookie: `purser-port=${code}` }), 401, 'unauthenticated');
  const session = cookie.split('=')[1];
  assertRefused(await page.ask(`/.purser/open?code=${session}`, { cookie: '' }), 401, 'unauthenticated');

  const late = pageOf(purser, await mint(id, port));
  purser.clock.advance(300);
  assertRefused(await late.open(), 401, 'unauthenticated');
  assert.equal((await page.ask('/')).status, 200);
  const heard = tenant.heard.length;
  await purser.stop(token, id);
  assertRefused(await page.ask('/'), 409, 'resource_not_active');
  assert.equal(tenant.heard.length, heard);
});

test('a session of a browser goes on while its lease is extended, and over a pause', async (t) => {
  const { purser, session, token, port } = await openPort(t);
  for (const { backend } of purser.app.slots.list) Object.assign(backend.guest, { session });
  const { id } = (await purser.rent(token)).body;
  purser.clock.advance(570);
  const link = (await purser.ask('POST', '/v1/compute/port', { token, body: { id, port } })).body;
  const page = pageOf(purser, link.url);
  await page.open();
  assert.equal((await purser.extend(token, id, 3600)).status, 200);
  purser.clock.advance(100);
  assert.equal((await page.ask('/')).status, 200, 'the end that the lease had when the browser came is over');
  const other = pageOf(purser, (await purser.ask('POST', '/v1/compute/port', { token, body: { id, port } })).body.url);
  await purser.ask('POST', '/v1/compute/pause', { token, body: { id } });
  for (const answer of [await page.ask('/'), await other.open()]) {
    assertRefused(answer, 409, 'resource_not_active');
    assert.match(answer.body.error.message, /is paused\. Resume it first: POST \/v1\/compute\/resume/);
  }
  assertRefused(await pageOf(purser, link.url).open(), 401, 'unauthenticated');
  await purser.ask('POST', '/v1/compute/resume', { token, body: { id } });
  assert.equal((await page.ask('/')).status, 200);
  assert.equal((await other.open()).status, 303, 'the link is not used up');
  const last = pageOf(purser, (await purser.ask('POST', '/v1/compute/port', { token, body: { id, port } })).body.url);
  await purser.stop(token, id);
  for (const answer of [await page.ask('/'), await last.open()]) {
    assertRefused(answer, 409, 'resource_not_active');
    assert.match(answer.body.error.message, /is over/);
  }
});

test('the settings name the host names of ports; without them and without loopback there is no link', async (t) => {
  const { purser, token, id, port } = await openPort(t, undefined, {
    settings: { public_url: 'https://purser.example', ports: { host: '*.ports.example' } },
  });
  const { url } = (await purser.ask('POST', '/v1/compute/port', { token, body: { id, port } })).body;
  assert.match(url, new RegExp(`^https://${port}-${id.slice(4)}\\.ports\\.example/\\.purser/open\\?code=`));
  const page = pageOf(purser, url);
  const { headers } = await page.open();
  assert.match(String(headers['set-cookie']), /^__Host-purser-port=.*; Secure$/);
  assert.equal((await page.ask('/')).text, 'hello');
  assertRefused(await page.ask('/', { host: 'x.ports.example' }), 404, 'not_found');

  const plain = await openPort(t, undefined, { settings: { public_url: 'https://purser.example' } });
  const body = { id: plain.id, port: plain.port };
  const refused = await plain.purser.ask('POST', '/v1/compute/port', { token: plain.token, body });
  assertRefused(refused, 501, 'provider_not_configured');
  assert.match(refused.text, /ports\.host.*-L/);
});
