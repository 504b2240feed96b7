import assert from 'node:assert/strict';
import { EventEmitter, once } from 'node:events';
import { Socket } from 'node:net';
import { Duplex, PassThrough } from 'node:stream';
import test, { type TestContext } from 'node:test';
import { setImmediate as nextTurn } from 'node:timers/promises';
import type { ServerChannel, Session as ServerSession } from 'ssh2';
import type { Session } from '../../src/compute/backend.ts';
import { type Client, createClients } from '../../src/ssh/clients.ts';
import { type Host, serveSession } from '../../src/ssh/session.ts';

const MEMORY = { tryTake: () => true, close() {} };

/** An authenticated client that has asked for a command; `opened` settles what the backend answers to that. */
function ask(t: TestContext) {
  const socket = new Socket();
  t.after(() => socket.destroy());
  const clients = createClients({ authenticationMilliseconds: 60_000, failed: (error) => assert.fail(error) });
  const client = clients.admit(socket);
  assert(clients.authenticate(client, 'res_1', MEMORY as never));
  const opened = Promise.withResolvers<Session>();
  const host = {
    open: () => opened.promise,
    over: () => undefined,
    failed: (_: Client, error: unknown) => assert.fail(error as Error),
    memory: () => MEMORY,
    now: () => 0,
    idleMilliseconds: 60_000,
  } as unknown as Host;
  const session = new EventEmitter() as ServerSession & EventEmitter;
  const sides = { read() {}, write: (_bytes: Buffer, _: string, done: () => void) => done() };
  const channel = Object.assign(new Duplex(sides), { stderr: new PassThrough().resume(), exit() {} });
  let disconnects = 0;
  client.sendDisconnect = () => {
    disconnects += 1;
  };
  serveSession(host, client, session, () => {});
  session.emit('exec', () => channel as unknown as ServerChannel, undefined, { command: 'true' });
  return { client, channel, opened, disconnects: () => disconnects };
}

/** What runs in a machine, and ends as `ended` does. */
function inside(ended: Promise<{ code: number }>): Session {
  const [stdin, stdout, stderr] = [new PassThrough(), new PassThrough(), new PassThrough()];
  for (const it of [stdout, stderr]) it.end();
  return { stdin, stdout, stderr, ended, resize() {}, kill() {} };
}

test('a session that opens when its client has gone, and is lost, harms nobody', async (t) => {
  const it = ask(t);
  it.client.disconnect('it has gone');
  const ended = Promise.withResolvers<{ code: number }>();
  it.opened.resolve(inside(ended.promise));
  await nextTurn();
  // Node ends a process in which a promise is rejected that nobody waits for.
  const unhandled: unknown[] = [];
  const note = (error: unknown) => unhandled.push(error);
  process.on('unhandledRejection', note);
  t.after(() => process.off('unhandledRejection', note));
  ended.reject(new Error('the engine has gone'));
  await nextTurn();
  assert.deepEqual(unhandled, []);
});

test('a client has a moment to print what an ended command said before its connection is ended', async (t) => {
  const it = ask(t);
  it.opened.resolve(inside(Promise.resolve({ code: 0 })));
  await once(it.channel, 'finish');
  assert.deepEqual([...it.client.channels], [it.channel]);
  it.client.dismiss('the lease is over');
  assert.equal(it.disconnects(), 0);

  const closed = ask(t);
  closed.opened.resolve(inside(Promise.resolve({ code: 0 })));
  closed.channel.push(null);
  await once(closed.channel, 'close');
  closed.client.dismiss('the lease is over');
  assert.equal(closed.disconnects(), 1, 'a client that has closed the channel has printed it');
});
