import { after, type TestContext } from 'node:test';
import type { EngineSettings } from '../../../src/compute/engines/container/address.ts';
import { hasComponent } from '../../helper/component.ts';
import { freePort } from '../../helper/free-port.ts';
import { type Daemon, openDocker } from './docker.ts';
import { type Certificates, makeCertificates } from './remote.ts';
import { openSshd, type Sshd } from './sshd.ts';

export type Remote = { engine: Daemon; port: number; client: Certificates; server: Certificates; sshd: Sshd };
let remote: Remote | undefined;
after(async () => {
  await remote?.engine.stop();
  await remote?.sshd.stop();
});

/** One Docker Engine for the whole file, behind TLS and behind an sshd. */
export async function openRemote(t: TestContext): Promise<Remote | undefined> {
  if (remote) return remote;
  if (!hasComponent(t, 'openssl')) return undefined;
  const sshd = await openSshd(t, { shared: true });
  if (!sshd) return undefined;
  const { server, client } = makeCertificates(`${sshd.pool}/tls`);
  const port = await freePort();
  const flags = [
    ...['-H', `tcp://127.0.0.1:${port}`, '--tlsverify'],
    ...['--tlscacert', server.ca, '--tlscert', server.cert, '--tlskey', server.key],
  ];
  const engine = await openDocker(t, { shared: true, flags });
  if (!engine) return undefined;
  remote = { engine, port, client, server, sshd };
  return remote;
}

export const overTls = ({ client, ...at }: Remote, port = at.port): EngineSettings => ({
  socket: `tcp://127.0.0.1:${port}`,
  tls: client,
});
export const overSsh = (
  { sshd: { host }, ...at }: Remote,
  port = host.port,
  socket = at.engine.socket,
): EngineSettings => ({
  socket: `ssh://root@127.0.0.1:${port}${socket.slice('unix://'.length)}`,
  host_key: host.host_key,
  identity_file: host.identity_file,
});
