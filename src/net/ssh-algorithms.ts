import { createSecretKey } from 'node:crypto';
import type { EventEmitter } from 'node:events';
import type { Algorithms } from 'ssh2';

/**
 * The algorithms an SSH handshake may use, as server and as client. Finite-field key exchange is left out: its larger groups
 * take tens of milliseconds of the one thread, and the peer chooses. SHA-1 and encrypt-and-MAC modes are left out too, and
 * chacha20-poly1305, which OpenSSH prefers: ssh2 makes three ciphers for each packet of it, and Node takes 50 µs to make one.
 */
export const SSH_ALGORITHMS = {
  cipher: ['aes128-ctr', 'aes256-ctr', 'aes192-ctr', 'aes128-gcm@openssh.com', 'aes256-gcm@openssh.com'],
  kex: ['curve25519-sha256', 'curve25519-sha256@libssh.org', 'ecdh-sha2-nistp256'],
  hmac: ['hmac-sha2-256-etm@openssh.com', 'hmac-sha2-512-etm@openssh.com'],
} satisfies Algorithms;

/**
 * The smallest maximum packet size that is accepted from a peer, in bytes. Every implementation accepts 16 KiB or more (RFC
 * 4253, section 6.1). ssh2 1.17 cuts its output into packets of the size the peer names: an endless loop if that is 0, and
 * one packet per byte if it is 1.
 */
const PACKET_BYTES_MIN = 1024;

/** Returns whether the peer accepts packets of a usable size, on an ssh2 channel or on a server session that has none yet. */
export function takesPackets(channel: object): boolean {
  type Outgoing = { packetSize: number };
  const { outgoing, _chanInfo } = channel as { outgoing?: Outgoing; _chanInfo?: { outgoing: Outgoing } };
  const size = (outgoing ?? _chanInfo?.outgoing)?.packetSize;
  return size !== undefined && size >= PACKET_BYTES_MIN;
}

/**
 * Keeps the keys of a connection's message authentication as key objects, after each handshake. ssh2 1.17 gives Node their bytes
 * for every packet, and Node then makes such an object of them, which takes four times as long as all the rest.
 */
export function keepMacKeys(connection: EventEmitter): void {
  type Side = { _macKey?: unknown } | undefined;
  connection.on('handshake', () => {
    const { _cipher, _decipher } = (connection as unknown as { _protocol: { _cipher: Side; _decipher: Side } })
      ._protocol;
    for (const side of [_cipher, _decipher])
      if (side?._macKey instanceof Uint8Array) side._macKey = createSecretKey(side._macKey);
  });
}
