import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { createServer, type IncomingMessage, request, type Server, type ServerResponse } from 'node:http';
import { type AddressInfo, connect, createServer as createTcpServer, type Socket } from 'node:net';
import { PassThrough } from 'node:stream';
import test, { type TestContext } from 'node:test';
import { setTimeout as pause } from 'node:timers/promises';
import { WebSocket } from 'undici';
import { hostSession, WATCHDOG } from '../compute/engines/host-session.ts';
import type { TestServerOptions } from '../helper/server.ts';
import { until } from '../helper/waiting.ts';
import { echoWebSocket } from '../helper/web-socket.ts';
import { LONG, openMemoryServer } from '../lease/leases.ts';
import { assertRefused } from './refused.ts';

const MIB = 1024 * 1024;

/** A server of a tenant, on loopback. `heard` has every request that it got. */
async function openTenant(t: TestContext, answer: (request: IncomingMessage, response: ServerResponse) => void) {
  const heard: { method: string; url: string; headers: Record<string, unknown>; raw: string }[] = [];
  const server: Server = createServer((request, response) => {
    const { method = '', url = '', headers, rawHeaders } = request;
    heard.push({ method, url, headers, raw: rawHeaders.join('\n') });
    answer(request, response);
  });
  server.on('upgrade', (request, socket: Socket, head) => {
    heard.push({
      method: request.method as string,
      url: request.url as string,
      headers: request.headers,
      raw: request.rawHeaders.join('\n'),
    });
    if (request.url === '/no') return socket.end('HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno');
    echoWebSocket(request, socket, head);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  return { port: (server.address() as AddressInfo).port, heard, server };
}

/** A lease whose sessions are processes of this machine, and a server inside. */
async function openPort(
  t: TestContext,
  answer: (request: IncomingMessage, response: ServerResponse) => void = (_, response) => response.end('hello'),
  options: TestServerOptions = {},
) {
  const purser = await openMemoryServer(t, options);
  const session = hostSession();
  Object.assign(purser.backend, { session, relay: WATCHDOG });
  const wallet = await purser.openWallet(LONG);
  const { id } = (await purser.lease(wallet.token)).body;
  const tenant = await openTenant(t, answer);
  const base = `/v1/compute/${id}/port/${tenant.port}`;
  return { purser, session, wallet, token: wallet.token, id: id as string, tenant, port: tenant.port, base };
}

/** Begins a request, and returns its answer as a stream. */
async function begin(url: string, token: string, headers: Record<string, string> = {}, method = 'GET') {
  const asked = request(url, { method, headers: { authorization: `Bearer ${token}`, ...headers }, agent: false });
  const answered = once(asked, 'response').then(([it]) => it as IncomingMessage);
  answered.catch(() => {});
  return { asked, answered };
}

test('a request goes to the port with its method, path, query and body, and the answer comes back', async (t) => {
  const { purser, token, base, tenant } = await openPort(t, async (request, response) => {
    let body = '';
    for await (const piece of request) body += piece;
    response.writeHead(request.url === '/teapot' ? 418 : 200, 'As you like', [
      ...[
        'X-Request-Id',
        'theirs',
        'X-Two',
        'one',
        'X-Two',
        'two',
        'Content-Type',
        'text/plain',
        'Connection',
        'X-Hop',
        'X-Hop',
        'gone',
      ],
    ]);
    response.end(`${request.method} ${request.url} ${body}`);
  });
  const get = await purser.ask('GET', `${base}/a%2Fb//c?q=%20&r=1+1`, { token });
  assert.equal(get.text, 'GET /a%2Fb//c?q=%20&r=1+1 ');
  assert.deepEqual(get.headers['x-two'], ['one', 'two']);
  assert.equal(get.headers['x-hop'], undefined);
  assert.match(String(get.headers['x-request-id']), /^req_/);
  assert.equal((await purser.ask('GET', base, { token })).text, 'GET / ');
  assert.equal((await purser.ask('GET', `${base}?x`, { token })).text, 'GET /?x ');
  const teapot = await purser.ask('DELETE', `${base}/teapot`, { token });
  assert.deepEqual([teapot.status, teapot.text], [418, 'DELETE /teapot ']);
  for (const method of ['POST', 'PUT', 'PATCH', 'PROPFIND', 'DELETE'])
    assert.equal(
      (await purser.ask(method, `${base}/x`, { token, body: 'some words' })).text,
      `${method} /x some words`,
    );
  const empty = await purser.ask('POST', `${base}/x`, { token });
  assert.equal(empty.text, 'POST /x ');
  assert.equal(tenant.heard.at(-1)?.headers['content-length'], '0');
  const printed = t.mock.method(console, 'error', () => {});
  const head = await purser.ask('HEAD', `${base}/x`, { token });
  assert.deepEqual([head.status, head.text, head.headers['x-two']], [200, '', ['one', 'two']]);
  assert.equal(printed.mock.callCount(), 0, 'the answer is sent once');
  // The largest body of an endpoint is no limit here.
  const large = 'x'.repeat(20 * MIB);
  assert.equal(
    (await purser.ask('POST', `${base}/x`, { token, body: large })).text.length,
    'POST /x '.length + 20 * MIB,
  );
});

test('the server inside never sees the token, nor any other of Purser, nor a cookie or an address of Purser', async (t) => {
  const { purser, token, base, tenant, wallet } = await openPort(t);
  const other = await purser.openWallet();
  const sent = {
    cookie: '__Host-purser-session=abc; purser-session=def; theirs=1',
    'x-api-key': token,
    'proxy-authorization': `Bearer ${token}`,
    'x-mine': `token ${other.token}`,
    'x-of-theirs': 'stays',
    origin: purser.url,
    referer: `${purser.url}/wallets/${wallet.id}`,
    'x-forwarded-for': '203.0.113.9',
    forwarded: 'for=203.0.113.9',
    te: 'trailers',
    connection: 'keep-alive, x-hop',
    'x-hop': 'gone',
  };
  const { asked, answered } = await begin(`${purser.url}${base}/`, token, sent);
  asked.end();
  (await answered).resume();
  const { raw, headers } = tenant.heard[0] as (typeof tenant.heard)[number];
  for (const secret of [token, other.token, purser.accountKey, 'purser-session', purser.url, '203.0.113.9', wallet.id])
    assert(!raw.includes(secret), raw);
  assert.deepEqual(headers, {
    host: `localhost:${tenant.port}`,
    'x-of-theirs': 'stays',
    connection: 'keep-alive',
  });
  for (const place of [
    `/?token=${token}`,
    `/${token}`,
    `/?t=${encodeURIComponent(token).replace('_', '%5F')}`,
    `/?t=%zz${token.replace('_', '%5F')}`,
  ])
    assertRefused(await purser.ask('GET', `${base}${place}`, { token }), 400, 'invalid_request');
  assert.equal(tenant.heard.length, 1);
  assert(!purser.log.some((line) => line.includes(token)));
});

test('an answer under the origin of Purser can do nothing for that origin in a browser', async (t) => {
  const { purser, token, base, port } = await openPort(t, (request, response) => {
    if (request.url === '/away') return response.writeHead(302, { location: 'https://elsewhere.example/x' }).end();
    if (request.url === '/own') return response.writeHead(302, { location: '/login?next=%2F' }).end();
    if (request.url === '/full') return response.writeHead(302, { location: `http://127.0.0.1:${port}/x` }).end();
    response
      .writeHead(200, {
        'set-cookie': ['purser-session=evil; Path=/', '__Host-purser-session=evil; Path=/; Secure'],
        'service-worker-allowed': '/',
        'clear-site-data': '"*"',
        'access-control-allow-origin': '*',
        'access-control-allow-credentials': 'true',
        'content-security-policy': "default-src 'none'",
        'strict-transport-security': 'max-age=1; includeSubDomains',
        'alt-svc': 'h2="evil.example:443"',
        'cache-control': 'public, max-age=9999',
        refresh: '0;url=https://elsewhere.example',
        'www-authenticate': 'Basic realm="Purser"',
        'content-type': 'text/html',
      })
      .end('<script>alert(1)</script>');
  });
  const { headers } = await purser.ask('GET', `${base}/`, { token });
  const {
    date: _,
    connection: __,
    'keep-alive': ___,
    'transfer-encoding': ____,
    'x-request-id': id,
    ...rest
  } = headers;
  assert.match(String(id), /^req_/);
  assert.deepEqual(rest, {
    'cross-origin-resource-policy': 'same-origin',
    'content-security-policy': ['sandbox', "default-src 'none'"],
    'x-content-type-options': 'nosniff',
    'cache-control': 'no-store',
    'content-type': 'text/html',
  });
  const location = async (path: string) => (await purser.ask('GET', `${base}${path}`, { token })).headers.location;
  assert.equal(await location('/own'), `${base}/login?next=%2F`);
  assert.equal(await location('/full'), `${base}/x`);
  assert.equal(await location('/away'), 'https://elsewhere.example/x');
});

test('who may not, gets what the interface says, and the server inside hears nothing', async (t) => {
  const { purser, token, base, tenant, id, port } = await openPort(t);
  const other = await purser.openWallet();
  const ask = (token: string | undefined, path = `${base}/`, headers = {}) =>
    purser.ask('GET', path, { headers, ...(token === undefined ? {} : { token }) });
  assertRefused(await ask(undefined), 401, 'unauthenticated');
  assertRefused(await ask(`${token}x`), 401, 'unauthenticated');
  assertRefused(await ask(undefined, `${base}/`, { 'x-api-key': token }), 401, 'unauthenticated');
  assertRefused(await ask(other.token), 404, 'not_found');
  assertRefused(await ask(purser.accountKey), 403, 'wrong_token_scope');
  assertRefused(await ask(purser.operatorKey), 403, 'wrong_token_scope');
  const headers = { authorization: `Bearer ${token}` };
  const dots = request(purser.url, { path: `${base}/%2e%2e/${port}/x`, headers, agent: false }).end();
  assert.equal(((await once(dots, 'response')) as [IncomingMessage])[0].statusCode, 404);
  for (const wrong of ['0', '65536', '-1', '1e3', 'http', '08080'])
    assertRefused(await ask(token, `/v1/compute/${id}/port/${wrong}/`), 400, 'invalid_request');
  assertRefused(await ask(other.token, `/v1/compute/${id}/port/0/`), 400, 'invalid_request');
  const upgrade = { connection: 'Upgrade', upgrade: 'websocket' };
  const refused = request(`${purser.url}${base}/`, { headers: upgrade, agent: false }).end();
  const [answer] = await once(refused, 'response');
  assert.equal(answer.statusCode, 401);
  assert.deepEqual(tenant.heard, []);

  await purser.stop(token, id);
  assertRefused(await ask(token), 409, 'resource_not_active');
  assertRefused(
    await purser.ask('POST', '/v1/compute/port', { token, body: { id, port } }),
    409,
    'resource_not_active',
  );
});

test('a port where nothing listens, or something that is no server of HTTP, is a 502 that says what to do', async (t) => {
  const { purser, token, id, session, base, tenant } = await openPort(t);
  const at = (port: number, method = 'GET') => purser.ask(method, `/v1/compute/${id}/port/${port}/`, { token });
  const closed = await at(1);
  assertRefused(closed, 502, 'port_unreachable');
  assert.match(closed.text, /Nothing listens on port 1 inside the resource\. Start a server/);
  const words = [
    'SSH-2.0-OpenSSH\r\n',
    '',
    'HTTP/1.1 99 X\r\n\r\n',
    `HTTP/1.1 200 OK\r\nX: ${'x'.repeat(40_000)}\r\n\r\n`,
  ];
  for (const text of words) {
    const server = createTcpServer((socket) => {
      socket.on('error', () => {});
      socket.end(text);
    }).listen(0, '127.0.0.1');
    await once(server, 'listening');
    t.after(() => server.close());
    for (const method of ['GET', 'POST'])
      assertRefused(await at((server.address() as AddressInfo).port, method), 502, 'port_unreachable');
  }
  await until('nothing of it is left running', async () => session.running() === 0);

  Object.assign(purser.backend, { relay: undefined, session: hostSession({ PATH: '/nowhere' }) });
  const none = await purser.ask('GET', `${base}/`, { token });
  assertRefused(none, 502, 'port_unreachable');
  assert.match(none.text, /perl, python3, bash, socat and nc/);
  assert.deepEqual(tenant.heard, []);
});

test('connections are used again, and a server that ends an idle one costs no request', async (t) => {
  const { purser, token, base, tenant, session } = await openPort(t);
  let connections = 0;
  tenant.server.on('connection', () => connections++);
  const warnings: Error[] = [];
  const warn = (warning: Error) => void warnings.push(warning);
  process.on('warning', warn);
  t.after(() => process.off('warning', warn));
  for (let count = 0; count < 20; count++) await purser.ask('GET', `${base}/`, { token });
  assert.equal(connections, 1);
  assert.deepEqual(warnings, [], 'no request leaves a listener on the connection');
  assert.equal(session.running(), 1);
  assert.equal(purser.app.ports.count(), 1);
  for (let count = 0; count < 10; count++) {
    tenant.server.closeIdleConnections();
    assert.equal((await purser.ask('GET', `${base}/`, { token })).status, 200);
  }
  await until('an idle connection is let go', async () => session.running() === 0 && purser.app.ports.count() === 0);
});

/** Resident memory of this process, in bytes, after the garbage is gone. */
const resident = () => process.memoryUsage().rss;

test('50 MB either way with a slow reader take no more memory than a few', async (t) => {
  const size = 50 * MIB;
  const piece = randomBytes(MIB);
  let produced = 0;
  let arrived = 0;
  let readSlowly = true;
  const { purser, token, base } = await openPort(t, async (request, response) => {
    if (request.method === 'GET') {
      for (; produced < size; produced += piece.length)
        if (!response.write(piece)) await once(response, 'drain').catch(() => {});
      return response.end();
    }
    for await (const part of request) {
      arrived += (part as Buffer).length;
      if (readSlowly) await pause(5);
    }
    response.end(String(arrived));
  });
  const down = await begin(`${purser.url}${base}/`, token);
  down.asked.end();
  const answer = await down.answered;
  await once(answer, 'readable');
  // Until everything on the way is full.
  await until('nothing more is produced', async () => {
    const before = produced;
    await pause(300);
    return produced === before;
  });
  assert(produced < 24 * MIB, `${produced} bytes on their way to a reader that reads nothing`);
  const before = resident();
  let received = 0;
  for await (const part of answer) received += (part as Buffer).length;
  assert.equal(received, size);

  const up = await begin(`${purser.url}${base}/`, token, { 'content-length': String(size) }, 'POST');
  let written = 0;
  const writing = (async () => {
    for (; written < size; written += piece.length) if (!up.asked.write(piece)) await once(up.asked, 'drain');
    up.asked.end();
  })();
  await until('nothing more is taken', async () => {
    const before = written;
    await pause(100);
    return written > 0 && written - before < 4 * MIB;
  });
  assert(written - arrived < 24 * MIB, `${written - arrived} bytes on their way`);
  readSlowly = false;
  await writing;
  assert.equal(String(await (await up.answered).toArray().then((all) => Buffer.concat(all))), String(size));
  assert(resident() - before < 100 * MIB);
});

test('events arrive one by one, and a client that goes ends the request inside', async (t) => {
  let client: ServerResponse | undefined;
  let isGone = false;
  const { purser, token, base, session } = await openPort(t, (_, response) => {
    client = response;
    response.on('close', () => {
      isGone = true;
    });
    response.writeHead(200, { 'content-type': 'text/event-stream' }).flushHeaders();
  });
  const { asked, answered } = await begin(`${purser.url}${base}/`, token);
  asked.end();
  const answer = await answered;
  for (const event of ['data: 1\n\n', 'data: 2\n\n']) {
    client?.write(event);
    const [piece] = await once(answer, 'data');
    assert.equal(String(piece), event);
  }
  asked.destroy();
  await until('the server inside knows', async () => isGone);
  await until('nothing of it is left running', async () => session.running() === 0);
});

test('a WebSocket echoes, an upgrade that is refused is answered, and elsewhere there is none', async (t) => {
  const { purser, token, base, tenant, session, port } = await openPort(t);
  const open = (path: string) =>
    new WebSocket(`${purser.url.replace('http', 'ws')}${base}${path}`, {
      headers: { authorization: `Bearer ${token}` },
    });
  const socket = open('/ws?x=1');
  await new Promise((resolve, reject) => {
    socket.addEventListener('open', resolve);
    socket.addEventListener('error', reject);
  });
  for (const text of ['hello', 'x'.repeat(100_000), 'ünïcode']) {
    const answer = new Promise((resolve) =>
      socket.addEventListener('message', ({ data }) => resolve(data), { once: true }),
    );
    socket.send(text);
    assert.equal(await answer, text);
  }
  const { headers, url, raw } = tenant.heard[0] as (typeof tenant.heard)[number];
  assert.deepEqual([url, headers.host, headers.upgrade], ['/ws?x=1', `localhost:${port}`, 'websocket']);
  assert(!raw.includes(token));
  assert.equal(purser.app.ports.count(), 1);
  socket.close();
  await until('nothing of it is left', async () => session.running() === 0 && purser.app.ports.count() === 0);

  const headersOf = (path: string) => ({
    path: `${base}${path}`,
    headers: {
      authorization: `Bearer ${token}`,
      connection: 'Upgrade',
      upgrade: 'websocket',
      'sec-websocket-version': '13',
      'sec-websocket-key': 'dGhlIHNhbXBsZSBub25jZQ==',
    },
  });
  const refused = request(purser.url, { ...headersOf('/no'), agent: false }).end();
  const [answer] = (await once(refused, 'response')) as [IncomingMessage];
  assert.deepEqual([answer.statusCode, String(Buffer.concat(await answer.toArray()))], [403, 'no']);

  const budget = request(`${purser.url}/v1/budget`, { headers: headersOf('').headers, agent: false }).end();
  const [plain] = (await once(budget, 'response')) as [IncomingMessage];
  assert.equal(plain.statusCode, 200, 'elsewhere an upgrade is a request like any other');
  plain.resume();
});

test('a lease that ends cuts what is open: at its deadline, at a stop, and when its wallet closes', async (t) => {
  for (const end of ['deadline', 'stop', 'close', 'expiry'] as const)
    await t.test(end, async (t) => {
      const { purser, token, base, id, session, wallet } = await openPort(t, (_, response) => {
        response.writeHead(200).write('begun');
      });
      const { asked, answered } = await begin(`${purser.url}${base}/`, token);
      asked.on('error', () => {}).end();
      const answer = await answered;
      await once(answer, 'data');
      const cut = once(answer, 'error');
      const socket = new WebSocket(`${purser.url.replace('http', 'ws')}${base}/`, {
        headers: { authorization: `Bearer ${token}` },
      });
      await new Promise((resolve) => socket.addEventListener('open', resolve));
      const closed = new Promise((resolve) => socket.addEventListener('close', resolve));
      assert.equal(purser.app.ports.count(), 2);
      if (end === 'stop') await purser.stop(token, id);
      else if (end === 'close') await purser.closeWallet(wallet.id);
      else purser.clock.advance(end === 'deadline' ? 600 : 7200);
      answer.resume();
      const [error] = await cut;
      assert.match(String(error), /aborted|ECONNRESET|terminated/, 'an answer that was cut off does not look whole');
      await closed;
      await until('nothing of it is left', async () => session.running() === 0 && purser.app.ports.count() === 0);
    });
});

/** A lease with a server inside that says without end what its one client, whose connection was upgraded, does not read. */
async function openDeaf(t: TestContext, options: TestServerOptions = {}) {
  const it = await openPort(t, undefined, options);
  let said = 0;
  const piece = Buffer.alloc(MIB);
  it.tenant.server.removeAllListeners('upgrade').on('upgrade', (_, socket: Socket) => {
    socket.on('error', () => {});
    const say = () => {
      said += 1;
      socket.write(piece, (error) => error || say());
    };
    socket.write('HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: endless\r\n\r\n');
    say();
  });
  const { hostname, port } = new URL(it.purser.url);
  const client = connect(Number(port), hostname).on('error', () => {});
  t.after(() => client.destroy());
  const head = [`GET ${it.base}/ HTTP/1.1`, 'Host: x', `Authorization: Bearer ${it.token}`, 'Connection: Upgrade'];
  client.write(`${head.join('\r\n')}\r\nUpgrade: endless\r\n\r\n`);
  const [answer] = await once(client, 'data');
  client.pause();
  assert.match(String(answer), /^HTTP\/1\.1 101 /);
  await until('everything on the way is full', async () => {
    const before = said;
    await pause(300);
    return said === before;
  });
  return it;
}

test('a server stops although the client of an upgraded connection reads nothing', async (t) => {
  const { purser } = await openDeaf(t);
  let isClosed = false;
  void purser.close().then(() => {
    isClosed = true;
  });
  await until('it has stopped', async () => isClosed);
});

test('the end of a lease ends an upgraded connection although its client reads nothing', async (t) => {
  const { purser, token, id } = await openDeaf(t);
  /** Those of `ask` stay open. */
  const connections = async () =>
    Number(/^purser_connections (\d+)$/m.exec(await purser.app.events.registry.metrics())?.[1]);
  const before = await connections();
  await purser.stop(token, id);
  await until('its connection has ended', async () => (await connections()) < before);
});

test('a client of an upgraded connection that takes nothing is cut off; one that has nothing to say is not', async (t) => {
  const { purser, base, token, tenant } = await openDeaf(t, { stallMilliseconds: 1000 });
  const stalled = async () =>
    /^purser_connections_cut_off_total\{reason="stalled"\} 1$/m.test(await purser.app.events.registry.metrics());
  await until('it was cut off', stalled);
  await until('and the connection inside with it', async () => purser.app.ports.count() === 0);

  tenant.server.removeAllListeners('upgrade').on('upgrade', echoWebSocket);
  const socket = new WebSocket(`${purser.url.replace('http', 'ws')}${base}/`, {
    headers: { authorization: `Bearer ${token}` },
  });
  await once(socket, 'open');
  await pause(2500);
  const answer = once(socket, 'message');
  socket.send('still there');
  assert.equal((await answer)[0].data, 'still there');
  socket.close();
});

test('TCP asks a silent client whether it is still there', async (t) => {
  const purser = await openMemoryServer(t);
  const { hostname, port } = new URL(purser.url);
  const client = connect(Number(port), hostname);
  t.after(() => client.destroy());
  await once(client, 'connect');
  const hex = (it: number) => it.toString(16).toUpperCase().padStart(4, '0');
  // The server's side, and its timer: 02 is that of SO_KEEPALIVE on an idle connection (Linux, proc_net_tcp.rst).
  const row = new RegExp(`: \\w+:${hex(Number(port))} \\w+:${hex(client.localPort as number)} \\w+ \\w+:\\w+ (\\w+):`);
  await until('it is accepted', async () => row.test(readFileSync('/proc/net/tcp', 'utf8')));
  assert.equal(row.exec(readFileSync('/proc/net/tcp', 'utf8'))?.[1], '02');
});

test('64 connections of a lease are the most, and one that ends makes room', async (t) => {
  const held: ServerResponse[] = [];
  const { purser, token, base } = await openPort(t, (_, response) => {
    held.push(response);
    response.writeHead(200).flushHeaders();
  });
  const open = [];
  for (let count = 0; count < 64; count++) {
    const one = await begin(`${purser.url}${base}/`, token);
    one.asked.end();
    open.push(one);
  }
  await Promise.all(open.map((it) => it.answered));
  const refused = await purser.ask('GET', `${base}/`, { token });
  assertRefused(refused, 429, 'rate_limited');
  assert.match(refused.text, /64 connections to ports/);
  open[0]?.asked.on('error', () => {}).destroy();
  await until('there is room', async () => purser.app.ports.count() === 63);
  const again = await begin(`${purser.url}${base}/`, token);
  again.asked.end();
  assert.equal((await again.answered).statusCode, 200);
  for (const it of [...open, again]) it.asked.on('error', () => {}).destroy();
  await until('all of it is given back', async () => purser.app.ports.count() === 0);
  assert(purser.app.memory.open('anybody').tryTake(64 * MIB));
});

test('a server that stops cuts what is open and does not wait for it', async (t) => {
  const { purser, token, base, session } = await openPort(t, (_, response) => void response.writeHead(200).write('x'));
  const { asked, answered } = await begin(`${purser.url}${base}/`, token);
  asked.on('error', () => {}).end();
  const answer = await answered;
  const cut = once(answer, 'error');
  answer.resume();
  await purser.close();
  await cut;
  await until('nothing of it is left running', async () => session.running() === 0);
});

test('no client that breaks the protocol of an upgrade harms the server', async (t) => {
  const { purser, token, base, session } = await openPort(t);
  const { port, hostname } = new URL(purser.url);
  const head = `GET ${base}/ HTTP/1.1\r\nHost: ${hostname}:${port}\r\nAuthorization: Bearer ${token}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n`;
  for (const how of ['destroy', 'reset', 'end', 'early'] as const) {
    const socket = connect(Number(port), hostname);
    socket.on('error', () => {});
    socket.write(how === 'early' ? `${head}${'x'.repeat(100_000)}` : head);
    if (how !== 'early') await once(socket, 'data');
    if (how === 'reset') socket.resetAndDestroy();
    else if (how === 'end') socket.end();
    else socket.destroy();
  }
  await until('nothing of it is left', async () => session.running() === 0 && purser.app.ports.count() === 0);
  assert.equal((await purser.ask('GET', `${base}/`, { token })).status, 200);
});

/** Sends bytes to Purser, and returns all that comes back until `text` has come or the connection is over. */
async function sendRaw(url: string, text: string, last: string): Promise<string> {
  const { port, hostname } = new URL(url);
  const socket = connect(Number(port), hostname).setEncoding('latin1');
  socket.on('error', () => {});
  socket.write(text);
  let heard = '';
  for await (const piece of socket) {
    heard += piece;
    if (heard.includes(last)) break;
  }
  socket.destroy();
  return heard;
}

test('what stands in a body is never taken for a request', async (t) => {
  const { purser, token, base, tenant } = await openPort(t, async (request, response) => {
    if (request.url !== '/early') for await (const _ of request);
    response.end(`over ${request.url}`);
  });
  const body = `GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n`;
  const head = (path: string, more: string) =>
    `GET ${base}${path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${token}\r\nContent-Length: ${body.length}\r\n${more}\r\n`;
  await sendRaw(purser.url, `${head('/named', 'Connection: content-length\r\n')}${body}`, 'over');
  assert.equal(tenant.heard.at(-1)?.headers['content-length'], String(body.length));
  // An upgrade with a body is none: what follows its head is the body, whether the server waits for it or not.
  for (const path of ['/upgrade', '/early'])
    await sendRaw(purser.url, `${head(path, 'Connection: Upgrade\r\nUpgrade: h2c\r\n')}${body}`, 'over');
  const after = await purser.ask('GET', `${base}/after`, { token });
  assert.equal(after.text, 'over /after');
  assert.deepEqual(
    tenant.heard.map((it) => it.url),
    ['/named', '/upgrade', '/early', '/after'],
  );
  assert(tenant.heard.every((it) => it.headers.upgrade === undefined));
});

test('a server that changes the protocol without being asked to is refused', async (t) => {
  const { purser, token, id } = await openPort(t);
  const server = createTcpServer((socket) => {
    socket.on('error', () => {});
    socket.write('HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nHTTP/1.1 200 OK\r\n');
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => server.close());
  const { port } = server.address() as AddressInfo;
  for (const connection of ['keep-alive', 'x-upgrade']) {
    const { asked, answered } = await begin(`${purser.url}/v1/compute/${id}/port/${port}/`, token, {
      connection,
      upgrade: 'echo',
    });
    asked.end();
    assert.equal((await answered).resume().statusCode, 502);
  }
});

test('a server that says something and closes before it is asked leaves nobody waiting', async (t) => {
  const { purser, token, base } = await openPort(t);
  const session = async () => {
    const stdout = new PassThrough();
    stdout.end('connected\nSSH-2.0-OpenSSH\r\n');
    const stderr = new PassThrough();
    stderr.end();
    const ended = Promise.resolve({ code: 0 });
    return { stdin: new PassThrough(), stdout, stderr, ended, resize() {}, kill() {} };
  };
  Object.assign(purser.backend, { session });
  assertRefused(await purser.ask('GET', `${base}/`, { token }), 502, 'port_unreachable');
  await until('nothing of it is left', async () => purser.app.ports.count() === 0);
});

test('a wallet that is frozen keeps its ports, as it keeps its leases', async (t) => {
  const { purser, token, base, wallet } = await openPort(t);
  const frozen = await purser.ask('POST', `/v1/wallets/${wallet.id}/freeze`, { token: purser.accountKey, body: {} });
  assert.equal(frozen.status, 200, frozen.text);
  assert.equal((await purser.ask('GET', `${base}/`, { token })).text, 'hello');
});

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
    /^purser-port=session\.[^;]+; Path=\/; HttpOnly; SameSite=Lax; Max-Age=600$/,
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
