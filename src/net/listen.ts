import { readFileSync } from 'node:fs';
import type { Server } from 'node:net';
import { networkInterfaces, totalmem } from 'node:os';

/** An address to listen on. An IPv6 host is kept without its brackets. */
export type Address = { host: string; port: number };

/** Parses "host:port", where an IPv6 host is in brackets. Returns undefined if it is not an address. */
export function parseAddress(text: string): Address | undefined {
  const match = /^(?:\[([0-9a-fA-F:]+)\]|([^:[\]]+)):(\d{1,5})$/.exec(text);
  const port = Number(match?.[3]);
  const host = match?.[1] ?? match?.[2];
  return host && port <= 65535 ? { host, port } : undefined;
}

/** Returns an address as text, in the form that `parseAddress` accepts. */
export const formatAddress = ({ host, port }: Address): string => `${host.includes(':') ? `[${host}]` : host}:${port}`;

/** Returns the URL of an address; `tls` is set where it speaks TLS. */
export const urlOf = (address: Address, tls?: unknown): string => `http${tls ? 's' : ''}://${formatAddress(address)}`;

/** Returns whether a host stands for all addresses of the machine. */
export const isEverywhere = (host: string): boolean => /^(0\.0\.0\.0|[0:]*::[0:]*)$/.test(host);

/**
 * Returns a host that other machines can call: one that stands for all addresses is replaced by the machine's first address
 * that is not loopback, or by loopback if there is none.
 */
export function reachableHost(host: string): string {
  if (!isEverywhere(host)) return host;
  const all = Object.values(networkInterfaces()).flatMap((it) => it ?? []);
  return all.find((it) => !it.internal && it.family === 'IPv4')?.address ?? '127.0.0.1';
}

/** Returns the URL at which other machines can call an address; `tls` is set where it speaks TLS. */
export const reachableUrl = ({ host, port }: Address, tls?: unknown): string =>
  urlOf({ host: reachableHost(host), port }, tls);

/** Minimum interval between reports of failed accept(2) calls, which come in bursts. */
const REPORT_MILLISECONDS = 10_000;

/**
 * Maximum number of connections that wait to be accepted; the system may allow fewer (`net.core.somaxconn`). With Node's
 * 511, half of a thousand connections at the same moment waited a second for their client's next try.
 */
const BACKLOG = 4096;

/**
 * Listens, and keeps listening when a single connection cannot be accepted; `failed` is called with such errors, at
 * intervals. Returns the address with the actual port. Throws when the address is in use; the message names the setting
 * `name`.
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
    server.listen(at.port, at.host, BACKLOG, () => {
      server.off('error', refused);
      resolve();
    });
  });
  outliveFaults(server, failed);
  const { port } = server.address() as { port: number };
  return { host: at.host, port };
}

/** Adds an error listener to a server. Without one, its first error would end the process. */
export function outliveFaults(server: Server, failed: (error: Error) => void): void {
  let reportedAt = Number.NEGATIVE_INFINITY;
  server.on('error', (error) => {
    const now = performance.now();
    if (now - reportedAt < REPORT_MILLISECONDS) return;
    reportedAt = now;
    failed(error);
  });
}

/** The usual soft limit on Linux; assumed if there is no /proc to read the limit from. */
const OPEN_FILES_USUAL = 1024;

/** Returns the number of files and sockets this process may open (getrlimit(2), RLIMIT_NOFILE; Node raises it to the maximum). */
export const openFilesMax = (): number => processLimits().openFiles ?? Number.POSITIVE_INFINITY;

/** Limits of this process; null for none. */
export type ProcessLimits = {
  openFiles: number | null;
  /** Of its control group, or of its address space, in bytes. */
  memoryBytes: number | null;
  /** Of processor time in all: the kernel then ends the process. */
  cpuSeconds: number | null;
};

/** Returns the limits of this process, as /proc and its control group have them. */
export function processLimits(): ProcessLimits {
  let limits: string;
  try {
    limits = readFileSync('/proc/self/limits', 'utf8');
  } catch {
    return { openFiles: OPEN_FILES_USUAL, memoryBytes: null, cpuSeconds: null };
  }
  const soft = (name: string) => {
    const found = new RegExp(`^${name} +(\\d+|unlimited)`, 'm').exec(limits)?.[1];
    return found === undefined || found === 'unlimited' ? null : Number(found);
  };
  // More than the machine has is no limit: some kernels have a number of 63 bits in the place of none.
  const group = process.constrainedMemory();
  const memory = [soft('Max address space'), group > 0 && group < totalmem() ? group : null].filter(
    (it) => it !== null,
  );
  return {
    openFiles: soft('Max open files'),
    memoryBytes: memory.length ? Math.min(...memory) : null,
    cpuSeconds: soft('Max cpu time'),
  };
}
