import { rmSync } from 'node:fs';
import { chmod } from 'node:fs/promises';
import http from 'node:http';
import { contained } from '../base/fault.ts';
import { parseJson } from '../base/parse-json.ts';
import { Refusal } from '../base/refusal.ts';
import { outliveFaults } from '../net/listen.ts';
import { readBounded } from '../net/read-bounded.ts';
import { reachable, type SocketAnswer } from './ask.ts';
import type { OperatorApp } from './command.ts';
import { runCommand } from './commands.ts';

/** The longest request body. Commands are far smaller. */
const BODY_BYTES_MAX = 64 * 1024;
/** Grace period for running commands when the server stops. */
const CLOSE_MILLISECONDS = 2000;

/** Listens for the CLI on a unix socket of mode 0600, so that only the owner of the data directory can send commands. */
export async function listenSocket(app: OperatorApp, path: string): Promise<{ close(): Promise<void> }> {
  rmSync(path, { force: true }); // We hold the lock, so an existing socket was left by a process that is gone.
  const answer = async (request: http.IncomingMessage, response: http.ServerResponse) => {
    const answer = JSON.stringify(await handle(app, request));
    response.writeHead(200, { 'content-type': 'application/json', connection: 'close' }).end(answer);
  };
  const server = http.createServer(contained('operator', answer, ({ socket }) => socket.destroy()));
  const at = reachable(path);
  const mask = process.umask(0o177); // The socket is created private: chmod alone would leave it open for a moment.
  try {
    await new Promise<void>((resolve, reject) => {
      server.once('error', reject);
      server.listen(at.path, resolve);
    });
  } finally {
    process.umask(mask);
  }
  outliveFaults(server, (error) => app.events.failed('operator', error));
  await chmod(path, 0o600);
  return {
    async close() {
      const closed = new Promise((resolve) => server.close(resolve));
      server.closeIdleConnections();
      // Connections without a request do not delay the end.
      const timer = setTimeout(() => server.closeAllConnections(), CLOSE_MILLISECONDS);
      await closed;
      clearTimeout(timer);
      at.free();
      try {
        rmSync(path, { force: true });
      } catch {} // On a read-only disk it stays; the next start removes it.
    },
  };
}

async function handle(app: OperatorApp, request: http.IncomingMessage): Promise<SocketAnswer> {
  try {
    const body = await readBounded(request, BODY_BYTES_MAX);
    if (!body) throw new Refusal('payload_too_large');
    const { name, input } = parseJson(body.toString()) as { name: string; input: unknown };
    return { value: await runCommand(app, name, input) };
  } catch (error) {
    if (error instanceof Refusal) return { refusal: { code: error.code, message: error.message } };
    app.events.faulted('operator', error);
    return {
      refusal: { code: 'internal_error', message: 'An internal error occurred. The server log has the details.' },
    };
  }
}
