import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import test, { type TestContext } from 'node:test';
import type { Page } from 'playwright-core';
import { hostSession, WATCHDOG } from '../compute/engines/host-session.ts';
import { openChromium } from '../helper/chromium.ts';
import { until } from '../helper/waiting.ts';
import { echoWebSocket } from '../helper/web-socket.ts';
import { LONG, openMemoryServer } from '../lease/leases.ts';

/** The server of a tenant: a page, and what a page of today asks for. `heard` has the lines and cookies of all requests. */
async function openSite(t: TestContext) {
  const heard: string[] = [];
  const server = createServer((request, response) => {
    heard.push(`${request.method} ${request.url} ${request.rawHeaders.join(' ')}`);
    if (request.url === '/events') {
      response.writeHead(200, { 'content-type': 'text/event-stream' }).write('data: one\n\n');
      return;
    }
    const cookie = request.url === '/' ? { 'set-cookie': ['theirs=1; Path=/', 'wide=1; Domain=localhost'] } : {};
    response.writeHead(200, { 'content-type': 'text/html', ...cookie });
    response.end(request.url === '/' ? '<!doctype html><title>Theirs</title><h1>Hello</h1>' : `got ${request.url}`);
  });
  server.on('upgrade', (request, socket: Socket, head) => {
    heard.push(`UPGRADE ${request.url}`);
    echoWebSocket(request, socket, head);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  return { heard, port: (server.address() as AddressInfo).port };
}

/** Runs a script in a page, as the page's own. What it throws is an answer, too. */
const inside = (page: Page, script: string): Promise<unknown> =>
  page.evaluate(
    `(async () => { try { return await (async () => { ${script} })() } catch (error) { return String(error) } })()`,
  );

test('a browser opens a port by its link, the page works, and gets at nothing of Purser and of other leases', async (t) => {
  const purser = await openMemoryServer(t);
  Object.assign(purser.backend.guest, { session: hostSession(), relay: WATCHDOG });
  const { token } = await purser.openWallet(LONG);
  const [own, other] = [await openSite(t), await openSite(t)];
  const link = async ({ port }: { port: number }) => {
    const { id } = (await purser.lease(token)).body;
    return (await purser.ask('POST', '/v1/compute/port', { token, body: { id, port } })).body.url as string;
  };
  const [theirs, neighbour] = [await link(own), await link(other)];
  // By the name whose cookies a page below it would have the best chance to get at.
  const home = purser.url.replace('127.0.0.1', 'localhost');
  const chromium = await openChromium(t, home, purser.url, new URL(theirs).origin, new URL(neighbour).origin);
  if (!chromium) return;
  const { page, context } = await chromium.open();
  const { url: signIn } = await purser.run('ui.link', {});
  await page.goto(signIn.replace('127.0.0.1', 'localhost'));
  assert.equal(await page.textContent('h1'), 'Now');
  const [session] = (await context.cookies(home)).filter(({ name }) => name === 'purser-session');
  assert(session);
  const opposite = await context.newPage();
  await opposite.goto(neighbour);
  assert.equal(await opposite.textContent('h1'), 'Hello');

  await page.goto(theirs);
  assert.equal(await page.textContent('h1'), 'Hello');
  assert.equal(page.url(), `${new URL(theirs).origin}/`, 'the link is not in the address any more');
  assert.equal(await inside(page, 'return document.cookie'), 'theirs=1; wide=1');
  assert.equal(await inside(page, "return (await fetch('/data?x=1')).text()"), 'got /data?x=1');
  assert.equal(await inside(page, "localStorage.setItem('a', 'b'); return localStorage.getItem('a')"), 'b');
  const events =
    "const it = new EventSource('/events'); return new Promise(done => { it.onmessage = ({ data }) => done(data) })";
  assert.equal(await inside(page, events), 'one');
  const echo = (origin: string) =>
    `const it = new WebSocket('${origin.replace('http', 'ws')}/ws');
    return new Promise(done => { it.onopen = () => it.send('hi'); it.onmessage = ({ data }) => done(data); it.onerror = () => done('no') })`;
  assert.equal(await inside(page, echo(new URL(theirs).origin)), 'hi');

  // Purser: its pages, by every way that a script has.
  const accounts = async () => (await purser.run('account.list', {})).accounts.length;
  const before = await accounts();
  for (const origin of [home, purser.url]) {
    for (const path of ['/', '/accounts', '/v1/budget', '/v1/openapi.json'])
      assert.match(
        String(await inside(page, `return (await fetch('${origin}${path}', { credentials: 'include' })).text()`)),
        /Failed to fetch/,
        `${origin}${path}`,
      );
    assert.match(
      String(
        await inside(
          page,
          `const it = document.createElement('iframe'); it.src = '${origin}/accounts';
          await new Promise(done => { it.onload = done; document.body.append(it) });
          return it.contentDocument === null ? 'nothing' : it.contentDocument.body.innerHTML`,
        ),
      ),
      /nothing|^$/,
    );
    assert.doesNotMatch(
      String(
        await inside(
          page,
          `const it = window.open('${origin}/accounts'); await new Promise(done => setTimeout(done, 500));
          return it.document.body.innerHTML`,
        ),
      ),
      /account/i,
    );
    await inside(
      page,
      `await fetch('${origin}/accounts', { method: 'POST', mode: 'no-cors', credentials: 'include',
        headers: { 'content-type': 'application/x-www-form-urlencoded' }, body: 'name=evil' })`,
    );
    await inside(
      page,
      `const it = document.createElement('form'); it.method = 'post'; it.action = '${origin}/accounts'; it.target = 'x';
      it.innerHTML = '<input name=name value=evil>'; document.body.append(it); it.submit();
      await new Promise(done => setTimeout(done, 300))`,
    );
    assert.match(
      String(await inside(page, `await navigator.serviceWorker.register('${origin}/v1/openapi.json')`)),
      /Error/,
    );
  }
  assert.equal(await accounts(), before);

  // Its session: neither read nor replaced.
  const wide = "for (const it of ['Domain=localhost', 'Domain=localhost; Path=/accounts', 'Path=/'])";
  await inside(page, `${wide} document.cookie = 'purser-session=evil; ' + it`);
  await inside(page, "document.cookie = 'purser-port=evil; Path=/'");
  assert.equal(await inside(page, "return (await fetch('/again')).text()"), 'got /again');
  const kept = (await context.cookies(`${home}/accounts`)).filter(({ name }) => name === 'purser-session');
  assert.deepEqual(
    kept.map(({ value }) => value),
    [session.value],
  );

  // Another lease that the same person has open.
  const count = other.heard.length;
  const target = new URL(neighbour).origin;
  for (const mode of ['cors', 'no-cors'])
    await inside(page, `await fetch('${target}/stolen', { mode: '${mode}', credentials: 'include' })`);
  await inside(page, `await fetch('${target}/stolen', { method: 'POST', mode: 'no-cors', credentials: 'include' })`);
  assert.equal(await inside(page, echo(target)), 'no');
  const script = `const it = document.createElement('script'); it.src = '${target}/stolen.js';
    return new Promise(done => { it.onload = () => done('loaded'); it.onerror = () => done('no'); document.head.append(it) })`;
  assert.equal(await inside(page, script), 'no');
  assert.deepEqual(other.heard.slice(count), []);

  // What the servers inside were told.
  for (const line of [...own.heard, ...other.heard])
    for (const secret of [token, session.value, 'purser-session=', 'session.res_', new URL(purser.url).host])
      assert(!line.replace('purser-session=evil', '').includes(secret), `${secret} in ${line}`);

  const after = await context.newPage();
  await after.goto(`${home}/accounts`);
  assert.match((await after.textContent('h1')) ?? '', /Accounts/, 'the operator is still signed in');
  await context.close();
  await until('nothing is left of it', async () => purser.app.ports.count() === 0);
});

test('a page under the origin of Purser, wherever it comes from, is shown to no browser without the token', async (t) => {
  const purser = await openMemoryServer(t);
  Object.assign(purser.backend.guest, { session: hostSession(), relay: WATCHDOG });
  const { token } = await purser.openWallet(LONG);
  const site = await openSite(t);
  const { id } = (await purser.lease(token)).body;
  const chromium = await openChromium(t, purser.url);
  if (!chromium) return;
  const { page } = await chromium.open();
  await page.goto((await purser.run('ui.link', {})).url);
  const answer = await page.goto(`${purser.url}/v1/compute/${id}/port/${site.port}/`);
  assert.equal(answer?.status(), 401, 'the session of the operator opens no port');
  assert.deepEqual(site.heard, []);
  // Were it shown, by a browser that sends the token with everything, its script would not run.
  const { page: other, context } = await chromium.open({ extraHTTPHeaders: { authorization: `Bearer ${token}` } });
  await other.goto(`${purser.url}/v1/compute/${id}/port/${site.port}/`);
  assert.equal(await other.evaluate('self.origin'), 'null');
  assert.match(String(await inside(other, 'return document.cookie')), /SecurityError/);
  assert.match(String(await inside(other, `return (await fetch('${purser.url}/accounts')).text()`)), /Failed to fetch/);
  await context.close();
});
