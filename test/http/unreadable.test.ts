import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import test from 'node:test';
import { REFUSALS, type Refusal } from '../../src/base/refusal.ts';
import { readBody, streamBody } from '../../src/http/body.ts';
import { followConnections } from '../../src/http/connections.ts';
import { createMemoryQuota } from '../../src/http/memory-quota.ts';
import { answerUnreadable } from '../../src/http/unreadable.ts';
import type { Events } from '../../src/telemetry/events.ts';
import { openLine, requestText } from '../helper/line.ts';
import { openTestServer, type TestServer } from '../helper/server.ts';
import { gate } from '../helper/upstream.ts';
import { UNHURRIED_MILLISECONDS, until } from '../helper/waiting.ts';
import { answersIn, sendText } from './raw.ts';
import { assertNothingMoves, assertRefused } from './refused.ts';

/** The head of a request to open a wallet, whose body is to come in chunks. */
const opening = (purser: TestServer, coding = 'chunked') =>
  requestText('POST', '/v1/wallets', {
    authorization: `Bearer ${purser.accountKey}`,
    'idempotency-key': 'K',
    'content-type': 'application/json',
    'transfer-encoding': coding,
  });

async function assertOneRefusal(purser: TestServer, status: number, code: string, ...pieces: string[]) {
  const answers = await sendText(purser, ...pieces);
  assert.equal(answers.length, 1, JSON.stringify(answers));
  assertRefused(answers[0] as (typeof answers)[0], status, code, pieces.join('').slice(0, 60));
  return answers[0]?.body.error.message as string;
}

test('a body that breaks its own framing is answered with a 400, and does nothing', async (t) => {
  const purser = await openTestServer(t);
  await assertNothingMoves(purser, async () => {
    const refused = (...pieces: string[]) => assertOneRefusal(purser, 400, 'invalid_request', ...pieces);
    assert.match(await refused(`${opening(purser)}zz\r\nhello\r\n`), /chunk size/);
    await refused(opening(purser), 'zz\r\nhello\r\n');
    await refused(`${opening(purser)}3\r\nhello\r\n0\r\n\r\n`);
    await refused(opening(purser), '3\r\n{"a\r\n', '3\r\nhello\r\n0\r\n\r\n');
    await refused(`${opening(purser, 'gzip')}hello`);
    await refused(`${opening(purser, 'gzip, chunked')}0\r\n\r\n`);
    await refused(`${opening(purser, 'chunked, chunked')}0\r\n\r\n`);
    await refused(requestText('GET', '/v1/account', { 'transfer-encoding': 'gzip' }));
  });
});

test('what is no request of this protocol is answered in the one shape', async (t) => {
  const purser = await openTestServer(t);
  await assertNothingMoves(purser, async () => {
    const refused = (text: string) => assertOneRefusal(purser, 400, 'invalid_request', text);
    await refused('CONNECT example.com:443 HTTP/1.1\r\nhost: example.com:443\r\n\r\n');
    assert.match(await refused('GET /v1/account\r\n\r\n'), /HTTP\/1\.1/);
    await refused('GET /v1/account HTTP/0.9\r\nhost: a\r\n\r\n');
    await refused('GET /v1/account HTTP/2.0\r\nhost: a\r\n\r\n');
    await refused('\x16\x03\x01\x02\x00\x01');
  });
});

test('a head that is too long is a 431, whatever makes it so', async (t) => {
  const purser = await openTestServer(t);
  const long = 'a'.repeat(20_000);
  for (const text of [
    requestText('GET', '/v1/account', { cookie: long }),
    requestText('GET', `/v1/account?${long}`, {}),
  ])
    assert.match(await assertOneRefusal(purser, 431, 'head_too_large', text), /16 KiB/);
  const many = `GET /v1/account HTTP/1.1\r\nhost: a\r\n${'a: b\r\n'.repeat(3000)}\r\n`;
  assert.match(await assertOneRefusal(purser, 431, 'head_too_large', many), /2000 headers/);
});

/** These answers read nothing. */
const NO_DISK = { used() {}, failedRead: () => undefined, confirmAfterPause: () => undefined };

