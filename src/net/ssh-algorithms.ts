import { createSecretKey } from 'node:crypto';
import type { EventEmitter } from 'node:events';
import type { Writable } from 'node:stream';
import type { Algorithms } from 'ssh2';

/**
 * The algorithms an SSH handshake may use, as server and as client. Finite-field key exchange is left out: its larger groups take
 * tens of milliseconds of the one thread, and the peer chooses. SHA-1 and encrypt-and-MAC modes are left out too, and
 * chacha20-poly1305, which OpenSSH prefers: ssh2 makes three ciphers for each packet of it, and Node takes 50 µs to make one.
 */
export const SSH_ALGORITHMS = {
  cipher: ['aes128-ctr', 'aes256-ctr', 'aes192-ctr', 'aes128-gcm@openssh.com', 'aes256-gcm@openssh.com'],
  kex: ['curve25519-sha256', 'curve25519-sha256@libssh.org', 'ecdh-sha2-nistp256'],
  hmac: ['hmac-sha2-256-etm@openssh.com', 'hmac-sha2-512-etm@openssh.com'],
} satisfies Algorithms;

/**
 * The smallest maximum packet size that is accepted from a peer, in bytes. Every implementation accepts 16 KiB or more (RFC 4253,
 * section 6.1). ssh2 1.17 cuts its output into packets of the size the peer names: an endless loop if that is 0, and one packet per
 * byte if it is 1.
 */
const PACKET_BYTES_MIN = 1024;

/** Returns whether the peer accepts packets of a usable size, on an ssh2 channel or on a server session that has none yet. */
export function takesPackets(channel: object): boolean {
  type Outgoing = { packetSize: number };
  const { outgoing, _chanInfo } = channel as { outgoing?: Outgoing; _chanInfo?: { outgoing: Outgoing } };
  const size = (outgoing ?? _chanInfo?.outgoing)?.packetSize;
  return size !== undefined && size >= PACKET_BYTES_MIN;
}

type Side = { _macKey?: unknown; encrypt(packet: Buffer): void };
type Internals = { _protocol: { _cipher?: Side; _decipher?: Side }; _sock: Writable };

/**
 * Makes packets cheaper, after each handshake. ssh2 1.17 gives Node the bytes of the keys of message authentication for every
 * packet, and Node then makes a key object of them, which takes four times as long as all the rest: the objects are kept. And it
 * writes length, content and code of a packet one by one, each a call of the system, a segment and a peer that wakes up: they are
 * joined.
 */
export function tunePackets(connection: EventEmitter): void {
  connection.on('handshake', () => {
    const { _protocol, _sock: socket } = connection as unknown as Internals;
    const { _cipher: cipher, _decipher: decipher } = _protocol;
    for (const side of [cipher, decipher])
      if (side?._macKey instanceof Uint8Array) side._macKey = createSecretKey(side._macKey);
    if (cipher) joinWrites(cipher, socket);
  });
}

function joinWrites(cipher: Side, socket: Writable): void {
  const encrypt = cipher.encrypt.bind(cipher);
  cipher.encrypt = (packet) => {
    socket.cork();
    try {
      encrypt(packet);
    } finally {
      socket.uncork();
    }
  };
}
