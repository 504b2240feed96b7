import assert from 'node:assert/strict';
import { KeyObject } from 'node:crypto';
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import test from 'node:test';
import ssh2, { type Connection } from 'ssh2';
import { SSH_ALGORITHMS, tunePackets } from '../../src/net/ssh-algorithms.ts';

test('a packet is one write, and message authentication has key objects, on both sides and after each exchange of keys', async (t) => {
  const { private: privateKey } = ssh2.utils.generateKeyPairSync('ed25519');
  const ssh = new ssh2.Server({ hostKeys: [privateKey], algorithms: SSH_ALGORITHMS });
  const server = createServer((socket) => ssh.injectSocket(socket)).listen(0, '127.0.0.1');
  t.after(() => server.close());
  const connected = once(ssh, 'connection') as Promise<[Connection]>;
  await once(server, 'listening');
  const client = new ssh2.Client();
  t.after(() => client.destroy());
  tunePackets(client);
  const ready = once(client, 'ready');
  client.connect({
    sock: connect((server.address() as AddressInfo).port, '127.0.0.1'),
    username: 'anyone',
    // As OpenSSH, which prefers it.
    algorithms: { ...SSH_ALGORITHMS, cipher: ['chacha20-poly1305@openssh.com', 'aes128-ctr'] },
  });
  const [connection] = await connected;
  tunePackets(connection);
  connection.on('authentication', (context) => context.accept());
  connection.on('session', (accept) => {
    accept().once('exec', (accepted, _reject, { command }) => accepted().end(command));
  });
  await ready;
  const sides = [client, connection] as unknown as {
    _protocol: Record<'_cipher' | '_decipher', { _macKey: unknown; encrypt(packet: Buffer): void }>;
    _sock: Required<Pick<Socket, '_write' | '_writev'>>;
  }[];
  async function answered(command: string): Promise<void> {
    const counted = sides.map(({ _protocol: { _cipher: cipher }, _sock: socket }) => ({
      packets: t.mock.method(cipher, 'encrypt').mock,
      parts: t.mock.method(socket, '_write').mock,
      writes: t.mock.method(socket, '_writev').mock,
    }));
    const channel = await new Promise<NodeJS.ReadableStream>((resolve, reject) =>
      client.exec(command, (error, it) => (error ? reject(error) : resolve(it))),
    );
    const pieces: Buffer[] = [];
    for await (const piece of channel) pieces.push(piece as Buffer);
    assert.equal(Buffer.concat(pieces).toString(), command);
    for (const { packets, parts, writes } of counted) {
      assert.ok(packets.callCount() >= 3, 'a channel, a command, an answer');
      assert.deepEqual([writes.callCount(), parts.callCount()], [packets.callCount(), 0]);
      for (const it of [packets, parts, writes]) it.restore();
    }
    for (const { _protocol: it } of sides)
      for (const { _macKey } of [it._cipher, it._decipher]) assert.ok(_macKey instanceof KeyObject);
  }
  await answered('first');
  await new Promise<void>((resolve) => connection.rekey(resolve));
  await answered('second');
});
