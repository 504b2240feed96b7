import ssh2, {
  type AuthContext,
  type Connection,
  type ParsedKey,
  type ServerChannel,
  type Session as ServerSession,
} from 'ssh2';
import type { Keyring } from '../access/keyring.ts';
import { resourceKey } from '../access/ssh-keys.ts';
import type { Session, SessionOrder } from '../compute/backend.ts';
import { findResource, type Resource } from '../compute/resources.ts';
import type { Address } from '../config.ts';
import { findWallet, statusAt, type Wallet } from '../ledger/wallet.ts';
import type { LeaseApp } from '../spend/lease.ts';

export type GatewayApp = LeaseApp & { keyring: Keyring };

/** A client has so long to authenticate, and may be silent for so long afterwards. */
const AUTHENTICATE_MILLISECONDS = 20_000;
const IDLE_MILLISECONDS = 30 * 60_000;
const CONNECTION_COUNT_MAX = 256;
const CHANNEL_COUNT_MAX = 16;
/** Access ends with the lease: open connections are looked at this often. */
const LOOK_MILLISECONDS = 1000;

/** Where OpenSSH's own sftp server lies on the distributions; the gateway passes the subsystem through to it. */
const SFTP = `for it in /usr/lib/openssh /usr/libexec/openssh /usr/libexec /usr/lib/ssh; do
  [ -x "$it/sftp-server" ] && exec "$it/sftp-server"
done
echo 'There is no sftp-server in this machine: install openssh-sftp-server, or use scp -O.' >&2
exit 127`;

export type Gateway = { address: Address; close(): Promise<void> };

/**
 * The SSH gateway (design, section 7): one key opens one resource, by way of its backend's own session. Shell, exec and
 * sftp only; every kind of forwarding is refused; open connections end with the lease.
 */
export async function openGateway(app: GatewayApp, at: Address, hostKey: string): Promise<Gateway> {
  const open = new Set<{ connection: Connection; resourceId: string | undefined }>();
  const server = new ssh2.Server({ hostKeys: [hostKey], ident: 'Purser' }, (connection) => {
    const entry: { connection: Connection; resourceId: string | undefined } = { connection, resourceId: undefined };
    if (open.size >= CONNECTION_COUNT_MAX) return connection.end();
    open.add(entry);
    const late = setTimeout(() => connection.end(), AUTHENTICATE_MILLISECONDS);
    connection.on('error', () => {}); // A client that breaks off is no event.
    connection.on('close', () => {
      clearTimeout(late);
      open.delete(entry);
    });
    connection.on('authentication', (context) => {
      const resource = authenticate(app, context);
      if (!resource) return context.reject(['publickey']);
      entry.resourceId = resource.id;
      context.accept();
    });
    connection.on('ready', () => {
      clearTimeout(late);
      let channels = 0;
      connection.on('session', (accept, reject) => {
        if (++channels > CHANNEL_COUNT_MAX) return reject();
        serveSession(app, accept(), entry.resourceId as string, () => connection.end());
      });
      // Forwarding of every kind: from the client, to the client, of sockets.
      connection.on('tcpip', (_accept, reject) => reject());
      connection.on('openssh.streamlocal', (_accept, reject) => reject());
      connection.on('request', (_accept, reject) => reject?.());
    });
  });

  const look = setInterval(() => {
    for (const { connection, resourceId } of open)
      if (resourceId !== undefined && !accessible(app, resourceId)) connection.end();
  }, LOOK_MILLISECONDS);
  look.unref();

  await new Promise<void>((resolve, reject) => {
    server.once('error', reject);
    server.listen(at.port, at.host, () => resolve());
  });
  return {
    address: { host: at.host, port: (server.address() as { port: number }).port },
    async close() {
      clearInterval(look);
      for (const { connection } of open) connection.end();
      await new Promise<void>((resolve) => server.close(() => resolve()));
    },
  };
}

/** The resource and its wallet, while its paid time lasts and its wallet is active. */
function accessible(app: GatewayApp, id: string): { resource: Resource; wallet: Wallet } | undefined {
  const resource = findResource(app.ledger.read, id);
  const now = app.clock.now();
  if (resource?.status !== 'running' || resource.endWanted !== null || resource.expiresAt <= now) return undefined;
  const wallet = findWallet(app.ledger.read, resource.walletId);
  return wallet && statusAt(wallet, now) === 'active' ? { resource, wallet } : undefined;
}

