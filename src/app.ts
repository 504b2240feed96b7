import type { Socket } from 'node:net';
import { createLimit } from './access/limits.ts';
import type { Sessions, SessionsApp } from './access/sessions.ts';
import { createPaymentPoller } from './billing/payment-poller.ts';
import type { Provider } from './billing/provider.ts';
import { type Books, type BooksOptions, openBooks } from './books.ts';
import { recallBounds } from './chat/learn.ts';
import { systemTime } from './clock.ts';
import { tagPrefix } from './compute/backend.ts';
import { openSlots } from './compute/open.ts';
import type { LocalCompute } from './compute/settings.ts';
import type { Config, Secrets } from './config/config.ts';
import { createEvents, type Events } from './events.ts';
import { files } from './files/data-directory.ts';
import { createConcurrency } from './http/concurrency.ts';
import type { HttpApp } from './http/endpoint.ts';
import { createMemoryQuota } from './http/memory-quota.ts';
import { describeReportOnly } from './lease/report-only.ts';
import { installationOf } from './ledger/installation.ts';
import { journalHead } from './ledger/journal.ts';
import type { Log } from './log.ts';
import { createAddressReader } from './net/address.ts';
import { deadline } from './net/deadline.ts';
import { openFilesMax, urlOf } from './net/listen.ts';
import { type BooksWatch, watchBooks } from './reaper/books-watch.ts';
import { watchChain } from './reaper/chain-watch.ts';
import { createReaper, type Reaper, type ReaperApp } from './reaper/reaper.ts';
import { createCatalogue } from './router/catalogue.ts';
import type { Upstream } from './router/upstream.ts';
import { createInFlight } from './spend/in-flight.ts';
import { createKeyedMutex } from './spend/keyed-mutex.ts';
import { recover } from './spend/recover.ts';
import { uncertain } from './spend/spend.ts';
import type { Signer } from './transfer/object-url.ts';

/**
 * Connections of clients, and paid requests in flight, each of which may have a connection to a model server and need not
 * have its client any more: two thirds and one third of the descriptors that the process does not need for itself.
 */
const CONNECTION_COUNT_MAX = 16_384;
const IN_FLIGHT_COUNT_MAX = 16_384;
const OWN_FILE_COUNT = 64;
/** A client that takes nothing of its answer for this long is gone. */
const STALL_MILLISECONDS = 60_000;

/** What is open. Each part asks only for what it uses; this is where the whole is put together. */
export type App = HttpApp &
  ReaperApp &
  Books & {
    config: Config;
    log: Log;
    events: Events;
    reaper: Reaper;
    chain: ReturnType<typeof watchChain>;
    booksWatch: BooksWatch;
    upstreams: ReadonlyMap<string, Upstream>;
    /** How many clients may be connected. */
    connectionCountMax: number;
    state: AppState;
    /**
     * Waits until all is `answered` and nothing runs any more, at most `drainSeconds`. Then nothing new is driven: what
     * still runs is answered as uncertain, and what is still being read is refused.
     */
    drain(answered: Promise<void>): Promise<void>;
    [Symbol.asyncDispose](): Promise<void>;
  };
/** What changes while the App is open. */
type AppState = HttpApp['state'] & ReaperApp['state'];

export type AppOptions = BooksOptions & {
  /** What the demo rents out, in place of what is configured: nobody else has it. */
  local?: LocalCompute;
  /** How long a client may take nothing of its answer; a minute unless given. */
  stallMilliseconds?: number;
};

/** `POST /v1/compute/create` answers within this, ready or not (design 2.18). */
const ANSWER_SECONDS = 30;
/** After the cut-off, in-flight operations get this long to be written; the next start recovers the rest. */
const LAST_WORDS_MILLISECONDS = 5000;
/** From one address: a payment provider reports a few payments a minute, and repeats what was refused. */
const WEBHOOKS_PER_MINUTE = 600;

