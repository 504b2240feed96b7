import assert from 'node:assert/strict';
import { once } from 'node:events';
import http from 'node:http';
import { connect } from 'node:net';
import { hostname } from 'node:os';
import test from 'node:test';
import { isOwnHost } from '../../src/http/head.ts';
import { freePort } from '../helper/free-port.ts';
import { openTestServer, type TestServer } from '../helper/server.ts';
import { waitFor } from '../helper/waiting.ts';

/** What the server says to these lines, and to nothing more. */
async function say(purser: TestServer, ...lines: string[]): Promise<string> {
  const { host, port } = purser.app.address;
  const socket = connect(port, host);
  socket.write(`${[...lines, 'connection: close'].join('\r\n')}\r\n\r\n`);
  let text = '';
  for await (const chunk of socket.setEncoding('utf8')) text += chunk;
  return text;
}

function assertRefused(text: string, status: number, code: string) {
  assert.match(text, new RegExp(`^HTTP/1.1 ${status} `));
  const [head = '', body = ''] = text.split('\r\n\r\n');
  const { error, request_id } = JSON.parse(body);
  assert.equal(error.code, code, text);
  assert.equal(/^x-request-id: (.*)$/im.exec(head)?.[1], request_id);
}

test('a path that means another one is 404, however it is written', async (t) => {
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet();
  const get = (path: string) => say(purser, `GET ${path} HTTP/1.1`, 'host: a', `authorization: Bearer ${token}`);
  for (const path of [
    '/v1/x/../budget',
    '/v1/./budget',
    '/v1/x/%2e%2e/budget',
    '/v1/x/.%2E/budget',
    '/v1/%2e/budget',
    '/x/..\\v1/budget',
    '/v1/budget/.',
    'http://a/v1/x/../budget',
  ])
    assertRefused(await get(path), 404, 'not_found');
  for (const path of ['/v1/budget', '/healthz?a=/../b', 'http://a/v1/budget'])
    assert.match(await get(path), /^HTTP\/1.1 200 /, path);
});

test('no Host, two of them, and an expectation that nobody knows are refused like everything else', async (t) => {
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet();
  const get = (...lines: string[]) =>
    say(purser, 'GET /v1/budget HTTP/1.1', `authorization: Bearer ${token}`, ...lines);
  assertRefused(await get(), 400, 'invalid_request');
  assertRefused(await get('host: a', 'host: a'), 400, 'invalid_request');
  assertRefused(await get('host: a', 'Host: b'), 400, 'invalid_request');
  assertRefused(await get('host: a', 'expect: something'), 417, 'invalid_request');
  assert.match(await get('host: a', 'expect: 100-continue'), /^HTTP\/1.1 100 Continue\r\n\r\nHTTP\/1.1 200 /);
});

test('HTTP/1.0 without a Host is answered: a load balancer asks so whether a server is ready', async (t) => {
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet();
  assert.match(await say(purser, 'GET /readyz HTTP/1.0'), /^HTTP\/1\.1 200 [\s\S]*"ready":true/);
  assert.match(await say(purser, 'GET /v1/budget HTTP/1.0', `authorization: Bearer ${token}`), /^HTTP\/1\.1 200 /);
});

test('no answer may be stored by a cache', async (t) => {
  const purser = await openTestServer(t);
  const { id, token } = await purser.openWallet();
  for (const [method, path, auth, body] of [
    ['GET', `/v1/wallets/${id}/token`, purser.accountKey, undefined],
    ['POST', '/v1/router/key', token, {}],
    ['POST', '/v1/keys', purser.operatorKey, { name: 'a' }],
    ['POST', '/v1/wallets', purser.accountKey, { name: 'a', budget_cents: 100 }],
    ['GET', '/v1/budget', 'none', undefined],
  ] as const) {
    const { headers } = await purser.ask(method, path, { token: auth, body });
    assert.equal(headers['cache-control'], 'no-store', path);
  }
});

test('a gateway key that is revoked while its body comes is refused', async (t) => {
  const purser = await openTestServer(t);
  const { id, token } = await purser.openWallet();
  const { api_key } = (await purser.ask('POST', '/v1/router/key', { token, body: {} })).body;
  const body = JSON.stringify({ model: 'chat', messages: [{ role: 'user', content: 'a' }], max_tokens: 10 });
  const { host, port } = purser.app.address;
  const socket = connect(port, host);
  let text = '';
  socket.setEncoding('utf8').on('data', (chunk) => {
    text += chunk;
  });
  const head = ['POST /v1/router/chat/completions HTTP/1.1', 'host: a', `authorization: Bearer ${api_key}`];
  head.push('content-type: application/json', `content-length: ${body.length}`, 'expect: 100-continue');
  socket.write(`${[...head, 'connection: close'].join('\r\n')}\r\n\r\n${body.slice(0, 20)}`);
  while (!text.includes('100 Continue')) await new Promise((resolve) => socket.once('data', resolve));
  const { keys } = await purser.run('wallet.gateway-keys', { id });
  await purser.run('key.revoke', { id: keys[0]?.id as string });
  socket.write(body.slice(20));
  await new Promise((resolve) => socket.once('close', resolve));
  assert.match(text, /HTTP\/1.1 401 /);
  assert.deepEqual(purser.upstream.calls, []);
});

test('metrics are told to whoever asks an own address or name, and to no other Host', async (t) => {
  const own = [
    '127.0.0.1',
    '127.0.0.1:9420',
    'localhost:9420',
    'LOCALHOST',
    '[::1]:9420',
    '10.0.0.7',
    'purser.lan',
    hostname(),
  ];
  for (const host of own) assert(isOwnHost(host, 'purser.lan'), host);
  const foreign = [
    '',
    'evil.example',
    'evil.example:9420',
    '127.0.0.1.evil.example',
    'localhost.evil',
    '[x]',
    'a@localhost',
  ];
  for (const host of [undefined, ...foreign]) assert(!isOwnHost(host, '127.0.0.1'), String(host));

  const port = await freePort();
  await openTestServer(t, { settings: { metrics: { listen: `127.0.0.1:${port}` } } });
  const statusFor = async (host: string) => {
    const request = http.get({ host: '127.0.0.1', port, path: '/metrics', headers: { host }, agent: false });
    const [response] = (await once(request, 'response')) as [http.IncomingMessage];
    response.resume();
    return response.statusCode;
  };
  assert.equal(await statusFor(`127.0.0.1:${port}`), 200);
  assert.equal(await statusFor('localhost'), 200);
  assert.equal(await statusFor('evil.example'), 421);
});

test('half a request to the metrics is not waited for', async (t) => {
  const port = await freePort();
  await openTestServer(t, { settings: { metrics: { listen: `127.0.0.1:${port}` } } });
  const socket = connect(port, '127.0.0.1');
  t.after(() => socket.destroy());
  socket.on('error', () => {});
  socket.write('GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nX');
  const [answer] = (await waitFor('it is answered', once(socket, 'data'))) as [Buffer];
  assert.match(answer.toString(), /^HTTP\/1\.1 408 /);
});
