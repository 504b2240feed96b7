import assert from 'node:assert/strict';
import { once } from 'node:events';
import http from 'node:http';
import { type AddressInfo, connect, type Socket } from 'node:net';
import test, { type TestContext } from 'node:test';
import { connect as secure } from 'node:tls';
import { limitConnections } from '../../src/http/connection-limit.ts';
import { followConnections } from '../../src/http/connections.ts';
import { openTlsDoor } from '../../src/http/tls-door.ts';
import type { Certificate } from '../../src/net/certificate.ts';
import { resetConnection } from '../../src/net/reset.ts';
import { makePair } from '../helper/certificate.ts';
import { openLine, requestText } from '../helper/line.ts';
import { openTestServer } from '../helper/server.ts';
import { until } from '../helper/waiting.ts';
import { begin, MIB, openPort } from './ports-shared.ts';

const PAIR = makePair();
const LONG = 600_000;

/** A server that speaks TLS, with at most `max` connections. */
async function open(t: TestContext, { max = 100, handshakeMilliseconds = LONG } = {}) {
  const cut: string[] = [];
  const events = { cutOff: (why: string) => void cut.push(why) };
  const server = http.createServer({ headersTimeout: 100, connectionsCheckingInterval: 50 });
  const certificate = { cert: Buffer.from(PAIR.cert), key: Buffer.from(PAIR.key) } as Certificate;
  const { listener } = openTlsDoor(server, certificate, { handshakeMilliseconds, keepAliveInitialDelay: 0 }, events);
  const limit = limitConnections(max, LONG, new WeakSet(), (_, response) => response.end('answered'), events);
  const connections = followConnections(server, listener);
  server.on('request', (request, response) => connections.take(request, response) && limit.handle(request, response));
  limit.watch(server, listener);
  listener.listen(0, '127.0.0.1');
  await once(listener, 'listening');
  const { port } = listener.address() as AddressInfo;
  const clients: Socket[] = [];
  t.after(async () => {
    for (const it of clients) it.destroy();
    await connections.stop(() => Promise.resolve());
  });
  const follow = (socket: Socket) => {
    socket.on('error', () => {});
    clients.push(socket);
    return socket;
  };
  return {
    cut,
    limit,
    connections,
    url: `https://127.0.0.1:${port}`,
    /** Opens a connection from this address, and resolves when it is accepted. */
    async dial(localAddress = '127.0.0.1') {
      const accepted = once(listener, 'connection');
      const client = follow(connect({ port, host: '127.0.0.1', localAddress }));
      return { client, socket: (await accepted)[0] as Socket };
    },
    shake: async (localAddress = '127.0.0.1') => {
      const client = follow(connect({ port, host: '127.0.0.1', localAddress }));
      const over = secure({ socket: client, rejectUnauthorized: false });
      follow(over);
      await once(over, 'secureConnect');
      return over;
    },
  };
}

test('a connection that says nothing, begins TLS and stops, or sends it byte by byte, is closed in time', async (t) => {
  const { dial, cut, limit } = await open(t, { handshakeMilliseconds: 300 });
  const [silent, half, slow] = [await dial(), await dial(), await dial()];
  half.client.write(Buffer.from([0x16, 0x03, 0x01, 0x02, 0x00, 0x01]));
  const feed = setInterval(() => slow.client.write(Buffer.from([0x16])), 20); // The first bytes are a head of 5,654 bytes.
  t.after(() => clearInterval(feed));
  assert.equal(limit.count(), 3, 'they count from the start');
  await Promise.all([silent, half, slow].map(({ client }) => once(client, 'close')));
  assert.deepEqual(cut, ['handshake', 'handshake', 'handshake']);
  await until('none is counted any more', () => limit.count() === 0);
});

test('after its handshake a connection that says nothing is closed in the time for the headers', async (t) => {
  const { shake, limit } = await open(t);
  const client = await shake();
  assert.equal(limit.count(), 1, 'it is counted once');
  await once(client.resume(), 'close');
  await until('it is not counted any more', () => limit.count() === 0);
});

test('a handshake that fails is closed and not counted any more', async (t) => {
  const { dial, cut, limit } = await open(t);
  const garbage = await dial();
  garbage.client.write(Buffer.concat([Buffer.from([0x16, 0x03, 0x01, 0x00, 0x05]), Buffer.alloc(5, 7)]));
  await once(garbage.client.resume(), 'close');
  assert.deepEqual(cut, ['handshake']);
  const left = await dial();
  left.client.end(Buffer.from([0x16, 0x03]));
  const gone = await dial();
  resetConnection(gone.client);
  left.client.destroy();
  await until('none is counted any more', () => limit.count() === 0);
});

