import assert from 'node:assert/strict';
import http from 'node:http';
import net, { type AddressInfo } from 'node:net';
import test, { type TestContext } from 'node:test';
import { resetConnection } from '../../src/net/reset.ts';
import { openUpstream } from '../../src/router/upstream.ts';
import { openUpstream as openFake } from '../helper/upstream.ts';

const BODY = Buffer.from('{"model":"m"}');
const settings = { name: 'local', timeout_seconds: 600, connect_timeout_seconds: 300 };

/** An answer that is read as a whole and one that may be a stream are asked for in different ways. */
function eachWay(title: string, run: (t: TestContext, stream: boolean) => Promise<void>): void {
  for (const stream of [false, true]) test(`${title}${stream ? ', also of a stream' : ''}`, (t) => run(t, stream));
}

/** An address that takes connections and says nothing, to which no TLS can be spoken. */
async function silent(t: TestContext): Promise<string> {
  const sockets = new Set<net.Socket>();
  const server = net.createServer((socket) => sockets.add(socket.on('error', () => {})));
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.after(() => {
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  return `https://127.0.0.1:${(server.address() as AddressInfo).port}/v1`;
}

/** Each of these ends an attempt to connect: nothing was sent by then, for certain. */
const LIMITS = [
  { connect_timeout_seconds: 1 },
  { timeout_seconds: 1 },
  { first_byte_timeout_seconds: 1 },
  { first_byte_timeout_seconds: 1, connect_timeout_seconds: 1, timeout_seconds: 1 },
];
eachWay('a connection that does not come in the shortest of the time limits is a clear no', async (t, stream) => {
  const url = await silent(t);
  const patient = openUpstream({ ...settings, base_url: url }); // For longer than any test takes.
  t.after(() => patient.close());
  let isGivenUp = false;
  void patient.ask({ api: 'chat', body: BODY }, 'op_0').then(() => {
    isGivenUp = true;
  });
  await Promise.all(
    LIMITS.map(async (limits) => {
      const upstream = openUpstream({ ...settings, base_url: url, ...limits });
      t.after(() => upstream.close());
      const reply = await upstream.ask({ api: 'chat', body: BODY }, 'op_1', stream);
      assert(reply.kind === 'refused', `${JSON.stringify(limits)}: ${JSON.stringify(reply)}`);
      assert.deepEqual([reply.code, reply.elsewhere], ['gateway_unavailable', true]);
    }),
  );
  assert(!isGivenUp, 'none of them was as patient');
});

eachWay('a server that stops while it connects has asked nobody', async (t, stream) => {
  const upstream = openUpstream({ ...settings, base_url: await silent(t) });
  const asked = upstream.ask({ api: 'chat', body: BODY }, 'op_1', stream);
  await new Promise((resolve) => setImmediate(resolve));
  await upstream.close();
  assert.equal((await asked).kind, 'refused');
  assert.equal((await upstream.ask({ api: 'chat', body: BODY }, 'op_2', stream)).kind, 'refused');
});

eachWay('a request that was written and not answered is unknown, however it ended', async (t, stream) => {
  const fake = await openFake(t);
  const ends: [string, (response: http.ServerResponse) => unknown][] = [
    ['reset', (response) => resetConnection(response.socket)],
    ['closed', (response) => response.socket?.destroy()],
    ['never', () => {}],
  ];
  for (const [what, end] of ends) {
    const limits = what === 'never' ? { timeout_seconds: 3 } : {};
    const upstream = openUpstream({ ...settings, base_url: fake.url, ...limits });
    t.after(() => upstream.close());
    fake.handle = (_, response) => end(response);
    assert.equal((await upstream.ask({ api: 'chat', body: BODY }, 'op_1', stream)).kind, 'unknown', what);
  }
});

eachWay(
  'a connection that is kept and found closed is no clear no: the request may have been read',
  async (t, stream) => {
    let served = 0;
    const server = http.createServer((_, response) => {
      served++;
      if (served === 1) response.end('{"choices":[{}]}');
      else response.socket?.destroy();
    });
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    t.after(() => server.close());
    const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1`;
    const upstream = openUpstream({ ...settings, base_url: url });
    t.after(() => upstream.close());
    assert.equal((await upstream.ask({ api: 'chat', body: BODY }, 'op_1', stream)).kind, 'answered');
    assert.equal((await upstream.ask({ api: 'chat', body: BODY }, 'op_2', stream)).kind, 'unknown');
    assert.equal(served, 2, 'and it is not sent once more');
  },
);

/** A body that is longer than what the sockets of both sides hold. */
const LONG = Buffer.from(JSON.stringify({ model: 'm', text: 'x'.repeat(8 * 1024 * 1024) }));

eachWay('a long request arrives as it is, with its length, and can be asked again', async (t, stream) => {
  const fake = await openFake(t);
  const upstream = openUpstream({ ...settings, base_url: fake.url });
  t.after(() => upstream.close());
  for (let i = 0; i < 2; i++) {
    assert.equal((await upstream.ask({ api: 'chat', body: LONG }, 'op_1', stream)).kind, 'answered');
    assert.deepEqual(JSON.stringify(fake.calls[i]?.body), LONG.toString());
    assert.equal(fake.calls[i]?.headers['content-length'], String(LONG.length));
    assert.equal(fake.calls[i]?.headers['transfer-encoding'], undefined);
  }
});

eachWay(
  'a long request that breaks off on its way is unknown, and one that never went a clear no',
  async (t, stream) => {
    const server = net.createServer((socket) => {
      socket.on('error', () => {});
      socket.once('data', () => resetConnection(socket));
    });
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1`;
    const upstream = openUpstream({ ...settings, base_url: url });
    t.after(() => upstream.close());
    assert.equal((await upstream.ask({ api: 'chat', body: LONG }, 'op_1', stream)).kind, 'unknown');
    await new Promise((resolve) => server.close(resolve));
    assert.equal((await upstream.ask({ api: 'chat', body: LONG }, 'op_2', stream)).kind, 'refused');
  },
);

eachWay('a long request that is refused before it was read is a clear no', async (t, stream) => {
  const server = http.createServer((_, response) => {
    response.writeHead(413, { 'content-type': 'application/json', connection: 'close' });
    response.end('{"error":{"message":"too large"}}');
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.after(() => server.close());
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1`;
  const upstream = openUpstream({ ...settings, base_url: url });
  t.after(() => upstream.close());
  const replies = [];
  for (let i = 0; i < 10; i++) replies.push(await upstream.ask({ api: 'chat', body: LONG }, 'op_1', stream));
  assert.deepEqual(
    replies.map((it) => [it.kind, it.kind === 'refused' && it.code]),
    replies.map(() => ['refused', 'payload_too_large']),
  );
});
