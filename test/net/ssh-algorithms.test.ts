import assert from 'node:assert/strict';
import { KeyObject } from 'node:crypto';
import { once } from 'node:events';
import { type AddressInfo, connect, createServer } from 'node:net';
import test from 'node:test';
import ssh2, { type Connection } from 'ssh2';
import { keepMacKeys, SSH_ALGORITHMS } from '../../src/net/ssh-algorithms.ts';

test('message authentication has key objects on both sides, after each exchange of keys', async (t) => {
  const { private: privateKey } = ssh2.utils.generateKeyPairSync('ed25519');
  const ssh = new ssh2.Server({ hostKeys: [privateKey], algorithms: SSH_ALGORITHMS });
  const server = createServer((socket) => ssh.injectSocket(socket)).listen(0, '127.0.0.1');
  t.after(() => server.close());
  const connected = once(ssh, 'connection') as Promise<[Connection]>;
  await once(server, 'listening');
  const client = new ssh2.Client();
  t.after(() => client.destroy());
  keepMacKeys(client);
  const ready = once(client, 'ready');
  client.connect({
    sock: connect((server.address() as AddressInfo).port, '127.0.0.1'),
    username: 'anyone',
    // As OpenSSH, which prefers it.
    algorithms: { ...SSH_ALGORITHMS, cipher: ['chacha20-poly1305@openssh.com', 'aes128-ctr'] },
  });
  const [connection] = await connected;
  keepMacKeys(connection);
  connection.on('authentication', (context) => context.accept());
  connection.on('session', (accept) => {
    accept().once('exec', (accepted, _reject, { command }) => accepted().end(command));
  });
  await ready;
  async function answered(command: string): Promise<void> {
    const channel = await new Promise<NodeJS.ReadableStream>((resolve, reject) =>
      client.exec(command, (error, it) => (error ? reject(error) : resolve(it))),
    );
    const pieces: Buffer[] = [];
    for await (const piece of channel) pieces.push(piece as Buffer);
    assert.equal(Buffer.concat(pieces).toString(), command);
    for (const side of [client, connection]) {
      const { _cipher, _decipher } = (side as unknown as { _protocol: Record<string, { _macKey: unknown }> })._protocol;
      for (const it of [_cipher, _decipher]) assert.ok(it?._macKey instanceof KeyObject);
    }
  }
  await answered('first');
  await new Promise<void>((resolve) => connection.rekey(resolve));
  await answered('second');
});
