import { connect } from 'node:net';

const REACH_MILLISECONDS = 1000;

/** Returns undefined if something accepts connections at the host and port of a URL, else the error's code. */
export function whyUnreachable(url: string): Promise<string | undefined> {
  const { hostname, port, protocol } = new URL(url);
  const host = hostname.replace(/^\[|\]$/g, '');
  return new Promise((resolve) => {
    const socket = connect({ host, port: Number(port || (protocol === 'https:' ? 443 : 80)) });
    const end = (reason?: string) => {
      socket.destroy();
      resolve(reason);
    };
    socket.setTimeout(REACH_MILLISECONDS, () => end('ETIMEDOUT'));
    socket.once('connect', () => end());
    socket.once('error', (error: NodeJS.ErrnoException) => end(error.code ?? error.message));
  });
}
