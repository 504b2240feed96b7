import type { Duplex } from 'node:stream';
import type { ServerChannel } from 'ssh2';
import { contain, containCall } from '../net/contain.ts';
import { takesPackets } from '../net/ssh-algorithms.ts';
import type { SshClient } from './clients.ts';
import { createOutlet } from './outlet.ts';
import { discardRest, flow } from './session.ts';

/** The names of loopback: a client may be connected only to its own resource. */
const LOOPBACK = new Set(['127.0.0.1', '::1', 'localhost']);

/** A channel that a client wants to open to an address (`ssh -L`, `-W`; RFC 4254, section 7.2). */
type ForwardRequest = { host: string; port: number; accept(): ServerChannel; reject(): void };

/** Connects a client to a port of its own resource, with back-pressure both ways. Every other address is refused. */
export async function forward(
  connect: (port: number) => Promise<Duplex>,
  client: SshClient,
  { host, port, accept, reject }: ForwardRequest,
): Promise<void> {
  const target = LOOPBACK.has(host) && port > 0 ? await connect(port).catch(() => undefined) : undefined;
  if (!target || client.gone.aborted) {
    target?.destroy();
    return containCall(reject, client.broken);
  }
  const channel = accept();
  contain(channel, client.broken);
  if (!takesPackets(channel)) {
    target.destroy();
    return client.disconnect('its packets are too small');
  }
  const leaving = new AbortController();
  const leave = () => {
    leaving.abort();
    target.destroy();
  };
  client.gone.addEventListener('abort', leave, { once: true });
  client.channels.add(channel);
  channel.on('error', () => {}); // A channel with an error also closes.
  channel.once('close', leave);
  channel.pipe(target);
  try {
    await flow(target, createOutlet(channel, client.socket, leaving.signal).out, () => {});
    channel.end();
  } catch {
    containCall(() => channel.close(), client.broken); // One of the two sides has gone.
  } finally {
    client.gone.removeEventListener('abort', leave);
    discardRest(channel);
    client.channels.delete(channel);
  }
}
