import { existsSync } from 'node:fs';
import type { Socket } from 'node:net';
import { type Keyring, openKeyring } from './access/keyring.ts';
import { createLimit } from './access/limits.ts';
import { machineHash, readMachineId } from './access/machine-id.ts';
import { readMasterKey } from './access/master-key.ts';
import { arrive, type KeyPlace, warnOfOldKey } from './access/rotation.ts';
import type { Sessions, SessionsApp } from './access/sessions.ts';
import { createPaymentPoller, type PaymentPoller } from './billing/payment-poller.ts';
import type { Provider } from './billing/provider.ts';
import { recallBounds } from './chat/learn.ts';
import { type Clock, createClock, systemTime, type TimeSource } from './clock.ts';
import { tagPrefix } from './compute/backend.ts';
import { openSlots } from './compute/open.ts';
import type { LocalCompute } from './compute/settings.ts';
import type { Config, Secrets } from './config/config.ts';
import { refuseOpenToOthers } from './config/strict-modes.ts';
import { createDiskReserve, type DiskReserve } from './db/disk-reserve.ts';
import { takeLock } from './db/lock.ts';
import { createEvents, type Events } from './events.ts';
import { files, prepareDirectory } from './files/data-directory.ts';
import type { Health } from './health.ts';
import { createConcurrency } from './http/concurrency.ts';
import type { HttpApp } from './http/endpoint.ts';
import { createMemoryQuota } from './http/memory-quota.ts';
import { beginReportOnly, describeReportOnly } from './lease/report-only.ts';
import { openAccount } from './ledger/account.ts';
import { audit, newFault } from './ledger/audit.ts';
import { type CommitMark, findGap, readHeadFile, readTip } from './ledger/head.ts';
import {
  beginEpoch,
  findInstallation,
  install,
  installationOf,
  setDefaultAccount,
  setMachineHash,
} from './ledger/installation.ts';
import { journalHead, lastJournalAt } from './ledger/journal.ts';
import { type Ledger, openLedger } from './ledger/ledger.ts';
import type { Log } from './log.ts';
import { createAddressReader } from './net/address.ts';
import { deadline } from './net/deadline.ts';
import { openFilesMax, urlOf } from './net/listen.ts';
import { type BooksWatch, watchBooks } from './reaper/books-watch.ts';
import { watchChain } from './reaper/chain-watch.ts';
import { createHeadWriter } from './reaper/head-writer.ts';
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
const RUNNING_COUNT_MAX = 16_384;
const OWN_FILE_COUNT = 64;
/** Longer than a client that means to read on ever takes nothing. */
const STALL_MILLISECONDS = 60_000;

/** What is open. Each part asks only for what it uses; this is where the whole is put together. */
export type App = HttpApp &
  ReaperApp & {
    config: Config;
    log: Log;
    ledger: Ledger;
    clock: Clock;
    events: Events;
    keyring: Keyring;
    keyPlace: KeyPlace;
    health: Health;
    reaper: Reaper;
    diskReserve: DiskReserve;
    chain: ReturnType<typeof watchChain>;
    books: BooksWatch;
    upstreams: ReadonlyMap<string, Upstream>;
    /** So many clients may be connected. */
    connectionCountMax: number;
    /**
     * Waits until all is `answered` and nothing runs any more, at most `drainSeconds`. Then nothing new is driven: what
     * still runs is answered as uncertain, and what is still being read is refused.
     */
    drain(answered: Promise<void>): Promise<void>;
    [Symbol.asyncDispose](): Promise<void>;
  };

export type AppOptions = {
  log: Log;
  /** Who holds the data directory, for whoever finds it locked. */
  who: string;
  /** Creates the data directory and the database when they are missing, and migrates. */
  create: boolean;
  /** Begins a new epoch where the database is behind its head file, its chain is broken or its books are damaged. */
  acceptLoss?: boolean;
  time?: TimeSource;
  /** What the demo rents out, in place of what is configured: nobody else has it. */
  local?: LocalCompute;
  /** Says which machine this is; what /etc/machine-id says unless given. */
  machineId?: () => string | undefined;
  stallMilliseconds?: number;
  /** A COMMIT failed: stop the process at once. */
  fatal: (error: unknown) => void;
};

/** `POST /v1/compute/create` answers within this, ready or not (design 2.18). */
const ANSWER_SECONDS = 30;
/** So long a server waits at its start for a command that has the data directory. */
const COMMAND_MILLISECONDS = 60_000;
/** After the cut-off, so long what is still driven may take to be written; the next start finds what was not. */
const LAST_WORDS_MILLISECONDS = 5000;
/** Of one address: a payment provider tells of a few payments a minute, and tells again what was refused. */
const WEBHOOKS_PER_MINUTE = 600;

