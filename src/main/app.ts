import type { Socket } from 'node:net';
import type { CodeFlow } from '../access/code-flow.ts';
import type { Sessions, SessionsApp } from '../access/sessions.ts';
import { createTokens } from '../access/tokens.ts';
import { systemTime, type TimeSource } from '../base/clock.ts';
import { createKeyedMutex } from '../base/keyed-mutex.ts';
import { createLimit } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import { createShares } from '../base/shares.ts';
import { createPaymentPoller } from '../billing/payment-poller.ts';
import type { Provider } from '../billing/provider.ts';
import { type Books, type BooksOptions, openBooksForService } from '../books/service.ts';
import { createKeptAnswers } from '../chat/kept-answers.ts';
import { recallBounds } from '../chat/learn.ts';
import { createRetries } from '../chat/retry.ts';
import { createActivity } from '../compute/activity.ts';
import { type CheckFinding, resourceIdOf, tagPrefix } from '../compute/backend.ts';
import { freeFor } from '../compute/fill.ts';
import { openSlots } from '../compute/open.ts';
import type { LocalCompute } from '../compute/settings.ts';
import type { Reload } from '../config/change.ts';
import type { Config } from '../config/config.ts';
import { type Outside, systemOutside } from '../egress/outside.ts';
import { files } from '../files/data-directory.ts';
import { fullDisk } from '../files/full-disk.ts';
import { createConcurrency, PORT_COUNT_MAX } from '../http/concurrency.ts';
import type { HttpApp } from '../http/endpoint.ts';
import { createMemoryQuota } from '../http/memory-quota.ts';
import { createModelRequests } from '../http/model-requests.ts';
import { createPortLinks } from '../http/port-links.ts';
import { createPortProxy } from '../http/port-proxy.ts';
import { createReadingThread, readerOfAnswers } from '../http/reading-thread.ts';
import { createLeaseEgress } from '../lease/egress.ts';
import { createKeepMemory } from '../lease/keep.ts';
import { createOutages } from '../lease/outages.ts';
import { createPorts, type Ports } from '../lease/ports.ts';
import { describeReportOnly } from '../lease/report-only.ts';
import { createRoomQueue, type RoomQueue } from '../lease/room-queue.ts';
import { createWarmPool } from '../lease/warm.ts';
import { describeFrozen } from '../ledger/frozen.ts';
import { installationOf } from '../ledger/installation.ts';
import { type Outbox, outboxSettings } from '../ledger/outbox.ts';
import { findResource } from '../ledger/resource.ts';
import { createTenantOf } from '../ledger/tenant.ts';
import { createAddressReader } from '../net/address.ts';
import { deadline } from '../net/deadline.ts';
import { openFilesMax, reachableUrl } from '../net/listen.ts';
import { createNotifier, type Notifier } from '../notify/notifier.ts';
import { type BooksWatch, watchBooks } from '../reaper/books-watch.ts';
import { watchChain } from '../reaper/chain-watch.ts';
import { createReaper, type Reaper, type ReaperApp } from '../reaper/reaper.ts';
import { createAnswerRooms } from '../router/answer-room.ts';
import { createBalancer } from '../router/balancer.ts';
import { createCatalogue } from '../router/catalogue.ts';
import { createCircuits } from '../router/circuit.ts';
import type { Upstream } from '../router/upstream.ts';
import { createUpstreamOutages } from '../router/upstream-outages.ts';
import { createFundsQueue, type FundsQueue } from '../spend/funds-queue.ts';
import { createInFlight } from '../spend/in-flight.ts';
import { recover } from '../spend/recover.ts';
import { uncertain } from '../spend/spend.ts';
import { createEvents, type Events } from '../telemetry/events.ts';
import { createExporter } from '../telemetry/spans/exporter.ts';
import { createOperationSpans } from '../telemetry/spans/operation-spans.ts';
import type { Signer } from '../transfer/object-url.ts';
import type { CertificateWatch } from './certificate-watch.ts';
import { addGauges } from './gauges.ts';

/**
 * Caps on client connections and on paid requests in flight: two thirds and one third of the descriptors that the process can
 * spare. A paid request may hold a connection to a model server after its client has gone.
 */
