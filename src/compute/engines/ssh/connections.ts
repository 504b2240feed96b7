import type { Client } from 'ssh2';
import {
  BEGIN_MILLISECONDS,
  ChannelRefused,
  type Channels,
  type Fate,
  NeverSent,
  openChannel,
} from '../../kit/channel.ts';

/** Sessions that sshd accepts on a connection, unless its MaxSessions is lower. Fewer are learned from refusals. */
const CHANNEL_COUNT_MAX = 10;
/** The most handshakes at a time; sshd drops some when 10 are under way, from all clients together (MaxStartups). */
const HANDSHAKE_COUNT_MAX = 4;
const IDLE_MILLISECONDS = 60_000;
/**
 * The number of times that a connection without channels may refuse one before it is given up, with pauses of 20, 40, 80 … ms. A
 * refusal proves little: sshd may count a session just after its channel was closed.
 */
const REFUSAL_COUNT_MAX = 6;
const REFUSAL_PAUSE_MILLISECONDS = 20;
/** Connections in a row that are given up before the host counts as one that takes no channel. */
const USELESS_COUNT_MAX = 2;

type KeptConnection = {
  client: Client;
  /** Channels that were requested and are not closed. */
  open: number;
  /** The most channels at a time. */
  max: number;
  /** True once a line has begun on it. */
  hasServed: boolean;
  /** True if a channel was closed before its line had ended: sshd may still count that channel. */
  wasAbandoned: boolean;
  /** Takes no further channel, and is closed after its last one. */
  isRetired: boolean;
  idle: NodeJS.Timeout | undefined;
  /** Refusals in a row while no other channel was open. */
  refusals: number;
};
type ConnectionTurn = { take(connection: KeptConnection): void; fail(error: Error): void };

type KeptConnections = Channels & {
  /** Closes every connection; the lines that run on them are lost. */
  close(): void;
};

/**
 * Keeps connections to one host, and runs each line on a channel of one of them. There are as many connections as its channels
 * need: sshd limits the sessions of a connection, not the connections of a client. A line that was never sent, because its
 * connection had died or took no further channel, is begun again on another.
 */
export function keepConnections(connect: () => Promise<Client>, idleMilliseconds = IDLE_MILLISECONDS): KeptConnections {
  const turns = createTurns();
  const connections = createOpenConnections(turns, grow, idleMilliseconds);
  let handshakes = 0;
  let isClosed = false;

  /** Opens connections for the waiting callers. */
  function grow(): void {
    while (!isClosed && handshakes < HANDSHAKE_COUNT_MAX && turns.count() > handshakes * connections.channelCountMax())
      void add();
  }

  async function add(): Promise<void> {
    handshakes++;
    try {
      const client = await connect();
      handshakes--;
      if (isClosed) client.end();
      else connections.adopt(client);
      connections.serve();
      grow();
    } catch (error) {
      handshakes--;
      if (handshakes === 0) turns.failAll(error as Error);
    }
  }

  async function begin(line: string, terminal: Parameters<Channels['begin']>[1]) {
    const until = performance.now() + BEGIN_MILLISECONDS;
    let useless = 0;
    for (;;) {
      if (isClosed) throw new NeverSent('the connections are closed');
      const free = turns.wait(until - performance.now());
      connections.serve();
      grow();
      const it = await free;
      try {
        const onEnd = (fate: Fate) => connections.release(it, fate);
        const begun = await openChannel(it.client, line, { terminal, milliseconds: until - performance.now(), onEnd });
        it.hasServed = true;
        it.refusals = 0;
        return begun;
      } catch (error) {
        if (!(error instanceof NeverSent)) throw error;
        if (!(error instanceof ChannelRefused)) connections.retire(it);
        if (it.isRetired && !it.hasServed) useless++;
        if (useless === USELESS_COUNT_MAX) turns.failAll(error); // New connections take nothing: another would not either.
        if (useless === USELESS_COUNT_MAX || performance.now() >= until) throw error;
      }
    }
  }

  return {
    begin,
    close() {
      isClosed = true;
      turns.failAll(new NeverSent('the connections are closed'));
      connections.closeAll();
    },
  };
}

