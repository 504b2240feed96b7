import { createServer, type Socket } from 'node:net';
import ssh2, { type Algorithms, type AuthContext, type Connection, type ParsedKey } from 'ssh2';
import type { Keyring } from '../access/keyring.ts';
import { resourceKey } from '../access/ssh-keys.ts';
import { contained } from '../base/fault.ts';
import { checkAfterFailure } from '../lease/after-failure.ts';
import type { LeaseApp } from '../lease/create.ts';
import { isPaused } from '../lease/pausing.ts';
import { accessible, type Ports } from '../lease/ports.ts';
import { endReasonOf } from '../lease/why.ts';
import { findResource, type Resource } from '../ledger/resource.ts';
import { contain } from '../net/contain.ts';
import { type Address, listen } from '../net/listen.ts';
import { SSH_ALGORITHMS, takesPackets, tunePackets } from '../net/ssh-algorithms.ts';
import { createClients, type SshClient } from './clients.ts';
import { forward } from './forward.ts';
import type { MemoryShare } from './memory.ts';
import { type SessionHost, serveSession } from './session.ts';

type SshApp = LeaseApp & { keyring: Keyring; memory: { open(walletId: string): MemoryShare }; ports: Ports };
export type GatewayLimits = {
  /** Time limit for a client to authenticate. */
  authenticationMilliseconds: number;
  /** Time after which a session that is idle in both directions ends. */
  idleMilliseconds: number;
};
const LIMITS: GatewayLimits = { authenticationMilliseconds: 20_000, idleMilliseconds: 30 * 60_000 };
const ATTEMPT_COUNT_MAX = 10;
/** The most bytes of a client before it has authenticated. A handshake and all attempts take a fraction. */
const UNAUTHENTICATED_BYTES_MAX = 64 * 1024;
/** The most sessions of one connection in total, as ssh2 keeps some memory for each. */
const OPENED_COUNT_MAX = 10_000;
/** Interval at which open connections are checked, so that access ends with the lease. */
const CHECK_MILLISECONDS = 1000;
const NOT_RUNNING = 'the resource is not running';

export type SshServer = { address: Address; close(): Promise<void> };

/**
 * Opens the SSH gateway (design, section 7). One key opens one resource, through a session of its backend. Serves shell, exec, sftp
 * and connections to its ports; refuses every other kind of forwarding. Open connections end with the lease.
 */
export async function openSshServer(
  app: SshApp,
  at: Address,
  hostKey: string,
  limits: Partial<GatewayLimits> = {},
): Promise<SshServer> {
  const { authenticationMilliseconds, idleMilliseconds } = { ...LIMITS, ...limits };
  const clients = createClients({
    authenticationMilliseconds,
    failed: (error, { resourceId }) => app.events.faulted('ssh_connection', error, { resource: resourceId }),
  });
  /** Clients by remote address and port, the only link that ssh2 gives between a connection and its socket. */
  const bySource = new Map<string, SshClient>();
  const gateway: SshGateway = { app, clients, host: createHost(app, idleMilliseconds) };

  // No compression: a few bytes could expand to a great many before authentication.
  const algorithms: Algorithms = { ...SSH_ALGORITHMS, compress: ['none'] };
  const ssh = new ssh2.Server({ hostKeys: [hostKey], ident: 'Purser', algorithms });
  ssh.on('connection', (connection, { ip, port, header }) => {
    connection.on('error', () => {}); // A client that disconnects is not an event.
    tunePackets(connection);
    const client = bySource.get(`${ip} ${port}`);
    if (!client) return connection.end();
    client.software = header.versions.software;
    receive(gateway, connection, client);
  });
  function admit(socket: Socket) {
    const source = `${socket.remoteAddress} ${socket.remotePort}`;
    const client = clients.admit(socket);
    bySource.set(source, client);
    socket.on('close', () => bySource.delete(source));
    contain(socket, client.broken);
    ssh.injectSocket(socket);
    socket.on('data', () => {
      if (client.resourceId === undefined && socket.bytesRead > UNAUTHENTICATED_BYTES_MAX)
        client.disconnect('it sends too much without a key');
      clients.checkBacklog(client);
    });
  }
  const server = createServer({ noDelay: true }, admit);
  const check = contained('timer', () => {
    for (const client of clients.authenticated) {
      const reason = whyInaccessible(app, client.resourceId as string);
      if (reason !== undefined) client.dismiss(reason);
      clients.checkBacklog(client);
    }
  });
  const timer = setInterval(check, CHECK_MILLISECONDS);
  timer.unref();

  const address = await listen(server, at, (error) => app.events.failed('accept', error), '`ssh.listen`');
  return {
    address,
    async close() {
      clearInterval(timer);
      clients.dismissAll('the server is stopping; what you rent goes on');
      await new Promise<void>((resolve) => server.close(() => resolve()));
    },
  };
}

