import { once } from 'node:events';
import {
  createServer,
  type IncomingMessage,
  type RequestOptions,
  request,
  type Server,
  type ServerResponse,
} from 'node:http';
import https from 'node:https';
import type { AddressInfo, Socket } from 'node:net';
import type { TestContext } from 'node:test';
import { hostSession, WATCHDOG } from '../compute/engines/host-session.ts';
import type { TestServerOptions } from '../helper/server.ts';
import { echoWebSocket } from '../helper/web-socket.ts';
import { LONG, openMemoryServer } from '../lease/leases.ts';

export const MIB = 1024 * 1024;

/** A server of a tenant, on loopback. `heard` has every request that it got. */
async function openTenant(t: TestContext, answer: (request: IncomingMessage, response: ServerResponse) => void) {
  const heard: { method: string; url: string; headers: Record<string, unknown>; raw: string }[] = [];
  const server: Server = createServer((request, response) => {
    const { method = '', url = '', headers, rawHeaders } = request;
    heard.push({ method, url, headers, raw: rawHeaders.join('\n') });
    answer(request, response);
  });
  server.on('upgrade', (request, socket: Socket, head) => {
    heard.push({
      method: request.method as string,
      url: request.url as string,
      headers: request.headers,
      raw: request.rawHeaders.join('\n'),
    });
    if (request.url === '/no') return socket.end('HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno');
    echoWebSocket(request, socket, head);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  return { port: (server.address() as AddressInfo).port, heard, server };
}

/** A lease whose sessions are processes of this machine, and a server inside. */
export async function openPort(
  t: TestContext,
  answer: (request: IncomingMessage, response: ServerResponse) => void = (_, response) => response.end('hello'),
  options: TestServerOptions = {},
) {
  const purser = await openMemoryServer(t, options);
  const session = hostSession();
  Object.assign(purser.backend.guest, { session, relay: WATCHDOG });
  const wallet = await purser.openWallet(LONG);
  const { id } = (await purser.lease(wallet.token)).body;
  const tenant = await openTenant(t, answer);
  const base = `/v1/compute/${id}/port/${tenant.port}`;
  return { purser, session, wallet, token: wallet.token, id: id as string, tenant, port: tenant.port, base };
}

/** Begins a request, and returns its answer as a stream. */
export async function begin(url: string, token: string, headers: Record<string, string> = {}, method = 'GET') {
  const ask = url.startsWith('https:') ? https.request : request;
  const asked = ask(url, {
    ...{ method, headers: { authorization: `Bearer ${token}`, ...headers }, agent: false },
    ...{ rejectUnauthorized: false },
  } as RequestOptions);
  const answered = once(asked, 'response').then(([it]) => it as IncomingMessage);
  answered.catch(() => {});
  return { asked, answered };
}