/**
 * Creates the set of open connections, which is empty. `serve` gives their free channels to callers who wait. `lost` is called when one
 * has ended.
 */
function createOpenConnections(turns: LoginTurns, lost: () => void, idleMilliseconds: number) {
  const connections = new Set<KeptConnection>();
  let channelCountMax = CHANNEL_COUNT_MAX;

  function serve(): void {
    for (const it of connections)
      while (turns.count() && !it.isRetired && it.open < it.max) {
        clearTimeout(it.idle);
        it.open++;
        turns.give(it);
      }
  }

  function adopt(client: Client): void {
    const it = { client, open: 0, max: channelCountMax, hasServed: false, wasAbandoned: false, isRetired: false };
    const connection: KeptConnection = { ...it, idle: undefined, refusals: 0 };
    connections.add(connection);
    client.once('close', () => {
      retire(connection);
      lost();
    });
    rest(connection);
  }

  function rest(it: KeptConnection): void {
    if (it.open > 0) return;
    clearTimeout(it.idle);
    if (it.isRetired) close(it);
    else it.idle = setTimeout(close, idleMilliseconds, it);
  }

  function retire(it: KeptConnection): void {
    it.isRetired = true;
    rest(it);
  }

  function close(it: KeptConnection): void {
    connections.delete(it);
    clearTimeout(it.idle);
    it.client.end();
  }

  function release(it: KeptConnection, fate: Fate): void {
    it.open--;
    if (fate === 'left') it.wasAbandoned = true;
    if (fate === 'refused' && it.open > 0) {
      it.max = it.open;
      if (!it.wasAbandoned) channelCountMax = Math.min(channelCountMax, it.max);
    } else if (fate === 'refused') doubt(it);
    rest(it);
    serve();
  }

  /** Handles a refusal by a connection without channels: it is tried again after a pause, or given up. */
  function doubt(it: KeptConnection): void {
    const { max } = it;
    it.max = 0;
    // A program that continues after its channel was left may be counted for as long as it runs.
    if (it.wasAbandoned || ++it.refusals > REFUSAL_COUNT_MAX) it.isRetired = true;
    else
      setTimeout(
        () => {
          it.max = max;
          serve();
        },
        REFUSAL_PAUSE_MILLISECONDS * 2 ** (it.refusals - 1),
      );
  }

  return {
    channelCountMax: () => channelCountMax,
    serve,
    adopt,
    release,
    retire,
    closeAll: () => connections.forEach(close),
  };
}

/** Creates the queue of callers that wait for a connection with a free channel. */
function createTurns() {
  const turns: ConnectionTurn[] = [];
  return {
    count: () => turns.length,
    /** Gives a connection to the caller who has waited longest. */
    give: (connection: KeptConnection) => turns.shift()?.take(connection),
    failAll(error: Error): void {
      for (const it of turns.splice(0)) it.fail(error);
    },
    /** Waits for a free channel and returns its connection, with the channel counted. */
    wait(milliseconds: number): Promise<KeptConnection> {
      return new Promise((resolve, reject) => {
        const leave = () => {
          clearTimeout(late);
          const at = turns.indexOf(it);
          if (at >= 0) turns.splice(at, 1);
        };
        const it: ConnectionTurn = {
          take(connection) {
            leave();
            resolve(connection);
          },
          fail(error) {
            leave();
            reject(error);
          },
        };
        const late = setTimeout(
          () => it.fail(new NeverSent(`no channel was free within ${BEGIN_MILLISECONDS / 1000} s`)),
          milliseconds,
        );
        turns.push(it);
      });
    },
  };
}
type LoginTurns = ReturnType<typeof createTurns>;
