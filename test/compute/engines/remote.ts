import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync } from 'node:fs';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { resetConnection } from '../../../src/net/reset.ts';

/** The files of one side of TLS: the authority it trusts, and what it shows itself. */
export type Certificates = { ca: string; cert: string; key: string };

/** Makes an authority in `directory`, and a certificate by it for a server of these names and for a client. */
export function makeCertificates(
  directory: string,
  names: readonly string[] = ['IP:127.0.0.1'],
): { server: Certificates; client: Certificates } {
  mkdirSync(directory, { recursive: true });
  const at = (name: string) => join(directory, name);
  const make = (name: string, ...extras: string[]) =>
    execFileSync(
      'openssl',
      [
        ...['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-days', '2'],
        ...['-keyout', at(`${name}-key.pem`), '-out', at(`${name}.pem`), '-subj', `/CN=${name}`, ...extras],
      ],
      { stdio: 'pipe' },
    );
  make('ca');
  const signed = (name: string, ...extensions: string[]): Certificates => {
    const all = ['basicConstraints=critical,CA:false', ...extensions].flatMap((it) => ['-addext', it]);
    make(name, '-CA', at('ca.pem'), '-CAkey', at('ca-key.pem'), ...all);
    return { ca: at('ca.pem'), cert: at(`${name}.pem`), key: at(`${name}-key.pem`) };
  };
  return {
    server: signed('server', `subjectAltName=${names.join(',')}`, 'extendedKeyUsage=serverAuth'),
    client: signed('client', 'extendedKeyUsage=clientAuth'),
  };
}

/** A line to a port of 127.0.0.1 that can be cut. */
export type Relay = {
  port: number;
  /** How many connections were made so far, and how many are open. */
  count(): number;
  openCount(): number;
  /** Breaks all connections, as a router that forgets them: each side gets a reset. New ones are accepted. */
  cut(): void;
};

export async function openRelay(t: Pick<TestContext, 'after'>, to: number): Promise<Relay> {
  const open = new Set<Socket>();
  let count = 0;
  const server = createServer({ allowHalfOpen: true }, (near) => {
    count += 1;
    const far = connect({ host: '127.0.0.1', port: to, allowHalfOpen: true });
    for (const [it, other] of [
      [near, far],
      [far, near],
    ] as const) {
      open.add(it);
      it.on('error', () => {});
      it.once('close', () => {
        open.delete(it);
        other.destroy();
      });
      it.pipe(other);
    }
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const cut = () => {
    for (const it of open) resetConnection(it);
  };
  t.after(async () => {
    cut();
    await new Promise((resolve) => server.close(resolve));
  });
  return { port: (server.address() as AddressInfo).port, count: () => count, openCount: () => open.size / 2, cut };
}