const CONNECTION_COUNT_MAX = 16_384;
const IN_FLIGHT_COUNT_MAX = 16_384;
const OWN_FILE_COUNT = 64;
/** The share of the connections whose requests may belong to one caller, and the share that is handed out freely. */
const CALLER_SHARE = 1 / 4;
const FREE_SHARE = 1 / 2;
/** Caps on concurrent sums over past spending, for a caller and for all. */
const SUM_COUNT_MAX = { each: 4, all: 16 };
/** A client that reads nothing of its answer for this long is treated as disconnected. */
const STALL_MILLISECONDS = 60_000;

/** Everything that is open. Each part of the program takes only the members that it uses. */
export type App = HttpApp &
  ReaperApp &
  Books & {
    config: Config;
    time: TimeSource;
    log: Log;
    events: Events;
    /** Connections to ports of leases. */
    ports: Ports;
    reaper: Reaper;
    chain: ReturnType<typeof watchChain>;
    booksWatch: BooksWatch;
    /** Sign-in on the page, where an identity provider and a client of it are configured. */
    codeFlow: CodeFlow | undefined;
    upstreams: ReadonlyMap<string, Upstream>;
    notifier: Notifier;
    /** The receivers of events, as the ledger knows them: a reload changes it. */
    outbox: Outbox;
    /** Every open pool, including those that only requests in flight still use after a reload. */
    openedUpstreams: Set<Upstream>;
    /** Set only in a server (src/main/reload.ts). */
    reload?: Reload;
    /** Makes a backup at once and returns its file. Set only in a server whose books can be written. */
    backUpNow?: () => Promise<string>;
    /** Examines the installation as `purser doctor` does. Set only in a server. */
    runDoctor?: () => Promise<CheckFinding[]>;
    /** Set only in a server that speaks TLS. */
    certificateWatch?: CertificateWatch;
    /** Cap on open connections of clients. */
    connectionCountMax: number;
    state: AppState;
    /**
     * Waits at most `drain_seconds` until `answered` has resolved and nothing runs any more. After that nothing new is driven:
     * requests that still run are answered as uncertain, and those that are still being read are refused.
     */
    drain(answered: Promise<void>): Promise<void>;
    [Symbol.asyncDispose](): Promise<void>;
  };
/** The values that change while the App is open. */
type AppState = HttpApp['state'] & ReaperApp['state'];

export type AppOptions = BooksOptions & {
  /** Reads the settings again, for a reload. Throws ConfigurationFault. Without it there is no reload. */
  reread?: () => Config;
  /** The demo's own backend, in place of the configured ones. Only the demo sets it. */
  local?: LocalCompute;
  /** The world outside as the proxy of leases uses it; the machine's own unless given. */
  outside?: Outside;
  /** Milliseconds after which a client that reads nothing of its response is disconnected; a minute unless given. */
  stallMilliseconds?: number;
  /** The process belongs to this server alone: an error that nothing has caught is reported, and does not end it. */
  ownsProcess?: boolean;
  /** Unknown outcomes of a route within a minute that open its circuit; three unless given. */
  unknownCountMax?: number;
};

/** The time limit of `POST /v1/compute/create`, whether the machine is ready or not (design 2.18). */
const ANSWER_SECONDS = 30;
/** Milliseconds for in-flight operations to be written after the cut-off; the next start recovers the rest. */
const LAST_WORDS_MILLISECONDS = 5000;
/** Webhook requests per minute from one address: a payment provider reports a few payments a minute, and repeats refused ones. */
const WEBHOOKS_PER_MINUTE = 600;

/**
 * Opens everything but the listeners, in the order below; it closes in the opposite order. Throws as `openBooksForService`
 * does, and `read_only` where the disk is full.
 */
