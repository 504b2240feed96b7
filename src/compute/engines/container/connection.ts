import { AsyncLocalStorage } from 'node:async_hooks';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import http from 'node:http';
import { connect, isIP, type Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { connect as connectTls } from 'node:tls';
import { inspect } from 'node:util';
import type { Client, ClientChannel } from 'ssh2';
import { reportFault } from '../../../base/fault.ts';
import { contain, containConnection } from '../../../net/contain.ts';
import { deadline } from '../../../net/deadline.ts';
import { takesPackets } from '../../../net/ssh-algorithms.ts';
import { connectSsh } from '../../kit/connect.ts';
import { pinHostKey } from '../../kit/pin.ts';
import { type EngineAddress, type EngineSettings, parseEngineAddress } from './address.ts';

/** Below the limit of a call, so that an unreachable engine is distinguished from one that does not answer. */
const CONNECT_MILLISECONDS = 10_000;
/** An idle connection is closed after this long. */
const IDLE_MILLISECONDS = 5_000;
const ERROR_BYTES_MAX = 64 * 1024;

/** A flag of Node that the executable does not take. */
const HINT_OF_NODE = /; if the root CA is installed locally.*$/;

export const BROKEN_OFF = 'the engine closed the connection before it had answered';

/** The engine cannot be reached: no connection was made, so it received nothing of the request. */
export class EngineUnreachable extends Error {}

/** Makes one connection to the engine, over which nothing has been sent yet. */
type Connect = () => Promise<Duplex>;

type EngineConnections = {
  /** For the HTTP requests to the engine. A request without a connection fails with EngineUnreachable. */
  agent: http.Agent;
  /**
   * Makes a call of docker-modem. Rejects with whatever that throws while it reads the answer, even where docker-modem has no
   * caller for it.
   */
  call<T>(make: () => Promise<T>): Promise<T>;
  close(): void;
};

/** Rejects the call that a request is made for. */
const failOf = new AsyncLocalStorage<(error: Error) => void>();

/** Prepares connections to the engine, without making one. Files of keys and certificates are read at each connection. */
export function openEngineConnections(settings: EngineSettings): EngineConnections {
  const at = parseEngineAddress(settings.socket);
  if (!at) throw new Error(`${settings.socket} is not the address of an engine`);
  const line = at.kind === 'ssh' ? openSshLine(at, settings) : undefined;
  const connectOnce: Connect = line
    ? line.connect
    : () => connectSocket(at as Exclude<EngineAddress, { kind: 'ssh' }>, settings);
  const agent = createAgent(connectOnce, line === undefined);
  return {
    agent,
    call: (make) => new Promise((resolve, reject) => failOf.run(reject, () => make().then(resolve, reject))),
    close() {
      agent.destroy();
      line?.close();
    },
  };
}

/** The method of an agent that Node's types leave out: each request is handed to it. */
type Queueing = http.Agent & { addRequest(request: http.ClientRequest, ...more: unknown[]): void };

/**
 * An agent that gives a request its connection only when that is complete, TLS and SSH included: until then not a byte of
 * the request has been sent.
 */
function createAgent(connectOnce: Connect, keepAlive: boolean): http.Agent {
  const agent = new http.Agent(keepAlive ? { keepAlive, timeout: IDLE_MILLISECONDS, scheduling: 'lifo' } : {});
  agent.createConnection = (_, done) => {
    const fail = done as ((error: Error) => void) | undefined;
    inTime(connectOnce()).then(
      (connection) => {
        containConnection(connection, 'backend');
        done?.(null, connection);
      },
      (error: Error) => fail?.(new EngineUnreachable(error.message.replace(HINT_OF_NODE, ''), { cause: error })),
    );
    return undefined;
  };
  const { addRequest } = agent as Queueing;
  (agent as Queueing).addRequest = (request, ...more) => {
    const fail = failOf.getStore();
    let answered: http.IncomingMessage | undefined;
    request.prependListener('response', (answer) => {
      answered = answer;
      if (request.hasHeader('upgrade') && (answer.statusCode as number) >= 300) boundError(answer);
      delete answer.headers.location; // Otherwise it would ask elsewhere, past this agent, and errors would be unhandled.
      // Errors that docker-modem throws while it reads an answer would be uncaught: they fail the call.
      contain(answer, (error) => {
        reportFault('backend', error);
        request.emit('error', error);
        fail?.(error); // It may already count the call as done.
        answer.destroy(error);
      });
    });
    // docker-modem would wait for ever for an answer that broke off, or for an upgrade that was not requested. A completed call
    // ignores this error.
    request.once('close', () => {
      if (!answered?.complete) request.emit('error', new Error(BROKEN_OFF));
    });
    addRequest.call(agent, request, ...more);
  };
  // docker-modem inspects the options of every request, for a log that is off: with all connections that took a second.
  Object.defineProperty(agent, inspect.custom, { value: () => 'the connections to the engine' });
  return agent;
}

/** Ends an answer in place of a connection that is too long: docker-modem would collect it, and parse it at once (modem.ts). */
function boundError(answer: http.IncomingMessage): void {
  let length = 0;
  answer.on('data', (chunk: Buffer) => {
    length += chunk.length;
    if (length > ERROR_BYTES_MAX) answer.destroy(new Error(`the answer is longer than ${ERROR_BYTES_MAX} bytes`));
  });
}

/** Resolves with the connection in time; closes one that comes too late. */
function inTime(connecting: Promise<Duplex>): Promise<Duplex> {
  return deadline(connecting, CONNECT_MILLISECONDS, () => {
    connecting.then(
      (connection) => connection.destroy(),
      () => {},
    );
    throw new Error(`no connection within ${CONNECT_MILLISECONDS / 1000} s`);
  });
}

async function connectSocket(at: Exclude<EngineAddress, { kind: 'ssh' }>, { tls }: EngineSettings): Promise<Duplex> {
  let socket: Socket;
  if (at.kind === 'unix') socket = connect({ path: at.path });
  else if (!tls) socket = connect({ host: at.host, port: at.port });
  else {
    const [ca, cert, key] = await Promise.all([readFile(tls.ca), readFile(tls.cert), readFile(tls.key)]);
    const name = isIP(at.host) ? {} : { servername: at.host };
    socket = connectTls({ host: at.host, port: at.port, ...name, ca, cert, key });
  }
  try {
    await once(socket, tls ? 'secureConnect' : 'connect', { signal: AbortSignal.timeout(CONNECT_MILLISECONDS) });
  } catch (error) {
    socket.destroy();
    throw error;
  }
  return socket.setNoDelay(true);
}

/**
 * A kept SSH connection, with a channel to the engine's socket for each request. sshd forwards the channels (direct-streamlocal),
 * so nothing runs on the host, and MaxSessions does not count them.
 */
function openSshLine(
  { user, host, port, path }: Extract<EngineAddress, { kind: 'ssh' }>,
  { host_key: hostKey = '', identity_file: identityFile = '' }: EngineSettings,
): { connect: Connect; close(): void } {
  let opening: Promise<Client> | undefined;
  const channels = new Set<ClientChannel>();

  async function open(): Promise<Client> {
    const pin = pinHostKey(hostKey);
    const privateKey = await readFile(identityFile, 'utf8');
    const { algorithms } = pin;
    const client = await connectSsh({ host, port, username: user, privateKey, algorithms }, pin.isHost).catch(
      (error: Error) => {
        throw pin.isOther() ? new Error(`${host}:${port} shows another host key than the one that is pinned`) : error;
      },
    );
    client.once('close', () => {
      opening = undefined;
      // ssh2 ends its channels as if the output were complete.
      for (const channel of channels) channel.emit('error', new Error('the SSH connection to the engine was lost'));
    });
    return client;
  }

  return {
    async connect() {
      opening ??= open();
      const client = await opening.catch((error: Error) => {
        opening = undefined;
        throw error;
      });
      const channel = await new Promise<ClientChannel>((resolve, reject) => {
        // Without either, the connection has ended in the meantime.
        client.openssh_forwardOutStreamLocal(path, (error, opened?: ClientChannel) =>
          opened ? resolve(opened) : reject(error ?? new Error('the SSH connection was lost')),
        );
      });
      if (!takesPackets(channel)) {
        client.destroy();
        throw new Error('the host takes no packets of a usable size');
      }
      channels.add(channel);
      channel.once('close', () => channels.delete(channel));
      return channel;
    },
    close() {
      void opening?.then((client) => client.end()).catch(() => {});
    },
  };
}
