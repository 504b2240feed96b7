import net from 'node:net';

/** One connection in a test's hand: what is written on it goes as it is, and what comes back is kept whole. */
export type Line = {
  socket: net.Socket;
  write(text: string): void;
  /** Everything that came back so far. */
  text(): string;
  /** The statuses of the answers so far. */
  statuses(): number[];
  /** Resolves when so much has come back that `enough` says so; rejects when the connection ends before. */
  until(enough: (text: string) => boolean): Promise<string>;
  /** How it ended: undefined is a proper end, else the code of the error. */
  ended: Promise<string | undefined>;
};

export async function openLine(url: string, options: Partial<net.NetConnectOpts> = {}): Promise<Line> {
  const { hostname, port } = new URL(url);
  const socket = net.connect({ host: hostname, port: Number(port), ...options } as net.NetConnectOpts);
  const chunks: Buffer[] = [];
  const waiting = new Set<() => void>();
  let error: string | undefined;
  let isOver = false;
  const lookAll = () => {
    for (const look of [...waiting]) look();
  };
  socket.on('data', (chunk) => {
    chunks.push(chunk);
    lookAll();
  });
  socket.on('error', (it: NodeJS.ErrnoException) => {
    error = it.code;
  });
  const ended = new Promise<string | undefined>((resolve) =>
    socket.once('close', () => {
      isOver = true;
      resolve(error);
      lookAll();
    }),
  );
  await new Promise<void>((resolve, reject) => socket.once('connect', resolve).once('error', reject));
  const text = () => Buffer.concat(chunks).toString();
  return {
    socket,
    write: (it) => void socket.write(it),
    text,
    statuses: () => [...text().matchAll(/HTTP\/1\.1 (\d{3}) /g)].map(([, status]) => Number(status)),
    until(enough) {
      const { promise, resolve, reject } = Promise.withResolvers<string>();
      const look = () => {
        if (enough(text())) resolve(text());
        else if (isOver) reject(new Error(`the connection ended (${error ?? 'properly'}) after: ${text()}`));
        else return;
        waiting.delete(look);
      };
      waiting.add(look);
      look();
      return promise;
    },
    ended,
  };
}

/** A request as it goes over the wire. */
export function requestText(method: string, path: string, headers: Record<string, string>, body = ''): string {
  const all = { host: 'purser', ...(body ? { 'content-length': String(Buffer.byteLength(body)) } : {}), ...headers };
  const lines = Object.entries(all).map(([name, value]) => `${name}: ${value}\r\n`);
  return `${method} ${path} HTTP/1.1\r\n${lines.join('')}\r\n${body}`;
}
