import { readFileSync } from 'node:fs';
import type { Server } from 'node:net';

/** Where something listens; an IPv6 host is kept without its brackets. */
export type Address = { host: string; port: number };

/** Reads "host:port"; an IPv6 host stands in brackets. Undefined where it is none. */
export function parseAddress(text: string): Address | undefined {
  const match = /^(?:\[([0-9a-fA-F:]+)\]|([^:[\]]+)):(\d{1,5})$/.exec(text);
  const port = Number(match?.[3]);
  const host = match?.[1] ?? match?.[2];
  return host && port <= 65535 ? { host, port } : undefined;
}

/** The `http://` URL of an address. */
export function urlOf({ host, port }: Address): string {
  return `http://${host.includes(':') ? `[${host}]` : host}:${port}`;
}

/** One fault of accept(2) is as good as a thousand in a row: what is said of them is said so often at most. */
const SAY_MILLISECONDS = 10_000;

/**
 * Listens, and goes on whatever becomes of a single connection afterwards: `failed` hears, now and then, that one could
 * not be accepted. Answers where it really listens; `name` is the setting, for the error.
 */
export async function listen(
  server: Server,
  at: Address,
  failed: (error: Error) => void,
  name: string,
): Promise<Address> {
  await new Promise<void>((resolve, reject) => {
    const refused = (error: NodeJS.ErrnoException) =>
      reject(
        error.code === 'EADDRINUSE'
          ? new Error(`${at.host}:${at.port} is in use by another program. Set ${name}.`)
          : error,
      );
    server.once('error', refused);
    server.listen(at.port, at.host, () => {
      server.off('error', refused);
      resolve();
    });
  });
  outliveFaults(server, failed);
  const { port } = server.address() as { port: number };
  return { host: at.host, port };
}

/** A server without a listener for its errors would take the process with it at the first one. */
export function outliveFaults(server: Server, failed: (error: Error) => void): void {
  let saidAt = Number.NEGATIVE_INFINITY;
  server.on('error', (error) => {
    const now = performance.now();
    if (now - saidAt < SAY_MILLISECONDS) return;
    saidAt = now;
    failed(error);
  });
}

/** What every Linux gives; assumed where there is no /proc to read the limit from. */
const OPEN_FILES_USUAL = 1024;

/** The files and sockets that this process may have open (getrlimit(2), RLIMIT_NOFILE; Node has raised it to the most). */
export function openFilesMax(): number {
  let limits: string;
  try {
    limits = readFileSync('/proc/self/limits', 'utf8');
  } catch {
    return OPEN_FILES_USUAL;
  }
  const found = /^Max open files +(\d+|unlimited)/m.exec(limits)?.[1];
  return found === undefined || found === 'unlimited' ? Number.POSITIVE_INFINITY : Number(found);
}