export async function openApp(config: Config, options: AppOptions): Promise<App> {
  const { log } = options;
  await using opening = new AsyncDisposableStack();
  const events = createEvents(log);
  const caps = capsOf();
  // Nothing runs before the books are open, which know the tenant of a wallet.
  const inFlight = createInFlight(caps.inFlight, (walletId) => tenantOf(walletId).treeId);
  let notifier: Notifier | undefined;
  let fundsQueue: FundsQueue | undefined;
  let roomQueue: RoomQueue | undefined;
  const committed = () => {
    for (const it of [fundsQueue, roomQueue]) it?.changed(ledger.changeCount());
  };
  const outbox: Outbox = { ...outboxSettings(config.events), recorded: () => notifier?.wake() };
  const books = await openBooksForService(
    config,
    { ...options, outbox, committed },
    events,
    inFlight.count,
    opening,
  ).catch((error) => {
    throw fullDisk(error, config.dataDirectory) ?? error;
  });
  const { ledger, clock, health } = books;
  const { time = systemTime } = options;
  const { installationId } = installationOf(ledger.read);
  const tenantOf = createTenantOf(ledger.read);
  const keptAnswers = createKeptAnswers(() => clock.now(), books.diskReserve.freeBytes);
  const waitSeconds = () => app.config.limits.funds_wait_seconds;
  fundsQueue = createFundsQueue(waitSeconds, tenantOf, events.fundsWaited);
  if (config.opentelemetry) {
    const exporter = createExporter(config.opentelemetry, installationId, events);
    opening.adopt(exporter, (it) => it.stop());
    traceOperations(exporter, events, tenantOf, time);
  }

  notifier = opening.adopt(await createNotifier({ ledger, clock, events }, config.events), (it) => it.stop());

  const thread = opening.adopt(createReadingThread(), (it) => it.close());
  const upstreams = await openUpstreams(config);
  const openedUpstreams = new Set(upstreams.values());
  const catalogue = createCatalogue(config);
  recallBounds(ledger.read, catalogue, clock.now());
  const warmTags = new Set<string>();
  const surroundings = { installationId, clock, events, storage: books.storage, ledger, warmTags };
  const slots = await openBackends(config, options, surroundings, opening);
  const payments = opening.adopt(await openPayments(config, installationId), async (it) => it?.close());
  roomQueue = createRoomQueue(async ({ slot, spec, places }) => {
    const some = slots.find(slot).backends.filter(({ backend }) => !places || places.includes(backend.name));
    const free = await Promise.all(some.map(({ backend }) => freeFor(backend, spec)));
    return free.some((it) => it > 0);
  }, tenantOf);
  opening.defer(async () => {
    fundsQueue.stop();
    roomQueue.stop();
    inFlight.cutOff(() => uncertain());
    for (const upstream of openedUpstreams) await upstream.close(); // Calls in flight end with an unknown outcome, which is recorded.
    await deadline(inFlight.drained(), LAST_WORDS_MILLISECONDS, () => {}); // A backend that hangs does not delay the end.
  });

  const upstreamOutages = createUpstreamOutages({ ledger, clock, events });
  // One object, handed to every part: what is opened below is added to it.
  const app: Omit<
    App,
    | 'paymentPoller'
    | 'egress'
    | 'ports'
    | 'warm'
    | 'portProxy'
    | 'reaper'
    | 'chain'
    | 'booksWatch'
    | typeof Symbol.asyncDispose
  > = {
    ...books,
    config,
    log,
    events,
    inFlight,
    fundsQueue,
    roomQueue,
    tenantOf,
    upstreams,
    balancer: createBalancer(clock.now, (upstream, accountId) => upstreamOutages.isDown(upstream, accountId)),
    circuits: createCircuits(() => clock.now(), events.circuit, options.unknownCountMax),
    tokens: createTokens(ledger),
    retries: createRetries({ ledger, clock, inFlight, events, tenantOf, keptAnswers }),
    keptAnswers,
    upstreamOutages,
    notifier,
    outbox,
    openedUpstreams,
    catalogue,
    slots,
    payments,
    installationId,
    signer: await openSigner(config),
    ...(await openSignIn(config, { ledger, clock, events }, time.monotonic)),
    ...createParts(config, caps.connections, time, options),
    readApart: readerOfAnswers(thread),
    modelRequests: createModelRequests(() => app.catalogue, thread),
    portLinks: createPortLinks(
      () => books.keyring.current.key,
      () => clock.now(),
    ),
    wakeAt: (when: number) => reaper.wakeAt(when),
    state: {
      baseUrl: config.public_url ?? reachableUrl(config.listen, config.tls),
      ssh: undefined,
      sweepAt: 0,
    } as AppState,
    async drain(answered: Promise<void>) {
      fundsQueue.stop();
      roomQueue.stop();
      const seconds = books.storage.failure() ? 0 : app.config.drain_seconds;
      await deadline(answered.then(inFlight.drained), seconds * 1000, () => {});
      inFlight.cutOff(() => books.storage.failure() ?? uncertain());
      app.memory.cutOff();
    },
  };
  const paymentPoller = payments
    ? opening.adopt(createPaymentPoller({ ...app, payments }), (it) => it.stop())
    : undefined;
  const { enter } = createConcurrency(PORT_COUNT_MAX, 'connections to ports');
  const warm = opening.adopt(createWarmPool(app, files(config.dataDirectory).warm, warmTags), (it) => it.close());
  const egress = opening.adopt(
    createLeaseEgress(Object.assign(app, { warm }), options.outside ?? systemOutside),
    (it) => it.close(),
  );
  const ports = opening.adopt(createPorts(Object.assign(app, { egress, warm }), enter), (it) => it.close());
  const portProxy = createPortProxy(ports);
  const reaper: Reaper = opening.adopt(
    createReaper(Object.assign(app, { paymentPoller, egress, ports, portProxy, warm })),
    (it) => it.stop(),
  );
  if (!health.fault) {
    const interrupted = await recover(app);
    if (interrupted)
      log.warn(
        { event: 'recovered', operations: interrupted },
        'operations were in flight when the last process ended',
      );
    app.retries.recall();
  }
  reportLimits(books, events, options);
  const chain = opening.adopt(watchChain(ledger.read, health, app.storage, events), (it) => it.stop());
  const booksWatch = opening.adopt(watchBooks(config.dataDirectory, ledger, health, app.storage, events), (it) =>
    it.stop(),
  );
  addGauges({ ...app, warm, notifier });
  const opened = opening.move();
  const close = { [Symbol.asyncDispose]: () => opened.disposeAsync() };
  return Object.assign(app, { paymentPoller, egress, ports, portProxy, warm, reaper, chain, booksWatch, ...close });
}

