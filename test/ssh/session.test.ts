import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { EventEmitter, once } from 'node:events';
import { type AddressInfo, Socket } from 'node:net';
import { Duplex, PassThrough, Readable } from 'node:stream';
import test, { type TestContext } from 'node:test';
import { setImmediate as nextTurn } from 'node:timers/promises';
import ssh2, { type ServerChannel, type Session as ServerSession } from 'ssh2';
import { followFaults } from '../../src/base/fault.ts';
import { sshKeyFromSeed } from '../../src/base/ssh-key.ts';
import type { GuestSession } from '../../src/compute/backend.ts';
import { REQUEST } from '../../src/compute/machine/sftp-wire.ts';
import { createClients, type SshClient } from '../../src/ssh/clients.ts';
import { type SessionHost, serveSession } from '../../src/ssh/session.ts';
import { openDirectory, openLocalSession } from './wire-client.ts';

const MEMORY = { tryTake: () => true, close() {} };

/** What serves the sessions of a client in the sessions that `open` answers. */
const hostOf = (open: () => Promise<GuestSession>) =>
  ({
    open,
    endMessage: () => undefined,
    failed: (_: SshClient, error: unknown) => assert.fail(error as Error),
    memory: () => MEMORY,
    now: () => 0,
    idleMilliseconds: 60_000,
  }) as unknown as SessionHost;

/** An authenticated client that has asked for a command; `opened` settles what the backend answers to that. */
function ask(t: TestContext) {
  const socket = new Socket();
  t.after(async () => {
    socket.destroy();
    await nextTurn(); // With it go its timers.
  });
  const clients = createClients({ authenticationMilliseconds: 60_000, failed: (error) => assert.fail(error) });
  const client = clients.admit(socket);
  assert(clients.authenticate(client, 'res_1', MEMORY as never));
  const opened = Promise.withResolvers<GuestSession>();
  const session = new EventEmitter() as ServerSession & EventEmitter;
  const sides = { read() {}, write: (_bytes: Buffer, _: string, done: () => void) => done() };
  const channel = Object.assign(new Duplex(sides), { stderr: new PassThrough().resume(), exit() {} });
  let disconnects = 0;
  client.sendDisconnect = () => {
    disconnects += 1;
  };
  serveSession(
    hostOf(() => opened.promise),
    client,
    session,
    () => {},
  );
  session.emit('exec', () => channel as unknown as ServerChannel, undefined, { command: 'true' });
  return { client, channel, opened, disconnects: () => disconnects };
}

/**
 * A client of ssh2 on a real connection; what it asks for runs in the session that `open` answers. `sent` is called for each
 * packet of data that it is sent.
 */
async function connect(t: TestContext, open: () => GuestSession, sent = () => {}): Promise<ssh2.Client> {
  const clients = createClients({ authenticationMilliseconds: 60_000, failed: (error) => assert.fail(error) });
  const host = hostOf(async () => open());
  const { privateKey: hostKey } = sshKeyFromSeed(randomBytes(32), 'test');
  const server = new ssh2.Server({ hostKeys: [hostKey] }, (connection) => {
    const it = clients.admit((connection as unknown as { _sock: Socket })._sock);
    it.sendDisconnect = () => connection.end();
    const { _protocol: protocol } = connection as unknown as { _protocol: Record<string, (...args: any[]) => void> };
    const channelData = protocol.channelData as (...args: unknown[]) => void;
    protocol.channelData = (...args) => {
      sent();
      channelData.apply(protocol, args);
    };
    connection.on('error', () => {}).on('authentication', (context) => context.accept());
    connection.on('session', (accept) => serveSession(host, it, accept(), () => {}));
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const client = new ssh2.Client();
  client.on('error', () => {});
  t.after(async () => {
    client.destroy();
    await new Promise((resolve) => server.close(resolve));
  });
  const { port } = server.address() as AddressInfo;
  client.connect({ host: '127.0.0.1', port, username: 'res_1', password: 'any' });
  await once(client, 'ready');
  return client;
}

const execOf = (client: ssh2.Client) =>
  new Promise<ssh2.ClientChannel>((resolve, reject) =>
    client.exec('any', (error, channel) => (error ? reject(error) : resolve(channel))),
  );

const openSftp = (client: ssh2.Client) =>
  new Promise<ssh2.ClientChannel>((resolve, reject) =>
    client.subsys('sftp', (error, channel) => (error ? reject(error) : resolve(channel))),
  );

/** What runs in a machine, and ends as `ended` does. */
function guestSession(ended: Promise<{ code: number }>): GuestSession {
  const [stdin, stdout, stderr] = [new PassThrough(), new PassThrough(), new PassThrough()];
  for (const it of [stdout, stderr]) it.end();
  return { stdin, stdout, stderr, ended, resize() {}, kill() {} };
}

test('a session that opens when its client has gone, and is lost, harms nobody', async (t) => {
  const it = ask(t);
  it.client.disconnect('it has gone');
  const ended = Promise.withResolvers<{ code: number }>();
  it.opened.resolve(guestSession(ended.promise));
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
  it.opened.resolve(guestSession(Promise.resolve({ code: 0 })));
  await once(it.channel, 'finish');
  assert.deepEqual([...it.client.channels], [it.channel]);
  it.client.dismiss('the lease is over');
  assert.equal(it.disconnects(), 0);

  const closed = ask(t);
  closed.opened.resolve(guestSession(Promise.resolve({ code: 0 })));
  closed.channel.push(null);
  await once(closed.channel, 'close');
  closed.client.dismiss('the lease is over');
  assert.equal(closed.disconnects(), 1, 'a client that has closed the channel has printed it');
});

test('a thousand signals kill a session once, and of a thousand sizes of its window it hears the first and the last', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  let kills = 0;
  const sizes: string[] = [];
  const running: GuestSession = {
    ...guestSession(new Promise(() => {})),
    kill() {
      kills += 1;
    },
    resize: (columns, rows) => sizes.push(`${columns}x${rows}`),
  };
  const channel = await execOf(await connect(t, () => running));
  /** Resolves when the server has taken everything that was sent before. */
  const taken = async () => {
    channel.write('x');
    await once(running.stdin as PassThrough, 'data');
  };
  await taken(); // It is open by then.
  for (let i = 1; i <= 1000; i++) {
    channel.signal('TERM');
    channel.setWindow(24, i, 0, 0);
  }
  await taken();
  assert.deepEqual([kills, sizes], [1, ['1x24']]);
  t.mock.timers.tick(1000);
  assert.deepEqual([kills, sizes], [1, ['1x24', '1000x24']]);
  t.mock.timers.tick(1000);
  channel.setWindow(25, 80, 0, 0);
  await taken();
  assert.deepEqual(sizes.slice(2), ['80x25'], 'one that comes later is not held back');
});

test('a machine that throws at the size of a window ends nothing, and hears the next size', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  const faults: unknown[] = [];
  using _ = followFaults((where, error) => void faults.push([where, (error as Error).message]));
  const sizes: string[] = [];
  const running: GuestSession = {
    ...guestSession(new Promise(() => {})),
    resize(columns, rows) {
      sizes.push(`${columns}x${rows}`);
      if (rows === 2) throw new Error('too small');
    },
  };
  const channel = await execOf(await connect(t, () => running));
  const taken = async () => {
    channel.write('x');
    await once(running.stdin as PassThrough, 'data');
  };
  await taken();
  for (const rows of [1, 2]) channel.setWindow(rows, 80, 0, 0);
  await taken();
  t.mock.timers.tick(1000);
  assert.deepEqual(faults, [['timer', 'too small']]);
  channel.setWindow(3, 80, 0, 0);
  await taken();
  assert.deepEqual(sizes, ['80x1', '80x2', '80x3']);
});

