import type { Socket } from 'node:net';
import type { ServerChannel } from 'ssh2';
import { containCall } from '../net/contain.ts';
import { breakOff } from './break-off.ts';
import type { Memory } from './memory.ts';

/** Strangers have shown no key yet: so many at a time. */
const STRANGER_COUNT_MAX = 64;
/** Each resource may have so many connections, and so many sessions over all of them; each is a process inside. */
const CONNECTION_COUNT_MAX = 16;
const SESSION_COUNT_MAX = 16;
/**
 * ssh2 does not hold a client to the window of a channel (2 MiB, and as much again may be on its way), nor does it look
 * at what waits in the socket. Whoever lets so much pile up does harm.
 */
const WAITING_BYTES_MAX = 16 * 1024 * 1024;
/** What a connection may have waiting without its being counted in the budget of its wallet: typing is always possible. */
const WAITING_BYTES_FREE = 64 * 1024;
/** Each packet that waits is an object of its own, however few bytes it brought. */
const PACKET_BYTES = 256;
/** What was said last has so long to get through. */
const PARTING_MILLISECONDS = 1000;

/** A connection, from its first byte to its last. */
export type Client = {
  socket: Socket;
  /** The name of its software, once it has said it. */
  software: string;
  /** The resource whose key it has shown. */
  resourceId: string | undefined;
  /** Counts its input that waits, in the budget of its wallet; undefined before it has shown a key. */
  memory: Memory | undefined;
  channels: Set<ServerChannel>;
  /** Aborted when the connection is over, and when it has to be. */
  gone: AbortSignal;
  /** Ends the connection: what it has inside is killed at once, its socket as soon as `farewell` is sent. */
  leave(why: string): void;
  /**
   * The same for one who did no harm: each open session is told why, and then the client has a moment to hang up. OpenSSH
   * does not print what it has not printed when a connection is ended on it.
   */
  dismiss(why: string): void;
  /** The protocol library, or what we do with it, threw on this connection: says so and ends it. */
  broken(error: Error): void;
  /** Says goodbye in the protocol, when that has begun. */
  farewell: () => void;
};

export type Clients = ReturnType<typeof createClients>;

/** Those who are connected, bounded in number, in time and in what they make us keep. */
export function createClients({
  strangerMilliseconds,
  failed,
}: {
  strangerMilliseconds: number;
  /** Hears of what `broken` was told. */
  failed(error: Error, visitor: Client): void;
}) {
  const strangers = new Map<Client, string>(); // And their addresses; the oldest first.
  const guests = new Set<Client>();
  /** Sessions by resource: those of clients that are gone count until nothing is left of them. */
  const sessions = new Map<string, number>();

  /** One who waits at an address that has the most of them waits longest: room is made at the cost of whoever floods. */
  function sendOneAway() {
    const counts = new Map<string, number>();
    for (const address of strangers.values()) counts.set(address, (counts.get(address) ?? 0) + 1);
    const most = Math.max(...counts.values());
    for (const [stranger, address] of strangers)
      if (counts.get(address) === most) return stranger.leave('there are too many connections without a key');
  }

  function admit(socket: Socket): Client {
    const leaving = new AbortController();
    function part(why: string) {
      strangers.delete(visitor);
      guests.delete(visitor);
      leaving.abort(new Error(why));
      visitor.memory?.close();
      setTimeout(() => socket.destroy(), PARTING_MILLISECONDS).unref();
    }
    const visitor: Client = {
      socket,
      software: '',
      resourceId: undefined,
      memory: undefined,
      channels: new Set(),
      gone: leaving.signal,
      farewell: () => {},
      leave(why) {
        if (leaving.signal.aborted) return;
        part(why);
        containCall(visitor.farewell, visitor.broken);
        socket.destroySoon();
      },
      dismiss(why) {
        const open = [...visitor.channels];
        if (!open.length || leaving.signal.aborted) return visitor.leave(why);
        part(why);
        for (const it of open) containCall(() => breakOff(it, why), visitor.broken);
      },
      broken(error) {
        failed(error, visitor);
        visitor.leave('something went wrong on the connection');
      },
    };
    if (strangers.size >= STRANGER_COUNT_MAX) sendOneAway();
    strangers.set(visitor, socket.remoteAddress ?? '');
    const late = setTimeout(() => strangers.has(visitor) && visitor.leave('no key was shown'), strangerMilliseconds);
    socket.setMaxListeners(0); // Each session waits for it to drain.
    socket.on('error', () => visitor.leave('the connection broke off'));
    socket.on('close', () => {
      clearTimeout(late);
      visitor.leave('the connection is gone');
    });
    return visitor;
  }

  /** Looks at what waits: every time that something arrives, and once in a while, as it may be read without a word. */
  function heard({ channels, socket, memory, gone, leave }: Client) {
    if (gone.aborted) return;
    const waiting = [...channels].map(bytesWaiting);
    const sum = waiting.reduce((sum, it) => sum + it, socket.writableLength);
    memory?.close();
    const isRoom = sum <= WAITING_BYTES_FREE || !memory || memory.tryTake(sum);
    if (!isRoom || [socket.writableLength, ...waiting].some((it) => it > WAITING_BYTES_MAX))
      leave('too much waits to be read');
  }

  return {
    admit,
    guests: guests as ReadonlySet<Client>,
    heard,
    /** The visitor has shown the key of a resource. False where that has its connections already. */
    welcome(visitor: Client, resourceId: string, memory: Memory): boolean {
      const others = [...guests].filter((it) => it.resourceId === resourceId);
      if (visitor.gone.aborted || others.length >= CONNECTION_COUNT_MAX) return false;
      strangers.delete(visitor);
      visitor.resourceId = resourceId;
      visitor.memory = memory;
      guests.add(visitor);
      return true;
    },
    /** One more session of a resource: answers what to call when it is over, or undefined where there is no room. */
    enter(resourceId: string): (() => void) | undefined {
      const count = sessions.get(resourceId) ?? 0;
      if (count >= SESSION_COUNT_MAX) return undefined;
      sessions.set(resourceId, count + 1);
      return () => {
        const left = (sessions.get(resourceId) as number) - 1;
        if (left === 0) sessions.delete(resourceId);
        else sessions.set(resourceId, left);
      };
    },
    sendAllAway(why: string) {
      for (const it of [...strangers.keys(), ...guests]) it.dismiss(why);
    },
  };
}

/** The memory that a channel's unread input takes. Node tells of its bytes only, not of its pieces. */
function bytesWaiting(channel: ServerChannel): number {
  const { buffer } = (channel as unknown as { _readableState: { buffer: readonly unknown[] } })._readableState;
  return channel.readableLength + buffer.length * PACKET_BYTES;
}
