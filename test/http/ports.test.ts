import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { type IncomingMessage, request, type ServerResponse } from 'node:http';
import { type AddressInfo, connect, createServer as createTcpServer } from 'node:net';
import { PassThrough, Writable } from 'node:stream';
import test from 'node:test';
import { setTimeout as pause } from 'node:timers/promises';
import { hostSession } from '../compute/engines/host-session.ts';
import { until } from '../helper/waiting.ts';
import { begin, MIB, openPort } from './ports-shared.ts';
import { assertRefused } from './refused.ts';

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
    'x-forwarded-server': 'proxy-203.0.113.9',
    'x-original-forwarded-for': '203.0.113.9',
    'x-real-ip': '203.0.113.9',
    'x-client-ip': '203.0.113.9',
    'true-client-ip': '203.0.113.9',
    'x-azure-clientip': '203.0.113.9',
    'cf-connecting-ip': '203.0.113.9',
    'x-envoy-external-address': '203.0.113.9',
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

  Object.assign(purser.backend.guest, { relay: undefined, session: hostSession({ PATH: '/nowhere' }) });
  const none = await purser.ask('GET', `${base}/`, { token });
  assertRefused(none, 502, 'port_unreachable');
  assert.match(none.text, /perl, python3, bash, socat and nc/);
  assert.deepEqual(tenant.heard, []);
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
  Object.assign(purser.backend.guest, { session });
  assertRefused(await purser.ask('GET', `${base}/`, { token }), 502, 'port_unreachable');
  await until('nothing of it is left', async () => purser.app.ports.count() === 0);
});

test('a server that answers and closes before it has read the body is heard, though its relay takes no more', async (t) => {
  const { purser, token, base } = await openPort(t);
  const session = async () => {
    const stdout = new PassThrough();
    stdout.write('connected\n');
    const ended = Promise.withResolvers<{ code: number }>();
    const stdin = new Writable({
      write(_piece, _, done) {
        done(Object.assign(new Error('write EPIPE'), { code: 'EPIPE' }));
        ended.resolve({ code: 0 });
        setImmediate(() => stdout.end('HTTP/1.1 401 Unauthorized\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno'));
      },
    });
    return { stdin, stdout, stderr: undefined, ended: ended.promise, resize() {}, kill() {} };
  };
  Object.assign(purser.backend.guest, { session });
  const answer = await purser.ask('POST', `${base}/`, { token, body: { large: 'x'.repeat(100_000) } });
  assert.deepEqual([answer.status, answer.text], [401, 'no']);
  await until('nothing of it is left', async () => purser.app.ports.count() === 0);
});