/** Counts what happens in each turn of the event loop. */
function countTurns(t: TestContext) {
  let inTurn = 0;
  let most = 0;
  let timer = setImmediate(function next() {
    inTurn = 0;
    timer = setImmediate(next);
  });
  t.after(() => clearImmediate(timer));
  return {
    count() {
      inTurn += 1;
      most = Math.max(most, inTurn);
    },
    most: () => most,
  };
}
/** A client takes so many packets in 300 ms or more, which is many turns. */
const PIECE_COUNT = 4000;

test('a client that takes many small pieces at once leaves others their turn', async (t) => {
  const turns = countTurns(t);
  const stdout = Readable.from(Array(PIECE_COUNT).fill(Buffer.from('x')));
  const running = { ...guestSession(Promise.resolve({ code: 0 })), stdout };
  const channel = await execOf(await connect(t, () => running, turns.count));
  let length = 0;
  for await (const piece of channel) length += (piece as Buffer).length;
  assert.equal(length, PIECE_COUNT);
  assert.ok(turns.most() < PIECE_COUNT / 4, `${turns.most()} pieces in one turn`);
});

test('sftp whose client has asked for all it wanted ends well, however its script ends', async (t) => {
  const machine = openLocalSession(t, { shell: ['sh'], directory: openDirectory(t) });
  const ended = Promise.withResolvers<never>();
  machine.stdin.once('finish', () => ended.reject(new Error('the engine does not say how it has ended')));
  const client = await connect(t, () => ({ ...machine, ended: ended.promise }));
  const channel = await openSftp(client);
  channel.write(Buffer.from([0, 0, 0, 5, REQUEST.init, 0, 0, 0, 3]));
  await once(channel, 'data');
  channel.end();
  assert.deepEqual(await once(channel, 'exit'), [0]);
});

test('a client of sftp with many requests that need nothing of the machine leaves others their turn', async (t) => {
  const turns = countTurns(t);
  const machine = openLocalSession(t, { shell: ['sh'], directory: openDirectory(t) });
  const client = await connect(t, () => machine, turns.count);
  const channel = await openSftp(client);
  channel.write(Buffer.from([0, 0, 0, 5, REQUEST.init, 0, 0, 0, 3]));
  await once(channel, 'data');
  let answer: Buffer = Buffer.alloc(0);
  let answered = 0;
  channel.on('data', (piece: Buffer) => {
    answer = answered ? answer : piece;
    answered += piece.length;
  });
  const close = Buffer.from([0, 0, 0, 9, REQUEST.close, 0, 0, 0, 1, 0, 0, 0, 0]);
  channel.write(Buffer.concat(Array(PIECE_COUNT).fill(close)));
  while (!answered || answered < PIECE_COUNT * (4 + answer.readUInt32BE())) await nextTurn();
  assert.ok(turns.most() < PIECE_COUNT / 4, `${turns.most()} answers in one turn`);
});

test('what a client sends on a channel whose command has ended is dropped, also when it never closes that channel', async (t) => {
  const it = ask(t);
  const over = once(it.channel, 'finish');
  it.opened.resolve(guestSession(Promise.resolve({ code: 0 })));
  await over;
  for (let count = 0; count < 64; count++) {
    it.channel.push(Buffer.alloc(64 * 1024));
    await nextTurn();
  }
  assert(it.channel.readableLength <= 64 * 1024, `${it.channel.readableLength} bytes wait`);
});