test('a client that is too slow is told so: in its head and in its body', async (t) => {
  const server = createServer({ headersTimeout: 1, requestTimeout: 1, connectionsCheckingInterval: 1 });
  const connections = followConnections(server);
  const events = { refused() {}, failed() {} } as unknown as Events;
  answerUnreadable({ events, storage: NO_DISK }, server, connections);
  server.on('request', (request, response) => {
    connections.take(request, response);
    const share = createMemoryQuota().open('somebody');
    readBody(request, 1000, share).catch(({ code }: Refusal) => response.writeHead(REFUSALS[code].status).end('late'));
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  const { port } = server.address() as AddressInfo;
  for (const text of ['GET / HT', 'POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nab']) {
    const line = await openLine(`http://127.0.0.1:${port}`);
    line.write(text);
    await line.until((it) => /request_timeout|late/.test(it));
    line.socket.destroy();
    assert.deepEqual(line.statuses(), [408], text);
    assert.match(line.text(), /connection: close/i);
  }
});

test('a body that is read as it comes has no limit but that something comes', async (t) => {
  const server = createServer({ headersTimeout: 500, requestTimeout: 500, connectionsCheckingInterval: 1 });
  const connections = followConnections(server);
  answerUnreadable({ events: {} as Events, storage: NO_DISK }, server, connections);
  let checks = 0;
  server.on('clientError', () => {
    checks++;
  });
  server.on('request', async (request, response) => {
    connections.take(request, response);
    const body = streamBody(request, UNHURRIED_MILLISECONDS, createMemoryQuota().open('somebody'));
    const pieces: Buffer[] = [];
    for (let it = await body.next(); it; it = await body.next()) pieces.push(it);
    response.end(Buffer.concat(pieces));
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  const line = await openLine(`http://127.0.0.1:${(server.address() as AddressInfo).port}`);
  line.write('POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nab');
  await until('Node has found it too slow', () => checks > 0);
  line.write('cd');
  await line.until((it) => it.endsWith('abcd'));
  assert.deepEqual(line.statuses(), [200]);
});

test('the answer to an earlier request comes before the refusal of what follows it', async (t) => {
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet();
  const body = JSON.stringify({ model: 'chat', messages: [{ role: 'user', content: 'a' }], max_tokens: 10 });
  const headers = { authorization: `Bearer ${token}`, 'content-type': 'application/json' };
  for (const [index, [follows, status]] of (
    [
      ['rubbish\r\n\r\n', 400],
      [`${opening(purser)}zz\r\n`, 400],
      [requestText('GET', '/v1/account', { cookie: 'a'.repeat(20_000) }), 431],
    ] as const
  ).entries()) {
    const slow = gate();
    purser.upstream.handle = slow.handler;
    const line = await openLine(purser.url);
    line.write(requestText('POST', '/v1/chat/completions', { ...headers, 'idempotency-key': `K${index}` }, body));
    await purser.upstream.arrived(index + 1);
    line.write(follows);
    // A request on another connection, sent later: by its answer the server has read what follows.
    await purser.ask('GET', '/v1/account', { token: purser.accountKey });
    assert.equal(line.text(), '');
    slow.open();
    assert.equal(await line.ended, undefined);
    assert.deepEqual(
      answersIn(line.text()).map((it) => it.status),
      [200, status],
    );
  }
});

test('what breaks a body that is no longer read adds no second answer', async (t) => {
  const purser = await openTestServer(t);
  const line = await openLine(purser.url);
  line.write(requestText('POST', '/v1/wallets', { 'transfer-encoding': 'chunked' }));
  await line.until((text) => text.includes('"request_id"'));
  line.write('zz\r\n');
  assert.equal(await line.ended, undefined);
  assert.deepEqual(
    answersIn(line.text()).map((it) => it.status),
    [401],
  );
});

test('who waits for "100 Continue" is refused first what can be refused without the body', async (t) => {
  const purser = await openTestServer(t);
  const asked = { authorization: `Bearer ${purser.accountKey}`, 'content-type': 'application/json' };
  const waiting = { ...asked, expect: '100-continue', 'idempotency-key': 'K' };
  const head = (headers: Record<string, string>) => requestText('POST', '/v1/wallets', headers);
  await assertNothingMoves(purser, async () => {
    await assertOneRefusal(purser, 413, 'payload_too_large', head({ ...waiting, 'content-length': '99999999' }));
    const foreign = { ...waiting, authorization: 'Bearer none', 'content-length': '10' };
    await assertOneRefusal(purser, 401, 'unauthenticated', head(foreign));
  });
  const body = JSON.stringify({ name: 'a', budget_cents: 100 });
  const line = await openLine(purser.url);
  line.write(head({ ...waiting, connection: 'close', 'content-length': String(body.length) }));
  await line.until((text) => text === 'HTTP/1.1 100 Continue\r\n\r\n');
  line.write(body);
  await line.ended;
  assert.deepEqual(line.statuses(), [100, 201]);
});
