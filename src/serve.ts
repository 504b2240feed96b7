import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import { getRequestListener, RequestError } from '@hono/node-server';
import { type App, type AppOptions, openApp } from './app.ts';
import type { Config, Secrets } from './config/config.ts';
import { files } from './files/data-directory.ts';
import { limitConnections } from './http/connection-limit.ts';
import { followConnections } from './http/connections.ts';
import { unparsableRequest } from './http/endpoint.ts';
import { expectsTooMuch, faultOfHead, isOwnHost } from './http/head.ts';
import { lingerAfter } from './http/lingering.ts';
import { createHttpApp } from './http/routes.ts';
import { refuseStranded } from './lease/stranded.ts';
import { type Address, listen, urlOf } from './net/listen.ts';
import { listenSocket } from './operator/socket.ts';
import { REFUSALS, Refusal } from './refusal.ts';
import type { SshServer } from './ssh/server.ts';

/** Headers and body of a request have to arrive within these; a slow client does not keep a connection for ever. */
const HEADERS_MILLISECONDS = 20_000;
const REQUEST_MILLISECONDS = 120_000;
/** Longer than proxies keep theirs (nginx: 60 s), so that none asks on a connection that is just being closed. */
const KEEP_ALIVE_MILLISECONDS = 75_000;
/** How often it is looked whether somebody is too slow. */
const LOOK_MILLISECONDS = 5000;
/** Whoever asks for figures needs no more connections than this. */
const METRICS_CONNECTION_COUNT_MAX = 64;
/** Statuses that no refusal of a route has: RFC 9110, sections 15.5.18 and 15.5.20. */
const EXPECTATION_FAILED = 417;
const MISDIRECTED = 421;

export type Served = App & {
  /** Where the door really listens. */
  address: Address;
};

/**
 * Opens the App and everything that listens: the door, the socket of the operator, the metrics. Disposing it closes the
 * listeners first: no new connections, what was accepted is answered (at most `drain_seconds`), then the App closes.
 * Throws, with nothing left open, where live resources need what the configuration no longer has.
 */
export async function serve(config: Config, secrets: Secrets, options: AppOptions): Promise<Served> {
  await using opening = new AsyncDisposableStack();
  const app = opening.use(await openApp(config, secrets, options));
  // Not in openApp: the commands that help here open the house themselves.
  if (!app.health.fault) refuseStranded(app.ledger.read, app.slots);

  const { door, close } = openDoor(app);
  const failed = (error: Error) => app.events.failed('accept', error);
  const address = await listen(door, config.listen, failed, 'PURSER_LISTEN or `listen`');
  // Together: a command that waits for what is in flight is not waited for before that is cut off.
  let socket: Awaited<ReturnType<typeof listenSocket>> | undefined;
  let gateway: SshServer | undefined;
  opening.defer(async () => void (await Promise.all([close(), socket?.close(), gateway?.close()])));
  if (config.publicUrl === undefined) app.state.baseUrl = urlOf(address);

  if (app.slots.list.length) {
    const [{ openSshServer: openGateway }, { hostKey }] = await Promise.all([
      import('./ssh/server.ts'),
      import('./access/ssh-keys.ts'),
    ]);
    const key = hostKey(files(config.dataDirectory).sshHostKey);
    gateway = await openGateway(app, config.ssh.listen, key.privateKey);
    const [type, blob] = key.publicKey.split(' ');
    const { publicHost, publicPort } = config.ssh;
    app.state.ssh = {
      host: publicHost ?? gateway.address.host,
      port: publicPort ?? gateway.address.port,
      hostKey: `${type} ${blob}`,
    };
  }
  socket = await listenSocket(app, files(config.dataDirectory).socket);
  if (config.metrics) {
    const metrics = openMetrics(app, config.metrics.listen);
    metrics.maxConnections = METRICS_CONNECTION_COUNT_MAX;
    await listen(metrics, config.metrics.listen, failed, '`metrics.listen`');
    opening.defer(async () => {
      metrics.closeAllConnections();
      metrics.close();
    });
  }
  if (!app.health.fault) {
    app.diskReserve.start();
    app.reaper.start();
    app.chain.start();
    app.booksWatch.start();
  }
  options.log.info(
    {
      event: 'serving',
      listen: urlOf(address),
      public_url: app.state.baseUrl,
      data: config.dataDirectory,
      ready: !app.health.fault,
    },
    'serving',
  );
  const opened = opening.move();
  return Object.assign(app, { address, [Symbol.asyncDispose]: () => opened.disposeAsync() });
}