/** Returns the caps on connections and on paid requests that the descriptors of this process allow. */
function capsOf(): { connections: number; inFlight: number } {
  const free = Math.max(3, openFilesMax() - OWN_FILE_COUNT);
  return {
    connections: Math.min(CONNECTION_COUNT_MAX, Math.floor((free / 3) * 2)),
    inFlight: Math.min(IN_FLIGHT_COUNT_MAX, Math.floor(free / 3)),
  };
}

/** Starts to send a span of every operation and lease. */
function traceOperations(
  exporter: ReturnType<typeof createExporter>,
  events: Events,
  tenantOf: ReturnType<typeof createTenantOf>,
  time: NonNullable<AppOptions['time']>,
): void {
  events.gauge('spans_waiting', 'Spans that wait for the collector.', exporter.waitingCount);
  const accountOf = (walletId: string) => tenantOf(walletId).accountId || undefined;
  const failed = (error: unknown) => events.failed('spans', error);
  events.trace(createOperationSpans(exporter, accountOf, time, failed));
}

/** Creates the parts that need nothing else to be open: what is counted, limited or remembered in this process alone. */
function createParts(config: Config, connectionCountMax: number, time: TimeSource, { stallMilliseconds }: AppOptions) {
  const keysUsed = new Map<string, number>();
  return {
    leaseMutex: createKeyedMutex(),
    outages: createOutages(),
    leaseChecks: new Map(),
    waitingFor: new Map(),
    resumeFractions: new Map(),
    activity: createActivity(),
    usages: new Map(),
    keeps: createKeepMemory(),
    time,
    limits: createLimits(config, time),
    sums: createShares(SUM_COUNT_MAX),
    memory: createMemoryQuota(),
    answerRooms: createAnswerRooms(),
    concurrency: createConcurrency(),
    portHost: config.ports.host,
    authenticated: new WeakSet<Socket>(),
    addressOf: createAddressReader(config.trusted_proxies),
    connectionCountMax,
    atOnce: createShares({ each: connectionCountMax * CALLER_SHARE, all: connectionCountMax * FREE_SHARE }),
    stallMilliseconds: stallMilliseconds ?? STALL_MILLISECONDS,
    answerSeconds: ANSWER_SECONDS,
    keysUsed,
    keysWalked: new Map<string, string>(),
    used: (keyId: string, now: number) => keysUsed.set(keyId, now),
  };
}

/** Reports at the start what keeps leases from being ended and holds from being taken. */
function reportLimits(
  { ledger: { read }, clock }: Pick<Books, 'ledger' | 'clock'>,
  events: Events,
  { create }: AppOptions,
): void {
  const reportOnly = describeReportOnly(read);
  if (reportOnly) events.reportOnly(reportOnly.reason, reportOnly.leases);
  const frozen = create ? describeFrozen(read, clock.now()) : undefined; // Only a server logs it, not each command.
  if (frozen) events.frozen(frozen);
}

