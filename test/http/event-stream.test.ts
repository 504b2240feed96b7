import assert from 'node:assert/strict';
import { once } from 'node:events';
import http from 'node:http';
import net, { type AddressInfo } from 'node:net';
import test, { type TestContext } from 'node:test';
import { openEventStream } from '../../src/http/event-stream.ts';
import { namedEvents } from '../../src/http/named-events.ts';
import { until } from '../helper/waiting.ts';

/** More than the sockets of both sides hold. */
const PLENTY = Buffer.alloc(64 * 1024 * 1024);

/** A stream to a client that reads only when it is told to. */
async function connected(t: TestContext, stallMilliseconds = 60_000) {
  const server = http.createServer();
  t.after(() => server.closeAllConnections());
  t.after(() => server.close());
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const arrived = once(server, 'request');
  const client = net.connect((server.address() as AddressInfo).port, '127.0.0.1', () =>
    client.write('GET / HTTP/1.1\r\nhost: a\r\n\r\n'),
  );
  t.after(() => client.destroy());
  const [, response] = (await arrived) as [unknown, http.ServerResponse];
  const events = openEventStream(response, () => ({ 'x-one': '1' }), stallMilliseconds);
  return { client, response, events };
}

async function textOf(client: net.Socket): Promise<string> {
  let text = '';
  for await (const piece of client) text += piece;
  return text;
}

test('a stream has its head, the events as they were written, and an end', async (t) => {
  const { client, events } = await connected(t);
  events.begin({ 'x-two': '2' });
  assert(events.hasBegun());
  assert.equal(events.write(Buffer.from('data: 1\n\n')), undefined);
  events.end();
  client.end();
  const text = await textOf(client);
  assert.match(text, /^HTTP\/1\.1 200 OK\r\nx-one: 1\r\ncontent-type: text\/event-stream; charset=utf-8\r\n/);
  assert.match(text, /x-two: 2\r\n/);
  assert.match(text, /\r\n\r\n9\r\ndata: 1\n\n\r\n0\r\n\r\n$/);
});

for (const how of ['reads again', 'goes away'] as const) {
  test(`all who wait for a client that does not read go on when it ${how}`, async (t) => {
    const { client, events } = await connected(t);
    client.pause();
    events.begin();
    const waits = [events.write(PLENTY), events.write(Buffer.from('a')), events.write(Buffer.from('b'))];
    assert(waits.every((it) => it instanceof Promise));
    if (how === 'goes away') client.destroy();
    else client.resume();
    await Promise.all(waits);
  });
}

test('what is written after the end is written nowhere, and is nobody’s error', async (t) => {
  const { client, response, events } = await connected(t);
  const errors: unknown[] = [];
  response.on('error', (error) => errors.push(error));
  client.pause();
  events.begin();
  const wait = events.write(PLENTY);
  events.end();
  assert(!response.closed, 'the client has yet to read it all');
  assert.equal(events.write(Buffer.from('late')), undefined);
  events.end();
  client.resume();
  client.end();
  const text = await textOf(client);
  await wait;
  assert(text.endsWith('\r\n0\r\n\r\n') && !text.includes('late'));
  assert.deepEqual(errors, []);
});

test('a stream that ended before it began leaves the answer to somebody else', async (t) => {
  const { client, response, events } = await connected(t);
  events.end();
  assert(!events.hasBegun() && !response.headersSent);
  response.writeHead(409).end();
  events.begin(); // An attempt that goes on without its client may come as far as this.
  assert.equal(events.write(Buffer.from('late')), undefined);
  client.end();
  assert.match(await textOf(client), /^HTTP\/1\.1 409 /);
});

test('a client that takes nothing for too long is gone, and nobody waits for it any more', async (t) => {
  const { client, response, events } = await connected(t, 50);
  client.pause();
  events.begin();
  await events.write(PLENTY);
  assert(response.destroyed);
  assert.equal(events.write(PLENTY), undefined);
  events.end();
});

test('a client that takes nothing is gone at its time, whatever else is written for it meanwhile', async (t) => {
  const { client, response, events } = await connected(t, 50);
  client.pause();
  const silence = t.mock.method(globalThis, 'setInterval', (call: () => void) => {
    silence.mock.restore();
    return setInterval(call, 5);
  });
  const named = namedEvents(events);
  t.after(named.end);
  named.begin();
  const comments = t.mock.method(response, 'write');
  const gone = events.write(PLENTY);
  // Timers of this process: however busy the machine is, more of them do not come first.
  await until('it is gone', () => response.destroyed || comments.mock.callCount() > 200);
  assert(response.destroyed);
  await gone;
});

test('a client that reads slowly is not gone, however long one event takes', async (t) => {
  const stallMilliseconds = 2000;
  const { client, response, events } = await connected(t, stallMilliseconds);
  client.pause();
  events.begin();
  const started = performance.now();
  const wait = events.write(PLENTY) as Promise<void>;
  const reading = setInterval(() => client.read(256 * 1024), 25);
  t.after(() => clearInterval(reading));
  client.on('readable', () => {});
  await wait;
  assert(!response.destroyed);
  assert(performance.now() - started > 2 * stallMilliseconds, 'it took longer than a client that reads nothing may');
});