/** The door behind Node's HTTP server. What that server cannot read is answered in the shape of every other refusal. */
function openDoor(app: App): { door: Server; close(): Promise<void> } {
  const answer = getRequestListener(createHttpApp(app).fetch, {
    autoCleanupIncoming: false, // `lingerAfter` does it.
    errorHandler(error) {
      const { body, ...init } = unparsableRequest(app, error instanceof RequestError ? undefined : error);
      return new Response(body, init);
    },
  });
  const { connectionCountMax, stallMilliseconds, authenticated, events } = app;
  const crowd = limitConnections(connectionCountMax, stallMilliseconds, authenticated, answerOrRefuse, events);
  function answerOrRefuse(request: IncomingMessage, response: ServerResponse) {
    lingerAfter(request, response);
    const isTooMuch = expectsTooMuch(request);
    const fault = isTooMuch
      ? new Refusal('invalid_request', 'Expect: only 100-continue is known.')
      : faultOfHead(request);
    if (!fault) return answer(request, response);
    const { status, headers, body } = unparsableRequest(app, fault);
    response.writeHead(isTooMuch ? EXPECTATION_FAILED : status, headers).end(body);
  }
  const door = createServer({
    headersTimeout: HEADERS_MILLISECONDS,
    requestTimeout: REQUEST_MILLISECONDS,
    keepAliveTimeout: KEEP_ALIVE_MILLISECONDS,
    connectionsCheckingInterval: LOOK_MILLISECONDS,
    requireHostHeader: false, // Its own answer has no body and no id.
  });
  const connections = followConnections(door);
  crowd.watch(door);
  events.gauge('connections', 'Connections of clients.', crowd.count);
  for (const event of ['request', 'checkExpectation'])
    door.on(event, (request, response) => {
      if (connections.take(request, response)) crowd.handle(request, response);
    });
  door.on('clientError', (error: NodeJS.ErrnoException, socket) => {
    // An answer that is still to come on this connection must not be taken for this refusal.
    const isAnswering = (socket as { _httpMessage?: unknown })._httpMessage != null;
    if (!socket.writable || isAnswering || error.code === 'ECONNRESET') return socket.destroy();
    const { status, headers, body } = unparsableRequest(app);
    const lines = Object.entries(headers).map(([name, value]) => `${name}: ${value}\r\n`);
    socket.end(`HTTP/1.1 ${status} Bad Request\r\n${lines.join('')}\r\n${body}`, () => socket.destroy());
  });
  return {
    door,
    close() {
      app.health.stopping = true;
      app.log.info({ event: 'stopping', running: app.inFlight.count() }, 'stopping');
      return connections.stop(app.drain);
    },
  };
}

function openMetrics(app: App, { host }: Address): Server {
  return createServer(async (request, response) => {
    if (!isOwnHost(request.headers.host, host))
      return response
        .writeHead(MISDIRECTED)
        .end('Ask for the metrics by an IP address, localhost, or the host name of this machine.\n');
    if (request.url !== '/metrics') return response.writeHead(404).end();
    try {
      const text = await app.events.registry.metrics();
      response.writeHead(200, { 'content-type': app.events.registry.contentType }).end(text);
    } catch (error) {
      app.events.failed('metrics', error);
      response.writeHead(REFUSALS.internal_error.status).end();
    }
  });
}