export function createLimits({ limits }: Pick<Config, 'limits'>, time: TimeSource): HttpApp['limits'] {
  const milliseconds = () => time.monotonic();
  return {
    wallet: createLimit(limits.wallet_requests_per_minute, milliseconds),
    account: createLimit(limits.account_requests_per_minute, milliseconds),
    failedAuth: createLimit(limits.failed_auth_per_minute, milliseconds),
    released: createLimit(
      limits.released_per_minute,
      milliseconds,
      'requests that a model server or a backend refused',
    ),
    unspent: createLimit(limits.released_per_minute, milliseconds, 'child wallets that were closed with nothing spent'),
    webhook: createLimit(WEBHOOKS_PER_MINUTE, milliseconds),
  };
}

/**
 * Opens the pools to the model servers, except those in `kept`, which stay; `former` has those of before a reload. Their client is
 * loaded only when there are any: commands and idle starts stay quick.
 */
export async function openUpstreams(
  config: Pick<Config, 'router'>,
  kept: ReadonlyMap<string, Upstream> = new Map(),
  former: ReadonlyMap<string, Upstream> = new Map(),
): Promise<ReadonlyMap<string, Upstream>> {
  if (!config.router.upstreams.length) return new Map();
  const { openUpstream } = await import('../router/upstream.ts');
  return new Map(
    config.router.upstreams.map((it) => [it.name, kept.get(it.name) ?? openUpstream(it, former.get(it.name))]),
  );
}

/** Opens the backends of the slots, to be closed with the rest. */
async function openBackends(
  config: Config,
  { local }: AppOptions,
  {
    installationId,
    clock,
    events,
    storage,
    ledger,
    warmTags,
  }: Pick<App, 'installationId' | 'clock' | 'events' | 'storage' | 'ledger'> & { warmTags: ReadonlySet<string> },
  opening: AsyncDisposableStack,
): Promise<App['slots']> {
  const prefix = tagPrefix(installationId);
  const isPaused = (tag: string) => findResource(ledger.read, resourceIdOf(prefix, tag))?.status === 'paused';
  const isWarm = (tag: string) => warmTags.has(tag);
  const around = { dataDirectory: config.dataDirectory, prefix, now: () => clock.now(), isPaused, isWarm };
  const slots = await openSlots({ compute: local ?? config.compute }, around, {
    called: events.backendCalled,
    confirm: storage.confirm,
  });
  return opening.adopt(slots, async (it) => {
    for (const { backend } of it.list) await backend.close();
  });
}

/** Opens the sign-in of people. Its library is loaded only when an identity provider is configured. */
async function openSignIn(
  { identity }: Config,
  app: SessionsApp & { events: Events },
  milliseconds: () => number,
): Promise<{ sessions: Sessions | undefined; codeFlow: CodeFlow | undefined }> {
  if (!identity) return { sessions: undefined, codeFlow: undefined };
  const [{ createIssuer }, { createSessions }, { createCodeFlow }] = await Promise.all([
    import('../access/issuer.ts'),
    import('../access/sessions.ts'),
    import('../access/code-flow.ts'),
  ]);
  const failed = (error: Error) => app.events.failed('issuer', error);
  const issuer = createIssuer(identity, milliseconds, failed);
  const sessions = createSessions(identity, issuer, app);
  const { client_id: clientId } = identity;
  const settings = clientId === undefined ? undefined : { ...identity, client_id: clientId };
  return { sessions, codeFlow: settings && createCodeFlow(settings, issuer, sessions) };
}

/** Opens the payment provider. Its library is loaded only when one is configured. */
async function openPayments({ billing }: Config, installationId: string): Promise<Provider | undefined> {
  if (!billing) return undefined;
  const { openStripe } = await import('../billing/stripe.ts');
  return openStripe(billing, { installationId });
}

/** Opens the signer of object URLs. Its library is loaded only when an object store is configured. */
async function openSigner({ transfer }: Config): Promise<Signer | undefined> {
  if (!transfer) return undefined;
  const { createSigner } = await import('../transfer/object-url.ts');
  return createSigner(transfer);
}
