import { createServer, type Socket } from 'node:net';
import ssh2, { type Algorithms, type AuthContext, type Connection, type ParsedKey } from 'ssh2';
import type { Keyring } from '../access/keyring.ts';
import { resourceKey } from '../access/ssh-keys.ts';
import type { LeaseApp } from '../lease/create.ts';
import { findResource, type Resource } from '../ledger/resource.ts';
import { findWallet, statusAt, type Wallet } from '../ledger/wallet.ts';
import { contain } from '../net/contain.ts';
import { type Address, listen } from '../net/listen.ts';
import { SSH_ALGORITHMS, takesPackets } from '../net/ssh-algorithms.ts';
import { type Client, createClients } from './clients.ts';
import type { Memory } from './memory.ts';
import { type Host, serveSession } from './session.ts';

export type SshApp = LeaseApp & { keyring: Keyring; memory: { open(walletId: string): Memory } };
export type GatewayLimits = {
  /** A client has so long to show its key. */
  strangerMilliseconds: number;
  /** A session may be silent for so long, in both directions. */
  idleMilliseconds: number;
};
const LIMITS: GatewayLimits = { strangerMilliseconds: 20_000, idleMilliseconds: 30 * 60_000 };
const ATTEMPT_COUNT_MAX = 10;
/** Sessions of one connection, one after the other: ssh2 keeps a little of each that was opened for nothing. */
const OPENED_COUNT_MAX = 10_000;
/** Access ends with the lease: open connections are looked at this often. */
const LOOK_MILLISECONDS = 1000;

export type SshServer = { address: Address; close(): Promise<void> };

/**
 * The SSH gateway (design, section 7): one key opens one resource, by way of its backend's own session. Shell, exec and
 * sftp only; every kind of forwarding is refused; open connections end with the lease.
 */
export async function openSshServer(
  app: SshApp,
  at: Address,
  hostKey: string,
  limits: Partial<GatewayLimits> = {},
): Promise<SshServer> {
  const { strangerMilliseconds, idleMilliseconds } = { ...LIMITS, ...limits };
  const visitors = createClients({
    strangerMilliseconds,
    failed: (error, { resourceId }) => app.events.failed('ssh_connection', error, { resource: resourceId }),
  });
  /** ssh2 says of a connection where it comes from and nothing more. */
  const bySource = new Map<string, Client>();
  const host = createHost(app, idleMilliseconds);

  // Nothing is compressed: a few bytes could become a great many before anybody has shown a key.
  const algorithms: Algorithms = { ...SSH_ALGORITHMS, compress: ['none'] };
  const ssh = new ssh2.Server({ hostKeys: [hostKey], ident: 'Purser', algorithms });
  ssh.on('connection', (connection, { ip, port, header }) => {
    connection.on('error', () => {}); // A client that breaks off is no event.
    const visitor = bySource.get(`${ip} ${port}`);
    if (!visitor) return connection.end();
    visitor.software = header.versions.software;
    receive(connection, visitor);
  });
  function receive(connection: Connection, visitor: Client) {
    let attempts = 0;
    let opened = 0;
    visitor.farewell = () => connection.end();
    connection.on('error', () => visitor.leave('the connection broke off'));
    connection.on('authentication', (context) => {
      const resource = authenticate(app, context);
      if (!resource) return ++attempts < ATTEMPT_COUNT_MAX ? context.reject(['publickey']) : visitor.leave('no key');
      // The first round only asks whether this key would do; it has no signature.
      const isProved = context.method === 'publickey' && context.signature !== undefined;
      if (isProved && !visitors.welcome(visitor, resource.id, app.memory.open(resource.walletId)))
        return visitor.leave('the resource has too many connections');
      context.accept();
    });
    connection.on('ready', () => {
      connection.on('session', (accept, reject) => {
        if (++opened > OPENED_COUNT_MAX) return visitor.leave('too many sessions');
        const over = visitors.enter(visitor.resourceId as string);
        if (!over) return reject();
        const session = accept();
        if (takesPackets(session)) return serveSession(host, visitor, session, over);
        over();
        visitor.leave('its packets are too small');
      });
      // Forwarding of every kind: from the client, to the client, of sockets.
      connection.on('tcpip', (_accept, reject) => reject());
      connection.on('openssh.streamlocal', (_accept, reject) => reject());
      connection.on('request', (_accept, reject) => reject?.());
    });
  }

  function admit(socket: Socket) {
    const source = `${socket.remoteAddress} ${socket.remotePort}`;
    const visitor = visitors.admit(socket);
    bySource.set(source, visitor);
    socket.on('close', () => bySource.delete(source));
    contain(socket, visitor.broken);
    ssh.injectSocket(socket);
    socket.on('data', () => visitors.heard(visitor));
  }
  const server = createServer({ noDelay: true }, admit);
  const look = setInterval(() => {
    for (const visitor of visitors.guests) {
      if (!accessible(app, visitor.resourceId as string)) visitor.leave('the lease has ended');
      visitors.heard(visitor);
    }
  }, LOOK_MILLISECONDS);
  look.unref();

  const address = await listen(server, at, (error) => app.events.failed('accept', error), '`ssh.listen`');
  return {
    address,
    async close() {
      clearInterval(look);
      visitors.sendAllAway('the server is stopping; what you rent goes on');
      await new Promise<void>((resolve) => server.close(() => resolve()));
    },
  };
}

function createHost(app: SshApp, idleMilliseconds: number): Host {
  return {
    idleMilliseconds,
    now: () => app.clock.now(),
    memory: ({ resourceId }) =>
      app.memory.open((findResource(app.ledger.read, resourceId as string) as Resource).walletId),
    async open({ resourceId }, order) {
      const found = accessible(app, resourceId as string);
      const backend = found && app.slots.backendOf(found.resource);
      if (!found || !backend || found.resource.ref === null) throw new Error('the resource is not running');
      return backend.session(found.resource.ref, order);
    },
    failed(visitor, error) {
      if (accessible(app, visitor.resourceId as string))
        app.events.failed('ssh_session', error, { resource: visitor.resourceId });
      else visitor.leave('the lease has ended');
    },
  };
}

/** The resource and its wallet, while its paid time lasts and its wallet is active. */
function accessible(app: SshApp, id: string): { resource: Resource; wallet: Wallet } | undefined {
  const resource = findResource(app.ledger.read, id);
  const now = app.clock.now();
  if (resource?.status !== 'running' || resource.endWanted !== null || resource.expiresAt <= now) return undefined;
  const wallet = findWallet(app.ledger.read, resource.walletId);
  return wallet && statusAt(wallet, now) === 'active' ? { resource, wallet } : undefined;
}

/** The user name is the resource; only its own key opens it. */
function authenticate(app: SshApp, context: AuthContext): Resource | undefined {
  if (context.method !== 'publickey') return undefined;
  const found = accessible(app, context.username);
  if (!found) return undefined;
  const key = ssh2.utils.parseKey(resourceKey(app.keyring, found.wallet, found.resource).publicKey) as ParsedKey;
  if (context.key.algo !== key.type || !context.key.data.equals(key.getPublicSSH())) return undefined;
  if (!context.signature) return found.resource;
  return key.verify(context.blob as Buffer, context.signature, context.hashAlgo) === true ? found.resource : undefined;
}
