import net from 'node:net';
import tls from 'node:tls';
import { waitFor } from './waiting.ts';

/** A raw connection: what the test writes is sent unchanged, and all that comes back is kept. */
export type Line = {
  socket: net.Socket;
  write(text: string): void;
  /** Returns all that has come back so far. */
  text(): string;
  /** The statuses of the answers so far. */
  statuses(): number[];
  /** Resolves when `enough` is true of the text that came back. Rejects if the connection ends before. */
  until(enough: (text: string) => boolean): Promise<string>;
  /** How it ended: undefined for an orderly end, otherwise the error code. */
  ended: Promise<string | undefined>;
};

export async function openLine(url: string, options: Partial<net.NetConnectOpts> = {}): Promise<Line> {
  const { hostname, port, protocol } = new URL(url);
  const isTls = protocol === 'https:';
  const to = { host: hostname, port: Number(port), ...options } as net.TcpNetConnectOpts;
  // What a line tests is not the certificate.
  const socket = isTls ? tls.connect({ ...to, rejectUnauthorized: false }) : net.connect(to);
  const chunks: Buffer[] = [];
  const waiting = new Set<() => void>();
  let error: string | undefined;
  let isOver = false;
  const checkAll = () => {
    for (const check of [...waiting]) check();
  };
  socket.on('data', (chunk) => {
    chunks.push(chunk);
    checkAll();
  });
  socket.on('error', (it: NodeJS.ErrnoException) => {
    error = it.code;
  });
  const ended = new Promise<string | undefined>((resolve) =>
    socket.once('close', () => {
      isOver = true;
      resolve(error);
      checkAll();
    }),
  );
  await new Promise<void>((resolve, reject) =>
    socket.once(isTls ? 'secureConnect' : 'connect', resolve).once('error', reject),
  );
  const text = () => Buffer.concat(chunks).toString();
  return {
    socket,
    write: (it) => void socket.write(it),
    text,
    statuses: () => [...text().matchAll(/HTTP\/1\.1 (\d{3}) /g)].map(([, status]) => Number(status)),
    until(enough) {
      const { promise, resolve, reject } = Promise.withResolvers<string>();
      const check = () => {
        if (enough(text())) resolve(text());
        else if (isOver) reject(new Error(`the connection ended (${error ?? 'properly'}) after: ${text()}`));
        else return;
        waiting.delete(check);
      };
      waiting.add(check);
      check();
      return waitFor(() => `a connection has told ${enough}: ${text().slice(-1000)}`, promise);
    },
    ended,
  };
}

/** Returns the text of an HTTP request as it is sent. */
export function requestText(method: string, path: string, headers: Record<string, string>, body = ''): string {
  const all = { host: 'purser', ...(body ? { 'content-length': String(Buffer.byteLength(body)) } : {}), ...headers };
  const lines = Object.entries(all).map(([name, value]) => `${name}: ${value}\r\n`);
  return `${method} ${path} HTTP/1.1\r\n${lines.join('')}\r\n${body}`;
}
