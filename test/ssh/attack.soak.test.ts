import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import type { Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import type ssh2 from 'ssh2';
import { resetConnection } from '../../src/net/reset.ts';
import { EXECUTABLE } from '../helper/executable.ts';
import { completion, gate } from '../helper/upstream.ts';
import { waitFor } from '../helper/waiting.ts';
import { type Lease, openClient, openLease } from './lease.ts';

const CHAT_COUNT = 5;
/** 10 tokens in, 5 out and one request of the model `chat`, five times. */
const CHATS_USD = '0.0006';
const WINDOW_BYTES = 2 * 1024 * 1024;
const PACKET_BYTES = 32 * 1024;

/**
 * Makes an attack while requests of another wallet are in flight: every one of them has to be answered and charged exactly,
 * and the lease has to be reachable afterwards.
 */
async function whileOthersPay(it: Lease, attack: () => Promise<unknown>): Promise<void> {
  const { token } = await it.openWallet();
  const { handler, open } = gate(completion());
  it.upstream.handle = handler;
  const arrived = it.upstream.arrived(it.upstream.calls.length + CHAT_COUNT);
  const body = { model: 'chat', messages: [{ role: 'user', content: 'hi' }], max_tokens: 100 };
  const chats = Array.from({ length: CHAT_COUNT }, () =>
    it.landlord.ask('POST', '/v1/chat/completions', { token, key: randomUUID(), body }),
  );
  const answers = Promise.all(chats);
  answers.catch(() => {}); // The attack may have failed before.
  try {
    await arrived;
    await attack();
    const { stdout, stderr } = await it.ssh([], 'echo here');
    assert.equal(stdout, 'here\n', stderr);
  } finally {
    open();
  }
  for (const { status, text } of await answers) assert.equal(status, 200, text);
  const { body: budget } = await it.landlord.ask('GET', '/v1/budget', { token });
  assert.deepEqual([budget.used_usd, budget.held_usd], [CHATS_USD, '0.00'], JSON.stringify(budget));
}

/** What ssh2 does not offer: its client, as it is inside. */
type Raw = ssh2.Client & {
  _sock: Socket;
  _protocol: Record<string, (...args: unknown[]) => void> & {
    session(id: number, windowBytes: number, packetBytes: number): void;
  };
  _chanMgr: { add(told: object): number };
};
const openRaw = async (t: TestContext, it: Lease) => (await openClient(t, it)) as Raw;

/** Opens a session channel and starts nothing on it. Answers its id at the server, or undefined when that hangs up. */
async function openSession(client: Raw, packetBytes = PACKET_BYTES): Promise<number | undefined> {
  const opened = new Promise<number>((resolve, reject) => {
    const told = (error: Error | undefined, channel: { outgoing: { id: number } }) =>
      error ? reject(error) : resolve(channel.outgoing.id);
    client._protocol.session(client._chanMgr.add(Object.assign(told, { type: 'session' })), WINDOW_BYTES, packetBytes);
  });
  const closed = once(client, 'close').then(() => undefined);
  return waitFor('the server answers', Promise.race([opened, closed]));
}

async function end(client: Raw, how: (socket: Socket) => void): Promise<void> {
  const closed = once(client, 'close');
  how(client._sock);
  await closed;
}

const ATTACKS: Record<string, (t: TestContext, it: Lease) => Promise<unknown>> = {
  async 'a subsystem that is not there'(_, it) {
    const { code, stderr } = await it.run('ssh', ['-s', it.target, 'netconf']);
    assert.equal(code, 255);
    assert.match(stderr, /subsystem request failed/);
  },
  async 'a forwarding that is refused'(_, it) {
    const { code, stderr } = await it.ssh(['-oExitOnForwardFailure=yes', '-R', '0:127.0.0.1:1'], 'true');
    assert.equal(code, 255);
    assert.match(stderr, /remote port forwarding failed/);
  },
  async 'a line that breaks between open and exec'(t, it) {
    for (const how of [
      (socket: Socket) => socket.destroy(),
      (socket: Socket) => resetConnection(socket),
      (socket: Socket) => socket.end(),
    ]) {
      const client = await openRaw(t, it);
      for (let count = 0; count < 3; count++) await openSession(client);
      await end(client, how);
    }
  },
  async 'a line that breaks just after exec'(t, it) {
    const client = await openRaw(t, it);
    client._protocol.exec?.(await openSession(client), 'sleep 3400', true);
    await end(client, (socket) => resetConnection(socket));
    await it.runs('sleep 3400', false);
  },
  async 'channels that are not there, and requests in no order'(t, it) {
    const rude: ((raw: Raw['_protocol'], id: number) => void)[] = [
      (raw) => raw.channelData?.(2 ** 32 - 1, Buffer.from('x')),
      (raw) => raw.channelClose?.(2 ** 32 - 1),
      (raw) => raw.channelWindowAdjust?.(2 ** 32 - 2, 2 ** 32 - 1),
      (raw, id) => {
        for (const command of ['true', 'true']) raw.exec?.(id, command, true);
        raw.shell?.(id, true);
        raw.subsystem?.(id, 'sftp', true);
      },
      (raw, id) => {
        raw.channelClose?.(id);
        raw.exec?.(id, 'true', true);
        raw.channelData?.(id, Buffer.alloc(1000));
      },
      (raw, id) => {
        raw.channelEOF?.(id);
        raw.signal?.(id, 'KILL');
        raw.windowChange?.(id, 2 ** 32 - 1, 0, 0, 0);
        raw.channelSuccess?.(id);
        raw.channelOpenConfirm?.(id, id, 0, 0);
        raw.requestFailure?.();
      },
      (raw, id) => {
        raw.rekey?.();
        raw.exec?.(id, 'true', true);
      },
    ];
    for (const act of rude) {
      const client = await openRaw(t, it);
      act(client._protocol, (await openSession(client)) as number);
      client._protocol.ping?.();
      await it.ssh([], 'true'); // By then all of it has been read.
      client.destroy();
    }
  },
  async 'packets of no bytes, or of one'(t, it) {
    for (const packetBytes of [0, 1, 1023]) {
      const client = await openRaw(t, it);
      const id = await openSession(client, packetBytes);
      if (id !== undefined) client._protocol.exec?.(id, 'cat /dev/zero', true);
      await waitFor('the connection is ended', once(client, 'close')).catch((error) => {
        if (!client._sock.destroyed) throw error;
      });
    }
    await it.runs('cat /dev/zero', false);
  },
};

for (const [what, attack] of Object.entries(ATTACKS))
  test(`${what}: others are served and charged exactly`, async (t) => {
    const it = await openLease(t);
    if (it) await whileOthersPay(it, () => attack(t, it));
  });

test('an exception of the SSH library ends the connection that it came from, and nothing else', async (t) => {
  // The library, as it knows its own sessions no more: whoever leaves one that was never started makes it throw.
  const bytes = readFileSync(EXECUTABLE);
  // A letter for a letter, so that what follows stays where it is; white space is as the build leaves it.
  const places = [...bytes.toString('latin1').matchAll(/channel\.constructor\.name\s*===\s*"Sessi(?=on")/g)];
  assert.equal(places.length, 1, 'the place in the executable');
  const [place] = places as [RegExpExecArray];
  bytes.write('0', place.index + place[0].length);
  const directory = mkdtempSync(join(tmpdir(), 'purser-faulty-'));
  const faulty = join(directory, 'purser');
  writeFileSync(faulty, bytes, { mode: 0o755 });
  // After what the lease leaves to be done: that needs the executable.
  const remove = () => t.after(() => rmSync(directory, { recursive: true, force: true }));
  const it = await openLease(t, faulty).finally(remove);
  if (!it) return;
  await whileOthersPay(it, async () => {
    for (const what of ['a subsystem that is not there', 'a line that breaks between open and exec'] as const)
      await ATTACKS[what]?.(t, it);
    const { resource, err } = await it.server.logged('ssh_connection.failed', 4);
    assert.equal(resource, it.id);
    assert.match((err as Error).message, /Cannot set properties of undefined/);
  });
});
