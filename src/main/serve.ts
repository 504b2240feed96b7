import '../net/web-classes.ts';

import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { Server as Listener, Socket } from 'node:net';
import { getRequestListener, type HttpBindings, RequestError } from '@hono/node-server';
import { RESPONSE_ALREADY_SENT } from '@hono/node-server/utils/response';
import { hasForbiddenSessions } from '../access/browser-sessions.ts';
import { endForbiddenSessions } from '../access/writes.ts';
import { contained, containProcess, followFaults } from '../base/fault.ts';
import { setHeapFlags } from '../base/heap-flags.ts';
import { collectWhenIdle } from '../base/idle-memory.ts';
import { REFUSALS, Refusal } from '../base/refusal.ts';
import { certificateOf } from '../config/certificate.ts';
import { type Config, printedText } from '../config/config.ts';
import { createDoctor } from '../doctor/run.ts';
import { files } from '../files/data-directory.ts';
import { limitConnections } from '../http/connection-limit.ts';
import { followConnections } from '../http/connections.ts';
import { unparsableRequest } from '../http/endpoint.ts';
import { ContainedRequest, ContainedResponse, endFaulty } from '../http/exchange.ts';
import { continueWhenRead, expectsTooMuch, faultOfHead, isOwnHost } from '../http/head.ts';
import { lingerAfter } from '../http/lingering.ts';
import { createPortPages, mayUpgrade } from '../http/routes/ports.ts';
import { createHttpApp } from '../http/routes.ts';
import { isSecure, openTlsDoor } from '../http/tls-door.ts';
import { answerUnreadable } from '../http/unreadable.ts';
import { refuseStranded } from '../lease/stranded.ts';
import { nextDueResource } from '../ledger/resource.ts';
import type { Certificate } from '../net/certificate.ts';
import { contain, containCall, containConnection } from '../net/contain.ts';
import { deadline } from '../net/deadline.ts';
import { type Address, listen, reachableHost, reachableUrl, urlOf } from '../net/listen.ts';
import { listenSocket } from '../operator/socket.ts';
import { createBackups, runBackup } from '../recovery/scheduled.ts';
import type { SshServer } from '../ssh/server.ts';
import { createUi } from '../ui/routes.ts';
import { type App, type AppOptions, openApp } from './app.ts';
import { watchCertificate } from './certificate-watch.ts';
import { createReload } from './reload.ts';

/** Time limits for the headers and the whole of a request: a slow client does not keep a connection for ever. */
const HEADERS_MILLISECONDS = 20_000;
const REQUEST_MILLISECONDS = 120_000;
/** Time limit for the handshake of TLS, from the opening of a connection. */
const HANDSHAKE_MILLISECONDS = 10_000;
/** The cap on the names and values of the headers and the address. The message of `head_too_large` states it. */
const HEAD_BYTES_MAX = 16 * 1024;
/** Milliseconds for the answers to those who wait when the disk has failed. */
const END_MILLISECONDS = 3000;
/** Longer than proxies keep theirs (nginx: 60 s), so that none sends a request on a connection that is being closed. */
const KEEP_ALIVE_MILLISECONDS = 75_000;
/** Silence after which TCP asks whether a client is still there (SO_KEEPALIVE). */
const GONE_MILLISECONDS = 30_000;
/** Interval of the check for clients that exceed these limits. */
const CHECK_MILLISECONDS = 5000;
/** Cap on connections to the metrics listener. */
const METRICS_CONNECTION_COUNT_MAX = 64;
/** A half-sent request holds one of these few connections for this long. */
const METRICS_HEADERS_MILLISECONDS = 5000;
/** Statuses that no refusal of a route has: RFC 9110, sections 15.5.18 and 15.5.20. */
const EXPECTATION_FAILED = 417;
const MISDIRECTED = 421;

const CONTAINED = { IncomingMessage: ContainedRequest, ServerResponse: ContainedResponse };