test('connections in their handshake make room first, and those with TLS are evicted as others are', async (t) => {
  const { dial, shake, cut, limit } = await open(t, { max: 3 });
  const [first, second] = [await dial('127.0.0.2'), await dial('127.0.0.2')];
  first.client.write(Buffer.from([0x16, 0x03, 0x01]));
  const other = await shake('127.0.0.1');
  const third = await shake('127.0.0.3');
  assert.deepEqual([cut, first.socket.destroyed, second.socket.destroyed], [['no_room'], true, false]);
  other.write(requestText('GET', '/', {}));
  assert.match(String((await once(other, 'data'))[0]), /answered/);
  await Promise.all([once(second.client, 'close'), dial('127.0.0.4')]);
  await Promise.all([once(third, 'close'), dial('127.0.0.4')]);
  assert.equal(other.destroyed, false, 'it was idle for less long');
  assert.equal(limit.count(), 3);
});

test('a server that stops answers what arrives on connections with TLS, and does not wait for a handshake', async (t) => {
  const { dial, url, connections } = await open(t);
  const begun = await dial();
  begun.client.write(Buffer.from([0x16, 0x03, 0x01]));
  const line = await openLine(url);
  const stopped = connections.stop(async (answered) => {
    line.write(requestText('GET', '/', {}));
    await line.ended;
    begun.client.destroy();
    await answered;
  });
  await stopped;
  assert.match(line.text(), /Connection: close\r\n[\s\S]*answered$/i);
  await assert.rejects(openLine(url));
});

test('under TLS a WebSocket to a port is forwarded, a body is refused before its end, and a slow client gets all', async (t) => {
  const { purser, token, base } = await openPort(
    t,
    (request, response) => (request.url === '/large' ? response.end(Buffer.alloc(8 * MIB)) : response.end('hello')),
    { tls: PAIR },
  );
  const authorization = `Bearer ${token}`;
  const line = await openLine(purser.url);
  const upgrade = { connection: 'Upgrade', upgrade: 'websocket', 'sec-websocket-key': 'dGhlIHNhbXBsZSBub25jZQ==' };
  line.write(requestText('GET', `${base}/`, { authorization, ...upgrade, 'sec-websocket-version': '13' }));
  await line.until((text) => /^HTTP\/1\.1 101 /.test(text));
  line.socket.write(Buffer.from([0x81, 0x82, 0, 0, 0, 0, 0x68, 0x69]));
  await line.until((text) => text.endsWith('hi'));
  line.socket.write(Buffer.from([0x88, 0x80, 0, 0, 0, 0]));
  assert.equal(await line.ended, undefined);

  const early = await openLine(purser.url);
  early.write(requestText('POST', '/v1/wallets', { authorization: 'Bearer no', 'content-length': String(64 * MIB) }));
  early.socket.write(Buffer.alloc(4 * MIB));
  await early.until((text) => text.includes('"error"'));
  assert.equal(early.statuses().length, 1);
  early.socket.destroy();

  const slow = await begin(`${purser.url}${base}/large`, token);
  slow.asked.end();
  const answer = await slow.answered;
  let length = 0;
  for await (const piece of answer) {
    length += (piece as Buffer).length;
    await new Promise((resolve) => setImmediate(resolve));
  }
  assert.equal(length, 8 * MIB);
});

test('the page: its cookie is bound to TLS, also on loopback by another name', async (t) => {
  const purser = await openTestServer(t, { tls: PAIR });
  const { port } = new URL(purser.url);
  for (const host of [`127.0.0.1:${port}`, `localhost:${port}`, '127.0.0.1:7420']) {
    const headers = { host, origin: `https://${host}`, 'content-type': 'application/x-www-form-urlencoded' };
    const post = (over: Record<string, string> = {}) =>
      purser.ask('POST', '/sign-in/key', { body: `key=${purser.accountKey}`, headers: { ...headers, ...over } });
    const { status, headers: answered } = await post();
    assert.equal(status, 303, host);
    assert.match(
      String(answered['set-cookie']),
      /^__Host-purser-session=.*; Path=\/; HttpOnly; SameSite=Lax; .*; Secure$/,
    );
    assert.equal((await post({ origin: `http://${host}` })).status, 403);
  }
});