type SshGateway = { app: SshApp; clients: ReturnType<typeof createClients>; host: SessionHost };

/** Lets a client authenticate, and serves its sessions and its connections to ports. */
function receive({ app, clients, host }: SshGateway, connection: Connection, client: SshClient): void {
  let attempts = 0;
  let opened = 0;
  client.sendDisconnect = () => connection.end();
  connection.on('error', () => client.disconnect('the connection broke off'));
  connection.on('authentication', (context) => {
    const resource = authenticate(app, context);
    if (!resource) return ++attempts < ATTEMPT_COUNT_MAX ? context.reject(['publickey']) : client.disconnect('no key');
    // The first round only asks whether the key is acceptable; it has no signature.
    const isProved = context.method === 'publickey' && context.signature !== undefined;
    if (isProved && !clients.authenticate(client, resource.id, app.memory.open(app.tenantOf(resource.walletId).treeId)))
      return client.disconnect('the resource has too many connections');
    context.accept();
  });
  connection.on('ready', () => {
    connection.on('session', (accept, reject) => {
      if (++opened > OPENED_COUNT_MAX) return client.disconnect('too many sessions');
      const closeSession = clients.openSession(client.resourceId as string);
      if (!closeSession) return reject();
      const session = accept();
      const ended = app.activity.begin(client.resourceId as string);
      const leave = () => {
        closeSession();
        ended();
      };
      if (takesPackets(session)) return serveSession(host, client, session, leave);
      leave();
      client.disconnect('its packets are too small');
    });
    connection.on('tcpip', (accept, reject, { destIP: to, destPort: port }) => {
      if (++opened > OPENED_COUNT_MAX) return client.disconnect('too many sessions');
      const connect = (port: number) => app.ports.connect(client.resourceId as string, port);
      void forward(connect, client, { host: to, port, accept, reject }).catch(client.broken);
    });
    // All other kinds of forwarding: to the client, of sockets.
    connection.on('openssh.streamlocal', (_accept, reject) => reject());
    connection.on('request', (_accept, reject) => reject?.());
  });
}

function createHost(app: SshApp, idleMilliseconds: number): SessionHost {
  return {
    idleMilliseconds,
    alone: ({ resourceId }) => app.activity.alone(resourceId as string),
    now: () => app.clock.now(),
    memory: ({ resourceId }) =>
      app.memory.open(app.tenantOf((findResource(app.ledger.read, resourceId as string) as Resource).walletId).treeId),
    async open({ resourceId }, order) {
      const lease = accessible(app, resourceId as string);
      const backend = lease && app.slots.backendOf(lease.resource);
      if (!lease || !backend || lease.resource.ref === null) throw new Error(NOT_RUNNING);
      const { id, ref } = lease.resource;
      return backend.guest.session(ref, order).catch(async (error) => {
        await checkAfterFailure(app, id); // If its machine is gone, `reason` is sent to the client.
        throw error;
      });
    },
    endMessage: ({ resourceId }) => whyInaccessible(app, resourceId as string),
    failed: ({ resourceId }, error) => app.events.failed('ssh_session', error, { resource: resourceId }),
  };
}

/** Returns why a lease cannot be used, mostly that it is over; undefined while it can. */
function whyInaccessible(app: SshApp, resourceId: string): string | undefined {
  if (accessible(app, resourceId)) return undefined;
  const reason = endReasonOf(app, resourceId);
  const row = findResource(app.ledger.read, resourceId) as Resource;
  if (reason === null && isPaused(row)) return 'the lease is paused';
  return reason === null ? NOT_RUNNING : `the lease is over (${reason})`;
}

/** Checks a login: the user name is the resource id, and only the resource's own key is accepted. */
function authenticate(app: SshApp, context: AuthContext): Resource | undefined {
  if (context.method !== 'publickey') return undefined;
  const lease = accessible(app, context.username);
  if (!lease) return undefined;
  const key = ssh2.utils.parseKey(resourceKey(app.keyring, lease.wallet, lease.resource).publicKey) as ParsedKey;
  if (context.key.algo !== key.type || !context.key.data.equals(key.getPublicSSH())) return undefined;
  if (!context.signature) return lease.resource;
  return key.verify(context.blob as Buffer, context.signature, context.hashAlgo) === true ? lease.resource : undefined;
}
