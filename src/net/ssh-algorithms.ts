import type { Algorithms } from 'ssh2';

/**
 * What an SSH handshake may use, as server and as client. Finite-field key exchange is left out: its larger groups take
 * tens of milliseconds of the one thread, and the peer chooses. So are SHA-1, and macs that are computed before encryption.
 */
export const SSH_ALGORITHMS = {
  kex: ['curve25519-sha256', 'curve25519-sha256@libssh.org', 'ecdh-sha2-nistp256'],
  hmac: ['hmac-sha2-256-etm@openssh.com', 'hmac-sha2-512-etm@openssh.com'],
} satisfies Algorithms;

/**
 * Least bytes of the largest packet that a peer has to take on a channel. Every implementation takes 16 KiB and more (RFC
 * 4253, section 6.1); ssh2 1.17 cuts what it sends into pieces of whatever the peer names: for ever where that is 0, and
 * at the cost of a packet for each byte where it is 1.
 */
const PACKET_BYTES_MIN = 1024;

/** Whether the peer takes packets of a usable size on a channel of ssh2, or on a server's session that has none yet. */
export function takesPackets(channel: object): boolean {
  type Outgoing = { packetSize: number };
  const { outgoing, _chanInfo } = channel as { outgoing?: Outgoing; _chanInfo?: { outgoing: Outgoing } };
  const size = (outgoing ?? _chanInfo?.outgoing)?.packetSize;
  return size !== undefined && size >= PACKET_BYTES_MIN;
}
