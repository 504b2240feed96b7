import { connect } from 'node:net';
import type { Duplex } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';
import { Client, type ConnectConfig } from 'ssh2';
import { reportFault } from '../../base/fault.ts';
import { contain } from '../../net/contain.ts';
import { SSH_ALGORITHMS, tunePackets } from '../../net/ssh-algorithms.ts';

const CONNECT_MILLISECONDS = 10_000;
const PING_MILLISECONDS = 5_000;
/** A connection on which nothing arrives for this long, not even the answer to a ping, is given up. */
const SILENT_MILLISECONDS = 20_000;
/** The longest wait for a machine to close its end of a connection. */
const HANG_UP_MILLISECONDS = 1_000;
const RETRY_MILLISECONDS = { min: 50, max: 1_000 };

/** The user and key of a login, and the algorithms that are offered to the host. */
type SshLogin = {
  username: string;
  privateKey: string;
  algorithms?: NonNullable<ConnectConfig['algorithms']>;
};
/** The address of a machine, and the credentials of both sides. */
export type SshAddress = SshLogin & { host: string; port: number };
export type SshFault = Error & { level?: string; code?: string };

/**
 * Opens a connection, or throws; `level` is `client-authentication` where the key was refused. `isHost` returns whether a host key
 * is the machine's.
 */
export function connectSsh(
  address: SshAddress,
  isHost: (key: Buffer) => boolean,
  milliseconds = CONNECT_MILLISECONDS,
): Promise<Client> {
  const { host, port, ...login } = address;
  const sock = connect({ host, port, noDelay: true });
  sock.once('finish', () => setTimeout(() => sock.destroy(), HANG_UP_MILLISECONDS).unref());
  return connectThrough(sock, login, isHost, milliseconds);
}

/** Opens a connection over a stream that leads to an SSH server, or throws as `connectSsh`. */
export function connectThrough(
  sock: Duplex,
  { algorithms, ...login }: SshLogin,
  isHost: (key: Buffer) => boolean,
  milliseconds = CONNECT_MILLISECONDS,
): Promise<Client> {
  const client = new Client();
  contain(sock, (error) => {
    reportFault('backend', error);
    client.emit('error', error);
  });
  tunePackets(client);
  client.setMaxListeners(0); // Every channel listens for its end.
  const settings: ConnectConfig = {
    ...login,
    sock,
    // A host may have nothing else.
    algorithms: {
      ...SSH_ALGORITHMS,
      cipher: [...SSH_ALGORITHMS.cipher, 'chacha20-poly1305@openssh.com'],
      ...algorithms,
    },
    hostVerifier: isHost,
    readyTimeout: milliseconds,
    keepaliveInterval: PING_MILLISECONDS,
    // An answer may wait behind the output of commands: what counts is that anything arrives.
    keepaliveCountMax: Number.MAX_SAFE_INTEGER,
  };
  return new Promise((resolve, reject) => {
    client.on('error', (error) => {
      client.destroy();
      reject(error);
    });
    client.once('close', () => reject(new Error(CLOSED)));
    client.once('ready', () => {
      const silent = setTimeout(
        () => client.emit('error', new Error(`nothing was heard for ${SILENT_MILLISECONDS / 1000} s`)),
        SILENT_MILLISECONDS,
      );
      sock.on('data', () => silent.refresh());
      sock.once('close', () => clearTimeout(silent));
      resolve(client);
    });
    try {
      client.connect(settings);
    } catch (error) {
      sock.destroy(); // The private key cannot be parsed.
      throw error;
    }
  });
}

const CLOSED = 'the machine closed the connection';

/**
 * Opens a connection with `open`, and repeats that while the machine drops it before the handshake, as sshd does with those above
 * its MaxStartups. Gives up after the time limit of one connection.
 */
export async function connectAgain<T>(open: () => Promise<T>): Promise<T> {
  const until = performance.now() + CONNECT_MILLISECONDS;
  for (let pause = RETRY_MILLISECONDS.min; ; pause = Math.min(2 * pause, RETRY_MILLISECONDS.max)) {
    try {
      return await open();
    } catch (error) {
      if (!wasDropped(error as SshFault) || performance.now() + pause > until) throw error;
    }
    await sleep(pause * (0.5 + Math.random()));
  }
}

/** Returns whether a connection was dropped before its handshake was complete. */
const wasDropped = ({ code, level, message }: SshFault) =>
  (level === 'client-socket' && (code === 'ECONNRESET' || code === 'EPIPE')) ||
  message === 'Connection lost before handshake' ||
  message === CLOSED;
