import type { Socket } from 'node:net';
import type { ServerChannel } from 'ssh2';
import { networkOf } from '../net/address.ts';
import { containCall } from '../net/contain.ts';
import { breakOff } from './break-off.ts';
import type { MemoryShare } from './memory.ts';

/** The most unauthenticated connections at a time. */
const UNAUTHENTICATED_COUNT_MAX = 64;
/** The most connections of a resource, and the most sessions over all of them; each session is a process inside. */
const CONNECTION_COUNT_MAX = 16;
const SESSION_COUNT_MAX = 16;
/**
 * The most unread bytes of a channel or socket before the connection is ended. ssh2 does not enforce the window of a
 * channel (2 MiB, and as much again in transit), nor does it limit the socket's buffer.
 */
const WAITING_BYTES_MAX = 16 * 1024 * 1024;
/** Unread bytes that are not counted against the wallet's memory quota, so that typing is always possible. */
const WAITING_BYTES_FREE = 64 * 1024;
/** The memory overhead of an unread packet, however small its content. */
const PACKET_BYTES = 256;
/** Time that a client has to take the last messages, of a connection or of a channel. */
export const CLOSE_MILLISECONDS = 1000;

/** An open connection. */
export type SshClient = {
  socket: Socket;
  /** The name of the client software, once it is known. */
  software: string;
  /** The resource that it has authenticated for. */
  resourceId: string | undefined;
  /** Counts its unread input against the wallet's memory quota; undefined before authentication. */
  memory: MemoryShare | undefined;
  /** The open channels, and those that have ended but that the client has not closed yet. */
  channels: Set<ServerChannel>;
  /** Aborted when the connection has ended or is being ended. */
  gone: AbortSignal;
  /** Ends the connection: its sessions are killed at once; the socket closes once `sendDisconnect` has been written. */
  disconnect(why: string): void;
  /**
   * Ends the connection gracefully: each open session gets the reason, and the client a moment to hang up. OpenSSH does not
   * print pending output when the server closes the connection.
   */
  dismiss(why: string): void;
  /** Reports an exception of the protocol library or of our use of it, and ends the connection. */
  broken(error: Error): void;
  /** Sends the protocol's disconnect message, once the protocol has begun. */
  sendDisconnect: () => void;
};

/** Tracks the connected clients and limits their number, the time to authenticate and the memory they use. */
export function createClients({
  authenticationMilliseconds,
  failed,
}: {
  authenticationMilliseconds: number;
  /** Called with the errors of `broken`. */
  failed(error: Error, client: SshClient): void;
}) {
  const unauthenticated = new Map<SshClient, string>(); // With their networks, the oldest first.
  const authenticated = new Set<SshClient>();
  /** Open sessions by resource. Those of disconnected clients count until their processes have ended. */
  const sessions = new Map<string, number>();

  function admit(socket: Socket): SshClient {
    const client = createClient(socket, failed, (it) => {
      unauthenticated.delete(it);
      authenticated.delete(it);
    });
    if (unauthenticated.size >= UNAUTHENTICATED_COUNT_MAX)
      oldestOfMost(unauthenticated)?.disconnect('there are too many connections without a key');
    unauthenticated.set(client, networkOf(socket.remoteAddress));
    const late = setTimeout(
      () => unauthenticated.has(client) && client.disconnect('no key was shown'),
      authenticationMilliseconds,
    );
    socket.setMaxListeners(0); // Each session waits for it to drain.
    socket.on('error', () => client.disconnect('the connection broke off'));
    socket.on('close', () => {
      clearTimeout(late);
      client.disconnect('the connection is gone');
    });
    return client;
  }

  /** Checks the unread input; called when data arrives, and periodically, as it may be read in between. */
  function checkBacklog({ channels, socket, memory, gone, disconnect }: SshClient) {
    if (gone.aborted) return;
    const waiting = [...channels].map(bytesWaiting);
    const sum = waiting.reduce((sum, it) => sum + it, socket.writableLength);
    memory?.close();
    const fits = sum <= WAITING_BYTES_FREE || !memory || memory.tryTake(sum);
    if (!fits || [socket.writableLength, ...waiting].some((it) => it > WAITING_BYTES_MAX))
      disconnect('there is too much unread data');
  }

  return {
    admit,
    authenticated: authenticated as ReadonlySet<SshClient>,
    checkBacklog,
    /** Registers a client's authentication for a resource. Returns false when the resource has too many connections. */
    authenticate(client: SshClient, resourceId: string, memory: MemoryShare): boolean {
      const others = [...authenticated].filter((it) => it.resourceId === resourceId);
      if (client.gone.aborted || others.length >= CONNECTION_COUNT_MAX) return false;
      unauthenticated.delete(client);
      client.resourceId = resourceId;
      client.memory = memory;
      authenticated.add(client);
      return true;
    },
    /** Counts a session of a resource. Returns the function to call when it is over, or undefined at the limit. */
    openSession(resourceId: string): (() => void) | undefined {
      const count = sessions.get(resourceId) ?? 0;
      if (count >= SESSION_COUNT_MAX) return undefined;
      sessions.set(resourceId, count + 1);
      return () => {
        const left = (sessions.get(resourceId) as number) - 1;
        if (left === 0) sessions.delete(resourceId);
        else sessions.set(resourceId, left);
      };
    },
    dismissAll(why: string) {
      for (const it of [...unauthenticated.keys(), ...authenticated]) it.dismiss(why);
    },
  };
}

/** Returns the oldest connection of the network that has the most of them. */
function oldestOfMost(networks: ReadonlyMap<SshClient, string>): SshClient | undefined {
  const counts = new Map<string, number>();
  for (const network of networks.values()) counts.set(network, (counts.get(network) ?? 0) + 1);
  const most = Math.max(...counts.values());
  return networks.keys().find((it) => counts.get(networks.get(it) as string) === most);
}

/** Wraps a connection. Calls `left` once, when it has ended or begins to end, and `failed` with the errors of `broken`. */
function createClient(
  socket: Socket,
  failed: (error: Error, client: SshClient) => void,
  left: (client: SshClient) => void,
): SshClient {
  const leaving = new AbortController();
  function detach(why: string) {
    left(client);
    leaving.abort(new Error(why));
    client.memory?.close();
    setTimeout(() => socket.destroy(), CLOSE_MILLISECONDS).unref();
  }
  const client: SshClient = {
    socket,
    software: '',
    resourceId: undefined,
    memory: undefined,
    channels: new Set(),
    gone: leaving.signal,
    sendDisconnect: () => {},
    disconnect(why) {
      if (leaving.signal.aborted) return;
      detach(why);
      containCall(client.sendDisconnect, client.broken);
      socket.destroySoon();
    },
    dismiss(why) {
      const open = [...client.channels];
      if (!open.length || leaving.signal.aborted) return client.disconnect(why);
      detach(why);
      for (const it of open) containCall(() => breakOff(it, why), client.broken);
    },
    broken(error) {
      failed(error, client);
      client.disconnect('something went wrong on the connection');
    },
  };
  return client;
}

/** Estimates the memory of a channel's unread input. Node reports only its bytes, not the number of its chunks. */
function bytesWaiting(channel: ServerChannel): number {
  const { buffer } = (channel as unknown as { _readableState: { buffer: readonly unknown[] } })._readableState;
  return channel.readableLength + buffer.length * PACKET_BYTES;
}