/** The user name is the resource; only its own key opens it. */
function authenticate(app: GatewayApp, context: AuthContext): Resource | undefined {
  if (context.method !== 'publickey') return undefined;
  const found = accessible(app, context.username);
  if (!found) return undefined;
  const key = ssh2.utils.parseKey(resourceKey(app.keyring, found.wallet, found.resource).publicKey) as ParsedKey;
  if (context.key.algo !== key.type || !context.key.data.equals(key.getPublicSSH())) return undefined;
  // The first round only asks whether this key would do; it has no signature.
  if (!context.signature) return found.resource;
  return key.verify(context.blob as Buffer, context.signature, context.hashAlgo) === true ? found.resource : undefined;
}

function serveSession(app: GatewayApp, session: ServerSession, resourceId: string, drop: () => void): void {
  let terminal: SessionOrder['terminal'];
  let live: Session | undefined;
  session.on('pty', (accept, _reject, info) => {
    terminal = { term: (info as { term?: string }).term ?? 'xterm', columns: info.cols, rows: info.rows };
    accept?.();
  });
  session.on('window-change', (accept, _reject, info) => {
    live?.resize(info.cols, info.rows);
    accept?.();
  });
  session.on('env', (_accept, reject) => reject?.());
  session.on('x11', (_accept, reject) => reject?.());
  session.on('auth-agent', (_accept, reject) => reject?.());
  session.on('signal', (accept, _reject, { name }) => {
    if (['TERM', 'KILL', 'INT', 'HUP'].includes(name)) live?.kill();
    accept?.();
  });

  const begin = (channel: ServerChannel, command: string | undefined) =>
    void connect(app, channel, resourceId, { command, terminal }, (it) => {
      live = it;
    }).catch((error: Error) => {
      channel.stderr.write(`purser: ${error.message}\n`);
      channel.exit(255);
      channel.end();
      if (!accessible(app, resourceId)) drop();
    });
  session.on('shell', (accept) => begin(accept(), undefined));
  session.on('exec', (accept, _reject, { command }) => begin(accept(), command));
  session.on('subsystem', (accept, reject, { name }) => (name === 'sftp' ? begin(accept(), SFTP) : reject()));
}

/** Joins a channel and a session inside the resource until the one or the other ends. */
async function connect(
  app: GatewayApp,
  channel: ServerChannel,
  resourceId: string,
  order: SessionOrder,
  started: (session: Session) => void,
): Promise<void> {
  const found = accessible(app, resourceId);
  const backend = found && app.slots.backendOf(found.resource);
  if (!found || !backend || found.resource.ref === null) throw new Error('the resource is not running');
  const inside = await backend.session(found.resource.ref, order);
  started(inside);
  const idle = setTimeout(() => channel.close(), IDLE_MILLISECONDS);
  const stir = () => void idle.refresh();
  channel.on('data', stir);
  inside.stdout.on('data', stir);
  channel.on('error', () => {});
  inside.stdin.on('error', () => {}); // Whoever ended first tells by `ended`.
  channel.pipe(inside.stdin as NodeJS.WritableStream);
  inside.stdout.pipe(channel, { end: false });
  inside.stderr?.pipe(channel.stderr, { end: false });
  let isOver = false;
  channel.on('close', () => {
    clearTimeout(idle);
    if (!isOver) inside.kill(); // What a client leaves behind does not run on.
  });
  const end = await inside.ended;
  isOver = true;
  await drained(inside);
  if ('code' in end) channel.exit(end.code);
  else channel.exit(end.signal, false, '');
  channel.end();
}

/** What the process wrote last still has to pass. */
async function drained({ stdout, stderr }: Session): Promise<void> {
  const ended = [stdout, stderr].map((stream) => {
    if (!stream || stream.readableEnded || stream.destroyed) return undefined;
    return new Promise<void>((resolve) => stream.once('end', resolve).once('close', resolve));
  });
  await Promise.all(ended);
}