export type Served = App & {
  /** The address it listens on: with port 0, the port that the system chose. */
  address: Address;
};

/**
 * Opens the App and everything that listens: the API, the SSH server, the operator's socket, the metrics. Disposing it closes the
 * listeners first: no new connections, accepted requests are answered (at most `drain_seconds`), then the App closes. Throws, with
 * nothing left open, where live resources need settings that the configuration no longer has, or the certificate cannot be served.
 */
export async function serve(config: Config, options: AppOptions): Promise<Served> {
  const certificate = certificateOf(config);
  await using opening = new AsyncDisposableStack();
  const app = opening.use(await openApp(config, options));
  opening.use(followFaults(app.events.faulted));
  if (options.ownsProcess) opening.use(containProcess());
  opening.use(collectWhenIdle(() => app.log.debug({ event: 'memory.collected' }, 'idle: memory is given back')));
  // Not in openApp: the commands that help in this case open the books themselves.
  if (!app.health.fault) {
    refuseStranded(app.ledger.read, app.slots);
    await endForbidden(app);
  }

  const { listener, close } = openServer(app, certificate);
  const failed = (error: Error) => app.events.failed('accept', error);
  app.certificateWatch?.start();
  opening.defer(() => app.certificateWatch?.stop());
  const address = await listen(listener, config.listen, failed, 'PURSER_LISTEN or `listen`');
  app.health.serving = true;
  let ending: Promise<void> | undefined;
  const endOnce = () => (ending ??= endAll());
  // Not the operator's socket: the removal of its file waits for a frozen disk.
  app.storage.beforeEnd(() => deadline(endOnce(), END_MILLISECONDS, () => {}));
  let socket: Awaited<ReturnType<typeof listenSocket>> | undefined;
  let gateway: SshServer | undefined;
  let metrics: Server | undefined;
  async function endAll(): Promise<void> {
    await Promise.all([close(), gateway?.close()]);
    // Closed last: requests in flight may take minutes, in which the operator wants to see them.
    metrics?.closeAllConnections();
    metrics?.close();
  }
  opening.defer(async () => {
    await endOnce();
    await socket?.close();
  });
  if (config.public_url === undefined) app.state.baseUrl = reachableUrl(address, config.tls);

  if (app.slots.list.length) gateway = await openGateway(app);
  const examining = new AbortController();
  app.runDoctor = createDoctor(config, examining.signal);
  opening.defer(() => examining.abort()); // Before the stop waits for requests.
  if (options.reread) app.reload = createReload(app, options.reread);
  socket = await listenSocket(app, files(config.dataDirectory).socket);
  if (config.metrics) {
    metrics = openMetrics(app, config.metrics.listen);
    metrics.maxConnections = METRICS_CONNECTION_COUNT_MAX;
    await listen(metrics, config.metrics.listen, failed, '`metrics.listen`');
  }
  if (!app.health.fault) {
    app.diskReserve.start();
    app.upstreamOutages.recall(app.upstreams.keys());
    app.clockWatch.start();
    opening.adopt(app.clockWatch, (it) => it.stop());
    app.storage.start(() => app.inFlight.count() > 0 || nextDueResource(app.ledger.read) !== undefined);
    app.replicas.start();
    app.egress.start();
    app.reaper.start();
    app.notifier.start();
    app.chain.start();
    app.booksWatch.start();
    const backups = opening.adopt(createBackups(app, runBackup(config.dataDirectory)), (it) => it.stop());
    backups.start();
    app.backUpNow = backups.makeNow;
  }
  options.log.info(
    {
      event: 'serving',
      listen: urlOf(address, config.tls),
      public_url: app.state.baseUrl,
      data: config.dataDirectory,
      ready: !app.health.fault && !app.clock.doubt(),
    },
    'serving',
  );
  if (options.ownsProcess) setHeapFlags();
  const opened = opening.move();
  return Object.assign(app, { address, [Symbol.asyncDispose]: () => opened.disposeAsync() });
}

