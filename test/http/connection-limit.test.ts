import assert from 'node:assert/strict';
import { EventEmitter, once } from 'node:events';
import http from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import { connect } from 'node:net';
import test, { type TestContext } from 'node:test';
import { limitConnections } from '../../src/http/connection-limit.ts';

const FORM = 'POST /form HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\n';
const QUESTION = 'GET / HTTP/1.1\r\nhost: a\r\n\r\n';

/** A server of at most `max` connections that answers questions, and no form. */
async function limited(t: TestContext, max: number) {
  const authenticated = new WeakSet<Socket>();
  const cut: string[] = [];
  const wholeForms = new EventEmitter();
  const limit = limitConnections(max, 60_000, authenticated, (_, response) => answer(response), {
    cutOff: (why) => void cut.push(why),
  });
  function answer(response: http.ServerResponse) {
    if (response.req.method === 'GET') response.end('answered');
    else response.req.resume().on('end', () => wholeForms.emit('whole'));
  }
  const accepted: Socket[] = [];
  const server = http.createServer(limit.handle);
  limit.watch(server);
  server.on('connection', (it: Socket) => accepted.push(it));
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  const clients: Socket[] = [];
  t.after(() => {
    for (const it of clients) it.destroy();
    server.close();
  });
  /** Opens a connection from this address and resolves when it is accepted. */
  const open = async (localAddress: string) => {
    const isAccepted = once(server, 'connection');
    const client = connect({ port, host: '127.0.0.1', localAddress });
    client.on('error', () => {}); // Being cut off is what is tested.
    clients.push(client);
    await isAccepted;
    return { client, socket: accepted.at(-1) as Socket };
  };
  const ask = async ({ client }: { client: Socket }, text: string) => {
    const begun = once(server, 'request');
    client.write(text);
    await begun;
  };
  /** Opens so many connections that have shown a token, and are idle since they were answered. */
  const openIdle = async (count: number) => {
    const idle = [];
    for (let i = 0; i < count; i++) {
      const it = await open('127.0.0.1');
      authenticated.add(it.socket);
      it.client.write(QUESTION);
      await once(it.client, 'data');
      idle.push(it);
    }
    return idle;
  };
  return { open, ask, openIdle, cut, wholeForms };
}

test('who has just connected is not cut off for the next one while a form of others does not come to its end', async (t) => {
  const { open, ask, cut } = await limited(t, 4);
  const forms = [await open('127.0.0.2'), await open('127.0.0.2'), await open('127.0.0.2')];
  for (const it of forms) await ask(it, FORM);
  const first = await open('127.0.0.1');
  const second = await open('127.0.0.1');
  assert.deepEqual(cut, ['no_room']);
  assert.deepEqual(
    forms.map(({ socket }) => socket.destroyed),
    [true, false, false],
    'the form that has waited for longest makes room',
  );
  for (const it of [first, second]) {
    assert.equal(it.socket.destroyed, false);
    it.client.write(QUESTION);
    assert.match(String((await once(it.client, 'data'))[0]), /answered/);
  }
});

test('of one network whoever has been idle, or has sent no end of a form, for longest makes room', async (t) => {
  const { open, ask } = await limited(t, 3);
  const [form, idle] = [await open('127.0.0.2'), await open('127.0.0.2')];
  await ask(form, FORM);
  const late = await open('127.0.0.2');
  await open('127.0.0.2');
  assert.deepEqual(
    [form, idle, late].map(({ socket }) => socket.destroyed),
    [false, true, false],
    'the form came after that one had connected',
  );
  await open('127.0.0.2');
  assert.deepEqual([form.socket.destroyed, late.socket.destroyed], [true, false]);
});

test('who has just connected is not cut off for the next one while others are idle, whatever token these have shown', async (t) => {
  const { open, cut, openIdle } = await limited(t, 16);
  const idle = await openIdle(16);
  const all = [await open('127.0.0.1'), await open('127.0.0.1')];
  assert.deepEqual(cut, ['no_room', 'no_room']);
  assert.equal(idle.filter(({ socket }) => socket.destroyed).length, 2);
  await open('127.0.0.1');
  await open('127.0.0.1');
  assert.deepEqual(
    all.map(({ socket }) => socket.destroyed),
    [true, false],
    'of sixteen only the newest two are spared',
  );
});

test('a form of another network makes room before the idle who have shown a token, though its network has fewer connections', async (t) => {
  const { open, ask, openIdle } = await limited(t, 16);
  const idle = await openIdle(13);
  const form = await open('127.0.0.2');
  await ask(form, FORM);
  const newest = [await open('127.0.0.1'), await open('127.0.0.1')];
  await open('127.0.0.3');
  assert.equal(form.socket.destroyed, true);
  for (const { socket } of [...idle, ...newest]) assert.equal(socket.destroyed, false);
});

test('requests that have come whole do not count among the strangers of their network', async (t) => {
  const { open, ask, wholeForms } = await limited(t, 8);
  const idle = await open('127.0.0.1');
  for (let i = 0; i < 4; i++) {
    const whole = once(wholeForms, 'whole');
    await ask(await open('127.0.0.1'), `${FORM}${'x'.repeat(100)}`);
    await whole;
  }
  const forms = [await open('127.0.0.2'), await open('127.0.0.2'), await open('127.0.0.2')];
  for (const it of forms) await ask(it, FORM);
  await open('127.0.0.3');
  assert.deepEqual(
    [idle, ...forms].map(({ socket }) => socket.destroyed),
    [false, true, false, false],
  );
});

test('a request that has come whole is not cut off: then it is the new connection that finds no room', async (t) => {
  const { open, ask, cut, wholeForms } = await limited(t, 1);
  const form = await open('127.0.0.2');
  await ask(form, FORM);
  const whole = once(wholeForms, 'whole');
  form.client.write('x'.repeat(100));
  await whole;
  const refused = await open('127.0.0.2');
  assert.deepEqual(cut, ['no_room']);
  assert.deepEqual([form.socket.destroyed, refused.socket.destroyed], [false, true]);
});
