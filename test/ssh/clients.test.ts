import assert from 'node:assert/strict';
import { Socket } from 'node:net';
import { Readable } from 'node:stream';
import test, { type TestContext } from 'node:test';
import type { ServerChannel } from 'ssh2';
import { createMemoryQuota } from '../../src/http/memory-quota.ts';
import { createClients } from '../../src/ssh/clients.ts';
import type { MemoryShare } from '../../src/ssh/memory.ts';

const MIB = 1024 * 1024;

/** A connection with a session that reads nothing: `arrive` is what a client sends it. */
function connect(t: TestContext, clients: ReturnType<typeof createClients>, memory: MemoryShare) {
  const socket = new Socket();
  t.after(() => socket.destroy());
  const client = clients.admit(socket);
  assert(clients.authenticate(client, 'res_1', memory));
  const channel = new Readable({ read() {} });
  client.channels.add(channel as ServerChannel);
  return {
    channel,
    isGone: () => client.gone.aborted,
    arrive(bytes: number, packets = 1) {
      for (let i = 0; i < packets; i++) channel.push(Buffer.alloc(bytes));
      clients.checkBacklog(client);
    },
  };
}

test('a packet of one byte that waits is counted as the object that it is', (t) => {
  const tracker = createClients({ authenticationMilliseconds: 60_000, failed() {} });
  const held = createMemoryQuota();
  const client = connect(t, tracker, held.open('wal_1'));
  client.arrive(1, 60_000);
  assert(!client.isGone());
  client.arrive(1, 6000);
  assert(client.isGone());
  assert(held.open('wal_1').tryTake(64 * MIB), 'nothing of it is counted any more');
});

test('what waits on all connections of a wallet has one bound, and what is read leaves room', (t) => {
  const tracker = createClients({ authenticationMilliseconds: 60_000, failed() {} });
  const held = createMemoryQuota();
  const clients = Array.from({ length: 6 }, () => connect(t, tracker, held.open('wal_1')));
  for (const it of clients.slice(0, 4)) it.arrive(15 * MIB);
  const [first, , , , fifth, sixth] = clients as [(typeof clients)[number], ...typeof clients];
  first.channel.read();
  first.arrive(1);
  fifth?.arrive(15 * MIB);
  sixth?.arrive(15 * MIB);
  assert.deepEqual(
    clients.map((it) => it.isGone()),
    [false, false, false, false, false, true],
  );
  const other = connect(t, tracker, held.open('wal_2'));
  other.arrive(15 * MIB);
  first.arrive(60 * 1024);
  assert(!other.isGone() && !first.isGone());
});

test('connections without a key are counted by their networks: a /64 pushes out its own', (t) => {
  const clients = createClients({ authenticationMilliseconds: 60_000, failed() {} });
  const admit = (address: string) => {
    const socket = Object.defineProperty(new Socket(), 'remoteAddress', { value: address });
    t.after(() => socket.destroy());
    return clients.admit(socket);
  };
  const honest = admit('2001:db8:0:1::1');
  const [oldest] = Array.from({ length: 63 }, (_, i) => admit(`2001:db8::${(i + 1).toString(16)}`));
  admit('2001:db8::ffff');
  assert.deepEqual([honest.gone.aborted, oldest?.gone.aborted], [false, true]);
});