/** Opens everything but the listeners, in the order below; it closes in the opposite order. */
export async function openApp(config: Config, secrets: Secrets, options: AppOptions): Promise<App> {
  const { log } = options;
  await using opening = new AsyncDisposableStack();
  const events = createEvents(log);
  const free = Math.max(3, openFilesMax() - OWN_FILE_COUNT);
  const inFlight = createInFlight(Math.min(IN_FLIGHT_COUNT_MAX, Math.floor(free / 3)));
  const books = await openBooks(config, secrets, options, events, inFlight.count, opening);
  const { ledger, clock, health, diskReserve } = books;
  const { installationId } = installationOf(ledger.read);

  const upstreams = await openUpstreams(config, secrets);
  const catalogue = createCatalogue(config);
  recallBounds(ledger.read, catalogue);
  const slots = opening.adopt(
    await openSlots({ compute: options.local ?? config.compute }, secrets, {
      leases: files(config.dataDirectory).leases,
      prefix: tagPrefix(installationId),
      now: () => clock.now(),
    }),
    async (it) => {
      for (const { backend } of it.list) await backend.close();
    },
  );
  const payments = opening.adopt(await openPayments(config, secrets, installationId), async (it) => it?.close());
  opening.defer(async () => {
    inFlight.cutOff(() => uncertain());
    for (const upstream of upstreams.values()) await upstream.close(); // What is in flight ends as unknown, and is written so.
    await deadline(inFlight.drained(), LAST_WORDS_MILLISECONDS, () => {}); // A backend that hangs is not waited for.
  });

  const keysUsed = new Map<string, number>();
  // One object: what is opened below is added to it, and everybody is handed the same.
  const app = {
    ...books,
    config,
    log,
    events,
    inFlight,
    upstreams,
    catalogue,
    slots,
    payments,
    installationId,
    signer: await openSigner(config, secrets),
    sessions: await openSessions(config, { ledger, clock, events }, (options.time ?? systemTime).monotonic),
    leaseMutex: createKeyedMutex(),
    limits: createLimits(config),
    memory: createMemoryQuota(),
    concurrency: createConcurrency(),
    authenticated: new WeakSet<Socket>(),
    addressOf: createAddressReader(config.trustedProxies),
    connectionCountMax: Math.min(CONNECTION_COUNT_MAX, Math.floor((free / 3) * 2)),
    stallMilliseconds: options.stallMilliseconds ?? STALL_MILLISECONDS,
    answerSeconds: ANSWER_SECONDS,
    keysUsed,
    keysWalked: new Map<string, string>(),
    used: (keyId: string, now: number) => keysUsed.set(keyId, now),
    wakeAt: (when: number) => reaper.wakeAt(when),
    state: { baseUrl: config.publicUrl ?? urlOf(config.listen), ssh: undefined, sweepAt: 0 } as AppState,
    async drain(answered: Promise<void>) {
      await deadline(answered.then(inFlight.drained), config.drainSeconds * 1000, () => {});
      inFlight.cutOff(() => uncertain());
      app.memory.cutOff();
    },
  };
  const paymentPoller = payments
    ? opening.adopt(createPaymentPoller({ ...app, payments }), (it) => it.stop())
    : undefined;
  const reaper: Reaper = opening.adopt(createReaper(Object.assign(app, { paymentPoller })), (it) => it.stop());
  if (!health.fault) {
    const left = await recover(app);
    if (left)
      log.warn({ event: 'recovered', operations: left }, 'operations were in flight when the last process ended');
  }
  const reportOnly = describeReportOnly(ledger.read);
  if (reportOnly) events.reportOnly(reportOnly.reason, reportOnly.leases);
  const chain = opening.adopt(watchChain(ledger.read, health, events), (it) => it.stop());
  const booksWatch = opening.adopt(watchBooks(config.dataDirectory, ledger.read, health, events), (it) => it.stop());
  addGauges({ ledger, events, diskReserve, inFlight });

  const opened = opening.move();
  const close = { [Symbol.asyncDispose]: () => opened.disposeAsync() };
  return Object.assign(app, { paymentPoller, reaper, chain, booksWatch, ...close });
}

function createLimits({ limits }: Config): HttpApp['limits'] {
  const milliseconds = () => performance.now();
  return {
    wallet: createLimit(limits.wallet_requests_per_minute, milliseconds),
    account: createLimit(limits.account_requests_per_minute, milliseconds),
    failedAuth: createLimit(limits.failed_auth_per_minute, milliseconds),
    released: createLimit(limits.released_per_minute, milliseconds, 'requests that were held and then refused outside'),
    webhook: createLimit(WEBHOOKS_PER_MINUTE, milliseconds),
  };
}

function addGauges({
  ledger,
  events,
  diskReserve,
  inFlight,
}: Pick<App, 'ledger' | 'events' | 'diskReserve' | 'inFlight'>) {
  events.gauge('commits', 'Commits of the ledger since the start.', ledger.commitCount);
  events.gauge('journal_seq', 'Number of the newest journal entry.', () => journalHead(ledger.read).seq);
  events.gauge('report_only', '1 while leases of before are only reported.', () =>
    describeReportOnly(ledger.read) ? 1 : 0,
  );
  events.gauge('disk_free_bytes', 'Free on the disk of the data directory, beside the reserve.', diskReserve.freeBytes);
  events.gauge('requests_running', 'Paid requests in flight.', inFlight.count);
}

/** The pools to the model servers. Their client is loaded only when there are any: commands and idle starts stay quick. */
async function openUpstreams(config: Config, secrets: Secrets): Promise<ReadonlyMap<string, Upstream>> {
  if (!config.router.upstreams.length) return new Map();
  const { openUpstream } = await import('./router/upstream.ts');
  return new Map(config.router.upstreams.map((it) => [it.name, openUpstream(it, secrets.upstreamKeys.get(it.name))]));
}

/** What signs people in. Its library is loaded only when an identity provider is configured. */
async function openSessions(
  { identity }: Config,
  app: SessionsApp & { events: Events },
  milliseconds: () => number,
): Promise<Sessions | undefined> {
  if (!identity) return undefined;
  const [{ createIssuer }, { createSessions }] = await Promise.all([
    import('./access/issuer.ts'),
    import('./access/sessions.ts'),
  ]);
  const failed = (error: Error) => app.events.failed('issuer', error);
  return createSessions(identity, createIssuer(identity, milliseconds, failed), app);
}

/** Where people pay. Its library is loaded only when a payment provider is configured. */
async function openPayments(
  { billing }: Config,
  { billingKeys }: Secrets,
  installationId: string,
): Promise<Provider | undefined> {
  if (!billing || !billingKeys) return undefined;
  const { openStripe } = await import('./billing/stripe.ts');
  return openStripe(billing, billingKeys, { installationId });
}

/** What signs the URLs of objects. Its library is loaded only when there is something to sign for. */
async function openSigner(config: Config, secrets: Secrets): Promise<Signer | undefined> {
  if (!config.transfer || !secrets.transferKeys) return undefined;
  const { createSigner } = await import('./transfer/object-url.ts');
  return createSigner(config.transfer, secrets.transferKeys);
}