/** Ends the sessions of the page that the settings no longer allow. A disk that cannot be written does not prevent the start. */
async function endForbidden({ config, codeFlow, ledger, events }: App): Promise<void> {
  const allowed = { page: config.ui, signIn: codeFlow !== undefined, rule: codeFlow?.rule };
  if (!hasForbiddenSessions(ledger.read, allowed)) return;
  await ledger.write(endForbiddenSessions, allowed).catch((error) => events.failed('browser_session', error));
}

/** Opens the SSH server, which is loaded only where something can be rented. */
async function openGateway(app: App): Promise<SshServer> {
  const [{ openSshServer }, { hostKey }] = await Promise.all([
    import('../ssh/server.ts'),
    import('../access/ssh-keys.ts'),
  ]);
  const { config } = app;
  const key = hostKey(files(config.dataDirectory).sshHostKey);
  const gateway = await openSshServer(app, config.ssh.listen, key.privateKey);
  const [type, blob] = key.publicKey.split(' ');
  const { public_host: publicHost, public_port: publicPort } = config.ssh;
  app.state.ssh = {
    host: publicHost ?? reachableHost(gateway.address.host),
    port: publicPort ?? gateway.address.port,
    hostKey: `${type} ${blob}`,
  };
  return gateway;
}

/** Creates the function that answers a request: the API, the page, and the ports of leases. */
function createAnswerer(app: App) {
  const pages = app.config.ui ? createUi(app, () => printedText(app.config)) : undefined;
  const hono = createHttpApp(app, pages?.fetch);
  const ports = createPortPages(app);
  const route: typeof hono.fetch = (request, env) => {
    const { incoming, outgoing } = env as HttpBindings;
    const { fetch: answerOf } = ports.isFor(incoming) ? ports : hono;
    const answered = answerOf(request, env);
    if (incoming.method !== 'HEAD') return answered;
    // Hono copies the answer to a HEAD request, and the copy does not show that it was already sent.
    return Promise.resolve(answered).then((it) => (outgoing.headersSent ? RESPONSE_ALREADY_SENT : it));
  };
  return getRequestListener(route, {
    autoCleanupIncoming: false, // `lingerAfter` does it.
    hostname: 'localhost', // For a request of HTTP/1.0 without a Host, such as a load balancer's health check.
    errorHandler(error) {
      const refusal = new Refusal('invalid_request', 'The address of the request, or its Host header, cannot be read.');
      const { body, ...init } = unparsableRequest(app, error instanceof RequestError ? refusal : error);
      return new Response(body, init);
    },
  });
}

/**
 * Creates the HTTP server of the API, not yet listening, with TLS if it has a certificate. A request that Node's parser refuses
 * gets an answer in the shape of every other refusal.
 */
