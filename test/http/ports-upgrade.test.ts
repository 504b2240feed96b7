import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type IncomingMessage, request } from 'node:http';
import { type AddressInfo, connect, createServer as createTcpServer } from 'node:net';
import test from 'node:test';
import { WebSocket } from 'undici';
import { resetConnection } from '../../src/net/reset.ts';
import { until } from '../helper/waiting.ts';
import { begin, openPort } from './ports-shared.ts';
import { sendText } from './raw.ts';

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

test('no client that breaks the protocol of an upgrade harms the server', async (t) => {
  const { purser, token, base, session } = await openPort(t);
  const { port, hostname } = new URL(purser.url);
  const head = `GET ${base}/ HTTP/1.1\r\nHost: ${hostname}:${port}\r\nAuthorization: Bearer ${token}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n`;
  for (const how of ['destroy', 'reset', 'end', 'early'] as const) {
    const socket = connect(Number(port), hostname);
    socket.on('error', () => {});
    socket.write(how === 'early' ? `${head}${'x'.repeat(100_000)}` : head);
    if (how !== 'early') await once(socket, 'data');
    if (how === 'reset') resetConnection(socket);
    else if (how === 'end') socket.end();
    else socket.destroy();
  }
  await until('nothing of it is left', async () => session.running() === 0 && purser.app.ports.count() === 0);
  assert.equal((await purser.ask('GET', `${base}/`, { token })).status, 200);
});

test('what would change the protocol behind a request that is being answered waits for its turn, and is no fault', async (t) => {
  const { purser, token, base } = await openPort(t);
  const host = new URL(purser.url).host;
  const authorization = `Authorization: Bearer ${token}`;
  const first = `GET ${base}/ HTTP/1.1\r\nHost: ${host}\r\n${authorization}\r\n\r\n`;
  const upgrade = `GET ${base}/no HTTP/1.1\r\nHost: ${host}\r\n${authorization}\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\n\r\n`;
  assert.deepEqual(
    (await sendText(purser, first + upgrade)).map(({ status }) => status),
    [200, 200],
  );
  const [answer, ...more] = await sendText(purser, `${first}CONNECT ${host} HTTP/1.1\r\nHost: ${host}\r\n\r\n`);
  assert.deepEqual([answer?.status, more], [200, []]);
  assert.deepEqual(
    purser.log.filter((it) => it.includes('request.failed')),
    [],
  );
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
