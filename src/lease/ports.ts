import type { Duplex } from 'node:stream';
import { contained } from '../base/fault.ts';
import { Refusal } from '../base/refusal.ts';
import { CONNECTION_BYTES_MAX, connectPort, PortUnreachable } from '../compute/port.ts';
import { findResource, type Resource } from '../ledger/resource.ts';
import { findWallet, statusAt, type Wallet } from '../ledger/wallet.ts';
import { containConnection } from '../net/contain.ts';
import { checkAfterFailure } from './after-failure.ts';
import type { LeaseApp } from './create.ts';
import { isPaused, notRunning } from './pausing.ts';

/** Interval at which open connections are checked, so that access ends with the lease. */
const CHECK_MILLISECONDS = 1000;
const RETRY_SECONDS = 5;

type PortsApp = LeaseApp & {
  /** Counts memory against a wallet's quota. */
  memory: { open(walletId: string): { take(bytes: number): void; close(): void } };
};

/** The connections to ports of leases, over HTTP and over SSH. */
export type Ports = {
  /**
   * Connects to a port on loopback inside a lease. The stream is destroyed when the lease ends or its wallet may not use it any
   * more. Throws `resource_not_active` for a lease that does not run, `read_only` while the server stops, `rate_limited` at the
   * limits of connections and of memory, `port_unreachable`, `provider_not_configured` and `provider_unavailable`.
   */
  connect(resourceId: string, port: number): Promise<Duplex>;
  /** The number of open connections. */
  count(): number;
  /** Closes all connections, and opens no more. */
  close(): void;
};

/** Returns a running resource and its wallet, while it has paid time left and the wallet is active. */
export function accessible(
  app: Pick<LeaseApp, 'ledger' | 'clock'>,
  id: string,
): { resource: Resource; wallet: Wallet } | undefined {
  const resource = findResource(app.ledger.read, id);
  const now = app.clock.now();
  if (resource?.status !== 'running' || resource.endWanted !== null || resource.expiresAt <= now) return undefined;
  const wallet = findWallet(app.ledger.read, resource.walletId);
  return wallet && statusAt(app.ledger.read, wallet, now) === 'active' ? { resource, wallet } : undefined;
}

/** Creates the registry of connections. `enter` counts one of them against the limits of its resource and its wallet. */
export function createPorts(app: PortsApp, enter: (resourceId: string, walletId: string) => () => void): Ports {
  const open = new Map<Duplex, string>();
  let isClosed = false;
  const check = contained('timer', () => {
    for (const [stream, id] of open)
      if (!accessible(app, id)) stream.destroy(new Refusal('resource_not_active', 'The lease has ended or is paused.'));
  });
  const timer = setInterval(check, CHECK_MILLISECONDS);
  timer.unref();

  async function reach(id: string, port: number): Promise<Duplex> {
    const { resource } = accessible(app, id) ?? {};
    if (isClosed) throw new Refusal('read_only', 'The server is stopping.', { retryAfterSeconds: RETRY_SECONDS });
    if (!resource || resource.ref === null) {
      const row = findResource(app.ledger.read, id) as Resource;
      throw new Refusal('resource_not_active', isPaused(row) ? notRunning(row) : undefined);
    }
    const backend = app.slots.backendOf(resource);
    if (!backend) throw new Refusal('provider_not_configured');
    try {
      return await connectPort(backend, resource.ref, port);
    } catch (cause) {
      if (cause instanceof PortUnreachable) throw new Refusal('port_unreachable', cause.message);
      if (cause instanceof Refusal && cause.code !== 'resource_not_active') throw cause;
      const reason = await checkAfterFailure(app, id);
      if (reason !== null) throw new Refusal('resource_not_active', `The lease is over (${reason}).`, { cause });
      app.events.failed('port', cause, { resource: id });
      const message = 'The provider of this resource cannot be reached. Retry later.';
      throw new Refusal('provider_unavailable', message, { retryAfterSeconds: RETRY_SECONDS, cause });
    }
  }

  return {
    count: () => open.size,
    async connect(id, port) {
      const { walletId } = findResource(app.ledger.read, id) as Resource;
      // A connection of a resource begins here, and ends with `over`.
      const leave = enter(id, walletId);
      const ended = app.activity.begin(id);
      const memory = app.memory.open(app.tenantOf(walletId).treeId);
      const timer = () => {
        memory.close();
        ended();
        leave();
      };
      try {
        memory.take(CONNECTION_BYTES_MAX);
        const stream = await reach(id, port);
        stream.on('error', () => {}); // `close` follows.
        containConnection(stream, 'port');
        open.set(stream, id);
        stream.once('close', () => {
          open.delete(stream);
          timer();
        });
        if (isClosed) stream.destroy();
        return stream;
      } catch (error) {
        timer();
        throw error;
      }
    },
    close() {
      isClosed = true;
      clearInterval(timer);
      for (const stream of open.keys()) stream.destroy(new Error('the server is stopping'));
    },
  };
}