function openServer(app: App, certificate: Certificate | undefined): { listener: Listener; close(): Promise<void> } {
  const answer = createAnswerer(app);
  const { connectionCountMax, stallMilliseconds, authenticated, events } = app;
  const limit = limitConnections(connectionCountMax, stallMilliseconds, authenticated, handle, events);
  function handle(request: IncomingMessage, response: ServerResponse) {
    const broken = (error: unknown) => (response as ContainedResponse).fail(error);
    containCall(() => void answerOrRefuse(request, response)?.catch(broken), broken);
  }
  function answerOrRefuse(request: IncomingMessage, response: ServerResponse): Promise<unknown> | undefined {
    lingerAfter(request, response);
    const isPlain = certificate !== undefined && !isSecure(request.socket);
    const faultOfForm = isPlain ? plainRefusal(app) : faultOfHead(request);
    const isTooMuch = !faultOfForm && expectsTooMuch(request);
    const fault = isTooMuch ? new Refusal('invalid_request', 'Expect: only 100-continue is known.') : faultOfForm;
    if (!fault) return answer(request, response);
    const { status, headers, body } = unparsableRequest(app, fault, request);
    response.writeHead(isTooMuch ? EXPECTATION_FAILED : status, headers).end(body);
    return undefined;
  }
  const server: Server = createServer({
    ...(CONTAINED as object), // Listeners need not know of it.
    headersTimeout: HEADERS_MILLISECONDS,
    requestTimeout: REQUEST_MILLISECONDS,
    maxHeaderSize: HEAD_BYTES_MAX,
    keepAliveTimeout: KEEP_ALIVE_MILLISECONDS,
    connectionsCheckingInterval: CHECK_MILLISECONDS,
    keepAlive: true, // Detects a client that has vanished, even on a connection that is not written to.
    keepAliveInitialDelay: GONE_MILLISECONDS,
    requireHostHeader: false, // Node's own answer has no body and no id.
    // Elsewhere it is an ordinary request, as where it has to wait: its connection still writes another answer.
    shouldUpgradeCallback: (request) => !unanswered(request.socket) && mayUpgrade(app, request),
  });
  contain(server, endFaulty);
  server.on('connection', (socket) => containConnection(socket, 'connection'));
  const patience = { handshakeMilliseconds: HANDSHAKE_MILLISECONDS, keepAliveInitialDelay: GONE_MILLISECONDS };
  const door = certificate && openTlsDoor(server, certificate, patience, events);
  if (door && app.config.tls)
    app.certificateWatch = watchCertificate(app.config.tls, certificate, door.use, () => app.clock.now(), events);
  const listener = door?.listener ?? server;
  server.maxHeadersCount = 0; // Beyond a maximum Node drops headers silently; `faultOfHead` refuses them instead.
  const connections = followConnections(server, listener);
  const unanswered = (socket: Socket) => {
    const it = connections.latest(socket);
    return it && !it.closed ? it : undefined;
  };
  const isUnreadable = answerUnreadable(app, server, connections);
  limit.watch(server, listener);
  events.gauge('connections', 'Connections of clients.', limit.count);
  const admit = (request: IncomingMessage, response: ServerResponse) => {
    if (!isUnreadable(request.socket) && connections.take(request, response)) limit.handle(request, response);
  };
  for (const event of ['request', 'checkExpectation']) server.on(event, admit);
  server.on('checkContinue', (request, response) => {
    continueWhenRead(request, response);
    admit(request, response);
  });
  const handleDetached = (request: ContainedRequest, socket: Socket, head: Buffer) => {
    socket.on('error', () => {}); // Users of the socket see its close.
    limit.follow(socket);
    // Only a CONNECT, which nothing here takes: the answer before it ends the connection.
    const earlier = unanswered(socket);
    if (earlier) return void earlier.once('close', () => socket.destroySoon());
    if (head.length) socket.unshift(head);
    const response = new ContainedResponse(request);
    response.shouldKeepAlive = false;
    response.assignSocket(socket);
    response.once('finish', () => socket.destroySoon());
    admit(request, response);
  };
  for (const event of ['upgrade', 'connect']) server.on(event, handleDetached);
  return {
    listener,
    close() {
      app.health.stopping = true;
      app.ports.close();
      app.log.info({ event: 'stopping', running: app.inFlight.count() }, 'stopping');
      return connections.stop(app.drain);
    },
  };
}

/** The refusal of every request in the clear where TLS is spoken. */
const plainRefusal = ({ state }: App) =>
  new Refusal('invalid_request', `This port speaks https, not http. Purser's address is ${state.baseUrl}`);

function openMetrics(app: App, { host }: Address): Server {
  const patience = { headersTimeout: METRICS_HEADERS_MILLISECONDS, connectionsCheckingInterval: CHECK_MILLISECONDS };
  const answer = async (request: IncomingMessage, response: ServerResponse) => {
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
  };
  return createServer(
    patience,
    contained('request', answer, ({ socket }) => socket.destroy()),
  );
}
