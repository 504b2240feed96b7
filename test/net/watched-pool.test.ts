import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer, type RequestListener } from 'node:http';
import { type AddressInfo, createServer as createTcpServer, type Socket } from 'node:net';
import test, { type TestContext } from 'node:test';
import { createServer as createTlsServer } from 'node:tls';
import { getHeapStatistics } from 'node:v8';
import { containedConnector } from '../../src/net/contained-connector.ts';
import { openWatchedPool } from '../../src/net/watched-pool.ts';
import { createEventSplitter } from '../../src/router/sse.ts';
import { collectGarbage } from '../helper/garbage.ts';

const BYTES_MAX = 1000;

/** A pool to a server of its own, and what arrived there. */
async function openServer(t: TestContext, handle: RequestListener, connections: number | null = null) {
  const arrived: string[] = [];
  const heads: number[] = [];
  const server = createServer((request, response) => {
    arrived.push(request.url as string);
    handle(request, response);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const origin = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const pool = openWatchedPool(origin, { pipelining: 1, connections, connectMilliseconds: 5000 });
  t.after(async () => {
    await pool.close();
    server.closeAllConnections();
    server.close();
  });
  const exchange = (path: string) => {
    const reading = {
      onHead() {
        heads.push(arrived.length);
      },
      bytesMax: () => BYTES_MAX,
    };
    return pool.exchange({ path, method: 'POST', body: 'x', headersTimeout: 0, bodyTimeout: 0 }, reading);
  };
  const open = (path: string) => pool.open({ path, method: 'POST', body: 'x', headersTimeout: 0, bodyTimeout: 0 });
  return { server, exchange, open, arrived, heads };
}

/** Resolves when a figure has not changed for 100 ms. */
async function standsStill(figure: () => number): Promise<void> {
  for (let before = -1; before !== figure(); ) {
    before = figure();
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

const LIMITS = { bytesMax: 1000, milliseconds: 5000 };

test('an answer is read to its end, whatever its pieces, and hints before it are no answer', async (t) => {
  for (const pieces of [[], ['whole'], ['in ', 'two'], ['x'.repeat(BYTES_MAX)]]) {
    const { exchange, heads } = await openServer(t, (_, response) => {
      response.writeEarlyHints({ link: '</a>; rel=preload' });
      response.writeHead(201, { 'x-a': 'b' });
      for (const piece of pieces) response.write(piece);
      response.end();
    });
    const call = exchange('/a');
    const { statusCode, headers, bytes, error } = await call.answer;
    assert.deepEqual([statusCode, headers['x-a'], String(bytes), error], [201, 'b', pieces.join(''), undefined]);
    assert.deepEqual([call.wasSent(), heads], [true, [1]]);
  }
});

/** Returns the bytes of all live objects. A buffer is an object of some hundred, beside the bytes that it shows. */
function liveBytes(): number {
  collectGarbage();
  return getHeapStatistics().used_heap_size;
}
/** Half of what a buffer for each byte takes, and several times what else begins to live meanwhile. */
const BYTES_PER_BYTE_MAX = 50;

test('an answer in chunks of one byte takes no object for each, and is what was sent', async (t) => {
  const [half, count] = [20_000, 40_000];
  const text = Buffer.from(Array.from({ length: count }, (_, i) => 97 + (i % 26))).toString();
  const chunks = Array.from(text, (it) => `1\r\n${it}\r\n`);
  const server = createTcpServer((socket) => {
    socket.on('error', () => {});
    socket.once('data', () => {
      socket.write('HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n');
      for (let at = 0; at < count; at += 10_000) socket.write(chunks.slice(at, at + 10_000).join(''));
      socket.write('0\r\n\r\n');
    });
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
  const pool = openWatchedPool(`http://127.0.0.1:${(server.address() as AddressInfo).port}`, {
    connectMilliseconds: 5000,
  });
  t.after(async () => {
    await pool.close();
    server.close();
  });
  const request = { path: '/', method: 'GET' as const };
  const entered = Promise.withResolvers<void>();
  const room = Promise.withResolvers<void>();
  const before = liveBytes();
  const enter = () => {
    entered.resolve();
    return room.promise;
  };
  const { answer } = pool.exchange(request, { onHead() {}, bytesMax: () => count, room: { freeBytes: half, enter } });
  await entered.promise;
  const held = liveBytes() - before;
  assert(held < half * BYTES_PER_BYTE_MAX, `${held} bytes of objects for ${half} bytes`);
  room.resolve();
  assert.equal((await answer).bytes?.toString(), text);

  const { body } = await pool.open(request).head;
  const splitter = createEventSplitter();
  let read = '';
  for await (const piece of body) {
    read += piece;
    for (let at = 0; at < piece.length; at++) splitter.push(piece.subarray(at, at + 1));
  }
  assert.equal(read, text);
  const unfinished = liveBytes() - before;
  assert(
    unfinished < count * BYTES_PER_BYTE_MAX,
    `${unfinished} bytes of objects for an unfinished event of ${count} bytes`,
  );
  assert.equal(splitter.end()?.raw.toString(), `${text}\n\n`);
});

test('an answer that is too long is not read to its end', async (t) => {
  const { exchange } = await openServer(t, (_, response) => {
    response.write('x'.repeat(BYTES_MAX + 1)); // And never ends.
  });
  const { statusCode, bytes, error } = await exchange('/a').answer;
  assert.deepEqual([statusCode, bytes, error], [200, undefined, undefined]);
});

test('an answer that breaks off has its head and the reason', async (t) => {
  const { exchange } = await openServer(t, (_, response) => {
    response.writeHead(200, { 'content-length': '10' });
    response.write('half', () => response.destroy());
  });
  const { statusCode, bytes, error } = await exchange('/a').answer;
  assert.deepEqual([statusCode, bytes, error instanceof Error], [200, undefined, true]);
});

test('what is ended while it waits for a connection is never written to it', async (t) => {
  const { exchange, arrived } = await openServer(t, (_, response) => response.end('ok'));
  const ended = exchange('/ended');
  ended.abort();
  await assert.rejects(ended.answer, /ended/);
  assert.equal(String((await exchange('/later').answer).bytes), 'ok');
  assert.deepEqual([ended.wasSent(), arrived], [false, ['/later']]);
});

test('what is ended before its answer began was sent, and its connection is closed', async (t) => {
  const { server, exchange, arrived } = await openServer(t, () => {});
  const call = exchange('/a');
  const [request] = await once(server, 'request');
  call.abort();
  await assert.rejects(call.answer, /ended/);
  assert.deepEqual([call.wasSent(), arrived], [true, ['/a']]);
  await once(request.socket, 'close');
});

test('a body is read as it comes: what has come meanwhile is one piece', async (t) => {
  const written = Promise.withResolvers<void>();
  const { open } = await openServer(t, async (_, response) => {
    response.writeEarlyHints({ link: '</a>; rel=preload' });
    response.writeHead(201, { 'x-a': 'b' });
    response.write('a');
    await written.promise;
    for (const piece of ['b', 'c', 'd']) response.write(piece);
    response.end();
  });
  const call = open('/a');
  const { statusCode, headers, body } = await call.head;
  assert.deepEqual([statusCode, headers['x-a'], call.wasSent()], [201, 'b', true]);
  assert.equal(String(await body.next()), 'a');
  const next = body.next();
  written.resolve();
  assert.equal(String(await next), 'bcd', 'the chunks of one read of the connection');
  assert.equal(await body.next(), undefined);
  assert.equal(await body.next(), undefined);
});

test('while nobody reads a body, its server stands still, and then it comes whole', async (t) => {
  const PIECE = Buffer.alloc(64 * 1024, 'x');
  const PIECES = 1000;
  let sent = 0;
  const { open } = await openServer(t, async (_, response) => {
    for (; sent < PIECES; sent++) if (!response.write(PIECE)) await once(response, 'drain');
    response.end();
  });
  const { body } = await open('/a').head;
  await standsStill(() => sent);
  assert(sent < PIECES / 2, `${sent} of ${PIECES} pieces were sent`);
  let [length, longest] = [0, 0];
  for (let bytes = await body.next(); bytes; bytes = await body.next()) {
    length += bytes.length;
    longest = Math.max(longest, bytes.length);
  }
  assert.equal(length, PIECES * PIECE.length);
  assert(longest < 4 * PIECE.length, `${longest} bytes waited`);
});

test('however much has come, a body is read a little at each turn of the event loop, and others have theirs', async (t) => {
  const LENGTH = 16 * 1024 * 1024;
  const piece = Buffer.alloc(1000, 'x');
  let sent = 0;
  const { open } = await openServer(t, async ({ url }, response) => {
    if (url === '/whole') response.setHeader('content-length', LENGTH); // Else each piece is a chunk of HTTP.
    for (sent = 0; sent < LENGTH; ) {
      const bytes = piece.subarray(0, LENGTH - sent);
      sent += bytes.length;
      if (!response.write(bytes)) await once(response, 'drain');
    }
    response.end();
  });
  for (const path of ['/whole', '/chunks']) {
    const { body } = await open(path).head;
    await standsStill(() => sent); // What the system has room for has come.
    let [length, inTurn, longest, isOver] = [0, 0, 0, false];
    const turn = () => {
      inTurn = 0;
      if (!isOver) setImmediate(turn);
    };
    turn();
    for (let bytes = await body.next(); bytes; bytes = await body.next()) {
      length += bytes.length;
      inTurn += bytes.length;
      longest = Math.max(longest, inTurn);
    }
    isOver = true;
    assert.equal(length, LENGTH, path);
    assert(longest <= 256 * 1024, `${path}: ${longest} bytes in one turn`);
  }
});

test('of a body that breaks off, what came is read before the error', async (t) => {
  const { open } = await openServer(t, (_, response) => {
    response.writeHead(200, { 'content-length': '10' });
    response.write('half', () => response.destroy());
  });
  const { body } = await open('/a').head;
  await new Promise((resolve) => setTimeout(resolve, 100));
  assert.equal(String(await body.next()), 'half');
  await assert.rejects(body.next());
  await assert.rejects(body.next());
});

test('a body that was ended is not read any further, also while somebody waits for it', async (t) => {
  const { server, open } = await openServer(t, (_, response) => void response.write('a'));
  const call = open('/a');
  const [request] = await once(server, 'request');
  const { body } = await call.head;
  assert.equal(String(await body.next()), 'a');
  const waiting = body.next();
  call.abort();
  await assert.rejects(waiting, /ended/);
  await once(request.socket, 'close');
});

test('of a body that is cut off, what has come is read; its connection is closed', async (t) => {
  let closed: Promise<unknown> | undefined;
  let isSent = false;
  const { open } = await openServer(t, (_, response) => {
    closed = once(response.socket as Socket, 'close');
    response.write('come', () => {
      isSent = true;
    });
  });
  const call = open('/a');
  const { body } = await call.head;
  // The head comes with it, or before it.
  for (let turns = 0; !isSent || turns < 5; turns++) await new Promise((resolve) => setImmediate(resolve));
  call.cut();
  assert.equal(String(await body.next()), 'come');
  await assert.rejects(body.next(), /the exchange was ended/);
  await assert.rejects(body.next(), /the exchange was ended/);
  await closed;
});

test('the rest of a body that was left is dropped, and its connection used again; a long rest is not waited for', async (t) => {
  const gates: (() => void)[] = [];
  const sockets = new Set();
  const { open } = await openServer(
    t,
    async ({ socket, url }, response) => {
      sockets.add(socket);
      response.write('begun');
      await new Promise<void>((resolve) => gates.push(resolve));
      response.end('x'.repeat(url === '/long' ? 100_000 : 10));
    },
    1, // The next request waits for this connection.
  );
  const leave = async (path: string) => {
    const { body } = await open(path).head;
    await body.next();
    body.leave(LIMITS);
    gates.pop()?.();
  };
  await leave('/short');
  await leave('/long');
  assert.equal(sockets.size, 1, 'used again');
  await leave('/short');
  assert.equal(sockets.size, 2, 'closed after too much');
});

test('a body that was left and goes on for too long is closed', async (t) => {
  const { server, open } = await openServer(t, (_, response) => void response.write('begun'));
  const call = open('/a');
  const [request] = await once(server, 'request');
  const { body } = await call.head;
  await body.next();
  body.leave({ ...LIMITS, milliseconds: 50 });
  await once(request.socket, 'close');
});

test('over TLS nothing but HTTP/1.1 is offered, also to a server that would take HTTP/2', async (t) => {
  // A shared key takes the place of certificates.
  const tls = { ciphers: 'PSK', maxVersion: 'TLSv1.2' as const };
  const psk = Buffer.alloc(16, 1);
  const offered: string[][] = [];
  const server = createTlsServer({
    ...tls,
    pskCallback: () => psk,
    ALPNCallback({ protocols }) {
      offered.push(protocols);
      return protocols.includes('h2') ? 'h2' : 'http/1.1';
    },
  });
  server.on('secureConnection', (socket) => socket.end('HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n'));
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  const connect = containedConnector(5000, {
    ...tls,
    pskCallback: () => ({ psk, identity: 'test' }),
    checkServerIdentity: () => undefined,
  });
  const pool = openWatchedPool(`https://127.0.0.1:${port}`, { connectMilliseconds: 5000, connect });
  t.after(async () => {
    await pool.close();
    server.close();
  });
  const reading = { onHead() {}, bytesMax: () => BYTES_MAX };
  const { statusCode } = await pool.exchange({ path: '/', method: 'GET', headersTimeout: 5000 }, reading).answer;
  assert.equal(statusCode, 204);
  assert.deepEqual(offered, [['http/1.1']]);
});