/** Opens everything but the listeners, in the order below; it closes in the opposite order. */
export async function openApp(config: Config, secrets: Secrets, options: AppOptions): Promise<App> {
  const { log } = options;
  const at = files(config.dataDirectory);
  prepareDirectory(config.dataDirectory, options.create);
  refuseOpenToOthers(config, secrets, (sentence) => log.warn({ event: 'master_key.open' }, sentence));

  await using opening = new AsyncDisposableStack();
  const patience = {
    milliseconds: COMMAND_MILLISECONDS,
    waits: (holder: string) => log.warn({ event: 'lock.waiting', holder }, `waiting until ${holder} has ended`),
  };
  opening.adopt(await takeLock(at.lock, options.who, options.create ? patience : undefined), (it) => it.release());
  const isNew = !existsSync(at.database);
  // Before the database: without it no token of this installation could be made again, so nothing may exist first.
  const masterKey = readMasterKey(secrets.masterKey, { create: isNew && options.create });
  const events = createEvents(log);
  const headKeeper = createHeadWriter(
    at,
    () => ledger,
    events,
    () => health,
  );
  let health: Health = { fault: 'the database has not been examined yet' };
  const free = Math.max(3, openFilesMax() - OWN_FILE_COUNT);
  const connectionCountMax = Math.min(CONNECTION_COUNT_MAX, Math.floor((free / 3) * 2));
  const inFlight = createInFlight(Math.min(RUNNING_COUNT_MAX, Math.floor(free / 3)));
  const diskReserve = opening.adopt(createDiskReserve(at.reserve, inFlight.count, events), (it) => it.stop());
  const { committed } = headKeeper;
  const ledger = opening.adopt(
    openLedger(at.database, { migrate: options.create, room: diskReserve, committed, fatal: options.fatal }),
    (it) => it.close(),
  );

  const keyring = openKeyring(ledger.read, masterKey);
  const { from, path } = secrets.masterKey;
  const keyPlace: KeyPlace = { from, path };

  const clock = createClock(options.time ?? systemTime, lastJournalAt(ledger.read), log);
  health = await examine(ledger, at, clock, masterKey.id, options);
  opening.adopt(headKeeper, async (it) => {
    // A head that the database is behind is evidence: it is not overwritten. An older one that stays, on a full disk, is none.
    if (!health.fault) await it.stop().catch((error) => events.failed('head', error));
  });
  if (!health.fault) {
    await headKeeper.flush();
    await arrive({ ledger, keyring, keyPlace }).catch((error) => events.failed('master_key', error));
    warnOfOldKey({ keyring, keyPlace }, log);
  }

  const upstreams = await openUpstreams(config, secrets);
  const catalogue = createCatalogue(config);
  recallBounds(ledger.read, catalogue);
  const { installationId } = installationOf(ledger.read);
  const slots = opening.adopt(
    await openSlots({ compute: options.local ?? config.compute }, secrets, {
      leases: at.leases,
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
  const perMinute = {
    wallet: config.limits.wallet_requests_per_minute,
    account: config.limits.account_requests_per_minute,
  };
  const milliseconds = () => performance.now();
  const app = {
    config,
    log,
    ledger,
    clock,
    events,
    health,
    inFlight,
    diskReserve,
    upstreams,
    keysUsed,
    sweepAt: 0,
    ssh: undefined as HttpApp['ssh'],
    signer: await openSigner(config, secrets),
    sessions: await openSessions(config, { ledger, clock, events }, (options.time ?? systemTime).monotonic),
    payments,
    look: undefined as PaymentPoller | undefined,
    slots,
    leaseMutex: createKeyedMutex(),
    installationId,
    answerSeconds: ANSWER_SECONDS,
    catalogue,
    keyring,
    keyPlace,
    keysWalked: new Map<string, string>(),
    baseUrl: config.publicUrl ?? urlOf(config.listen),
    limits: {
      wallet: createLimit(perMinute.wallet, milliseconds),
      account: createLimit(perMinute.account, milliseconds),
      failedAuth: createLimit(config.limits.failed_auth_per_minute, milliseconds),
      released: createLimit(config.limits.released_per_minute, milliseconds, 'requests that the model server refused'),
      webhook: createLimit(WEBHOOKS_PER_MINUTE, milliseconds),
    },
    memory: createMemoryQuota(),
    concurrency: createConcurrency(),
    authenticated: new WeakSet<Socket>(),
    connectionCountMax,
    stallMilliseconds: options.stallMilliseconds ?? STALL_MILLISECONDS,
    addressOf: createAddressReader(config.trustedProxies),
    used: (keyId: string, now: number) => keysUsed.set(keyId, now),
    wakeAt: (when: number) => reaper.wakeAt(when),
  };
  if (payments) app.look = opening.adopt(createPaymentPoller({ ...app, payments }), (it) => it.stop());
  const reaper = opening.adopt(createReaper(app), (it) => it.stop());
  if (!health.fault) {
    const left = await recover(app);
    if (left)
      log.warn({ event: 'recovered', operations: left }, 'operations were in flight when the last process ended');
  }
  const caution = describeReportOnly(ledger.read);
  if (caution) events.reportOnly(caution.reason, caution.leases);
  const chain = opening.adopt(watchChain(ledger.read, health, events), (it) => it.stop());
  const books = opening.adopt(watchBooks(config.dataDirectory, ledger.read, health, events), (it) => it.stop());
  events.gauge('commits', 'Commits of the ledger since the start.', ledger.commitCount);
  events.gauge('journal_seq', 'Number of the newest journal entry.', () => journalHead(ledger.read).seq);
  events.gauge('report_only', '1 while leases of before are only reported.', () =>
    describeReportOnly(ledger.read) ? 1 : 0,
  );
  events.gauge('disk_free_bytes', 'Free on the disk of the data directory, beside the reserve.', diskReserve.freeBytes);
  events.gauge('requests_running', 'Paid requests in flight.', inFlight.count);

  const opened = opening.move();
  return {
    ...app,
    reaper,
    chain,
    books,
    async drain(answered) {
      await deadline(answered.then(inFlight.drained), config.drainSeconds * 1000, () => {});
      inFlight.cutOff(() => uncertain());
      app.memory.cutOff();
    },
    [Symbol.asyncDispose]: () => opened.disposeAsync(),
  };
}

/** The pools to the model servers. Their client is loaded only when there are any: commands and idle starts stay quick. */
async function openUpstreams(config: Config, secrets: Secrets): Promise<ReadonlyMap<string, Upstream>> {
  if (!config.router.upstreams.length) return new Map();
  const { openUpstream } = await import('./router/upstream.ts');
  return new Map(config.router.upstreams.map((it) => [it.name, openUpstream(it, secrets.upstreamKeys.get(it.name))]));
}

/** Books of so many bytes are examined whole before they are served: it takes less than a tenth of a second. */
const SMALL_BYTES = 4 * 1024 * 1024;
const isSmall = (client: Ledger['client']) =>
  Number(client.pragma('page_count', { simple: true })) * Number(client.pragma('page_size', { simple: true })) <
  SMALL_BYTES;

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

/** Writes what a new installation is, and finds out whether an older one may be served. */
async function examine(
  ledger: Ledger,
  at: { head: string; tip: string },
  clock: Clock,
  masterKeyId: string,
  options: AppOptions,
): Promise<Health> {
  const now = clock.now();
  if (!findInstallation(ledger.read)) await ledger.write((tx) => install(tx, masterKeyId, now));

  const tip = readTip(at.tip);
  let head: CommitMark | undefined;
  let fault: string | undefined;
  try {
    head = await readHeadFile(at.head);
    fault = findGap(ledger.read, head, tip);
  } catch (error) {
    fault = (error as Error).message;
  }
  const isExamined = options.acceptLoss || (options.create && isSmall(ledger.client));
  const problems = isExamined ? audit(ledger.client).problems : [];
  fault ??= newFault(ledger.read, problems);
  if (fault && options.acceptLoss) {
    options.log.warn({ event: 'loss.accepted', fault }, 'the loss was accepted; a new epoch begins');
    const order = {
      reason: fault,
      acceptedFaults: problems.length,
      above: Math.max(head?.epoch ?? 0, tip?.epoch ?? 0),
    };
    await ledger.write((tx) => {
      beginEpoch(tx, { afterSeq: journalHead(tx).seq, ...order }, now);
      beginReportOnly(tx, 'the loss of entries was accepted', now);
    });
    fault = undefined;
  }
  if (fault)
    options.log.error(
      { event: 'not_served', fault },
      'this database is not served; `purser doctor` explains, `purser serve --accept-loss` begins a new epoch',
    );
  else {
    if (options.create && installationOf(ledger.read).defaultAccountId === null)
      await ledger.write((tx) => setDefaultAccount(tx, openAccount(tx, 'default', now).id));
    await recognise(ledger, (options.machineId ?? readMachineId)(), now);
  }
  return { fault };
}

/** On another machine than before these books may be a copy: nothing is destroyed that they may not own. */
async function recognise(ledger: Ledger, machineId: string | undefined, now: number): Promise<void> {
  if (machineId === undefined) return;
  const { installationId, machineHash: known } = installationOf(ledger.read);
  const found = machineHash(machineId, installationId);
  if (known?.equals(found)) return;
  await ledger.write((tx) => {
    setMachineHash(tx, found);
    if (known !== null) beginReportOnly(tx, 'this is another machine than at the last start', now);
  });
}
