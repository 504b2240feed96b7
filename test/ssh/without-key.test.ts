import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import test from 'node:test';
import { setImmediate as nextTurn } from 'node:timers/promises';
import ssh2 from 'ssh2';
import { hostKey } from '../../src/access/ssh-keys.ts';
import { files } from '../../src/files/data-directory.ts';
import { openSshServer } from '../../src/ssh/server.ts';
import { openTestServer } from '../helper/server.ts';

const IGNORE = 2;
const PIECE_BYTES = 16 * 1024;
const PIECE_COUNT = 1024;

/** The parts of ssh2 that make a packet. */
type Raw = ssh2.Client & {
  _protocol: {
    _packetRW: { write: { allocStart: number; alloc(bytes: number): Buffer; finalize(packet: Buffer): Buffer } };
    _cipher: { encrypt(packet: Buffer): void };
  };
};

/** Sends a packet that a server is to take and do nothing about, as anybody may after the handshake. */
function ignore({ _protocol: { _packetRW, _cipher } }: Raw): void {
  const { write } = _packetRW;
  const packet = write.alloc(5 + PIECE_BYTES);
  packet[write.allocStart] = IGNORE;
  packet.writeUInt32BE(PIECE_BYTES, write.allocStart + 1);
  _cipher.encrypt(write.finalize(packet));
}

test('whoever shows no key is sent away when it has sent more than a handshake takes', async (t) => {
  const purser = await openTestServer(t);
  const { privateKey } = hostKey(files(purser.directory).sshHostKey);
  // No time limit that could send it away instead.
  const limits = { authenticationMilliseconds: 2 ** 31 - 1 };
  const gateway = await openSshServer(purser.app, { host: '127.0.0.1', port: 0 }, privateKey, limits);
  t.after(() => gateway.close());
  const sock: Socket = connect(gateway.address.port, '127.0.0.1');
  const client = new ssh2.Client() as Raw;
  t.after(() => client.destroy());
  client.on('error', () => {});
  const greeted = once(client, 'handshake');
  client.connect({ sock, username: 'res_1', authHandler: () => {} });
  await greeted;
  let isClosed = false;
  sock.on('close', () => {
    isClosed = true;
  });
  let sent = 0;
  for (; sent < PIECE_COUNT && !isClosed; sent++) {
    ignore(client);
    if (sock.writableNeedDrain) await Promise.race([once(sock, 'drain'), once(sock, 'close')]);
    await nextTurn();
  }
  assert.ok(isClosed, `${sent} packets of ${PIECE_BYTES} bytes were taken`);
});
