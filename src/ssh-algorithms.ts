import type { Algorithms } from 'ssh2';

/**
 * What an SSH handshake may use, as server and as client. Finite-field key exchange is left out: its larger groups take
 * tens of milliseconds of the one thread, and the peer chooses. So are SHA-1, and macs that are computed before encryption.
 */
export const SSH_ALGORITHMS = {
  kex: ['curve25519-sha256', 'curve25519-sha256@libssh.org', 'ecdh-sha2-nistp256'],
  hmac: ['hmac-sha2-256-etm@openssh.com', 'hmac-sha2-512-etm@openssh.com'],
} satisfies Algorithms;
