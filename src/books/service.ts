import { existsSync } from 'node:fs';
import { hostname } from 'node:os';
import { type Keyring, openKeyring } from '../access/keyring.ts';
import { machineHash, readMachineId } from '../access/machine-id.ts';
import { readMasterKey } from '../access/master-key.ts';
import { finishRotation, type KeySource, warnOfOldKey } from '../access/rotation.ts';
import { type Clock, systemTime, type TimeSource } from '../base/clock.ts';
import type { ServerHealth } from '../base/health.ts';
import type { Log } from '../base/log.ts';
import { Refusal } from '../base/refusal.ts';
import type { Config } from '../config/config.ts';
import { refuseOpenToOthers } from '../config/strict-modes.ts';
import { findChangedSchema, missingPart } from '../db/damage.ts';
import { createDiskReserve, type DiskReserve, growthAhead } from '../db/disk-reserve.ts';
import { type Files, prepareDirectory } from '../files/data-directory.ts';
import { fileMark } from '../files/file-mark.ts';
import { beginNewEpoch, recordLocation, whyReportMoved } from '../lease/report-only.ts';
import { newestTime } from '../ledger/accepted-clock.ts';
import { openDefaultAccount } from '../ledger/account.ts';
import { audit, newFault } from '../ledger/audit.ts';
import {
  type BooksLocation,
  currentEpoch,
  findInstallation,
  install,
  installationOf,
  lowerAcceptedFaults,
} from '../ledger/installation.ts';
import type { Ledger, LedgerOptions } from '../ledger/ledger.ts';
import { type BooksMove, tellDiskLow } from '../ledger/notices.ts';
import type { Outbox } from '../ledger/outbox.ts';
import { faultsOf, type Verification } from '../ledger/verify.ts';
import type { Events } from '../telemetry/events.ts';
import { type ClockWatch, watchClock } from './clock-watch.ts';
import { gapOf, newestOf, readMarks } from './examine.ts';
import { createHeadWriter } from './head-writer.ts';
import { clockOf, enterDirectory, knownTimeOf, openBooks } from './open.ts';
import { type ReplicasWatch, watchReplicas } from './replicas-watch.ts';
import { judgeStorage, type StorageOptions } from './storage.ts';
import { type StorageWatch, watchStorage } from './storage-watch.ts';
import { isClockSynced } from './time-service.ts';

/** Everything that has to be open before money may move. */
export type Books = {
  ledger: Ledger;
  clock: Clock;
  keyring: Keyring;
  keySource: KeySource;
  health: ServerHealth;
  diskReserve: DiskReserve;
  clockWatch: ClockWatch;
  storage: StorageWatch;
  replicas: ReplicasWatch;
  /** The fault of the file system under the books, where it was accepted with `--unsafe-storage`. */
  unsafeStorage: string | undefined;
};

export type BooksOptions = {
  log: Log;
  /** The name of this command, for a process that finds the directory locked. */
  who: string;
  /** Creates the data directory and the database when they are missing, and migrates. */
  create: boolean;
  /** Begins a new epoch where the database is behind its head file, its chain is broken or its books are damaged. */
  acceptLoss?: boolean;
  /** Trusts the clock where it is in doubt. */
  acceptClock?: boolean;
  /** Judges the file system of the data directory; without it, any will do. */
  storage?: StorageOptions;
  /** The receivers of events; by default none. */
  outbox?: Outbox;
  /** Called after each commit. */
  committed?: () => void;
  time?: TimeSource;
  /** Returns whether a time service vouches for the clock; by default asks the machine. */
  isSynced?: (now: number) => Promise<boolean | undefined>;
  /** Returns the id of this machine; by default reads /etc/machine-id. */
  machineId?: () => string | undefined;
  /**
   * Called when a commit failed or was not confirmed in time, after those who waited were answered: must stop the process at once.
   */
  fatal: (error: unknown) => void;
  /** Writes in this thread. Only tests set it (`LedgerOptions`). */
  writesHere?: boolean;
};

/** Milliseconds that a starting server waits for a command that holds the data directory. */
const COMMAND_MILLISECONDS = 60_000;

/** Free space that is needed to write an event about the disk. */
const EVENT_SPACE_BYTES = 512 * 1024;

/**
 * Opens the books for the one process that may write them: directory, lock, master key, ledger, clock. Examines them, and sets
 * `health.fault` where they may not be served. Adds what it opens to `opening`, which closes it in the opposite order. `inFlight`
 * returns the number of requests that will need to be settled on a full disk. Throws as `enterDirectory`, `openBooks` and
 * `openKeyring` do, OpenToOthersError, and UntrustedStorageError.
 */
export async function openBooksForService(
  config: Config,
  options: BooksOptions,
  events: Events,
  inFlight: () => number,
  opening: AsyncDisposableStack,
): Promise<Books> {
  const { log, create } = options;
  const { at, judged } = await enter(config, options, opening);
  refuseOpenToOthers(config, (sentence) => log.warn({ event: 'master_key.open' }, sentence));
  // Before the database: without it no token of this installation could be made again, so nothing may exist first.
  const masterKey = readMasterKey(config.masterKey, { create: create && !existsSync(at.database) });

  const health: ServerHealth = { fault: 'the database has not been examined yet' };
  const headWriter = createHeadWriter(at, () => ledger, events, health);
  function diskLow(reason: string): void {
    events.diskLow(reason);
    // The event must not use up the reserve; and books with a fault are not written.
    if (health.fault || diskReserve.freeBytes() < EVENT_SPACE_BYTES) return;
    const announced = ledger.write(tellDiskLow, { reason, now: clock.now() });
    announced.catch((error) => events.failed('disk_event', error));
  }
  const reserveEvents = { ...events, diskLow };
  let ahead = () => 0; // Until the database is open.
  const diskReserve = opening.adopt(
    createDiskReserve(at.reserve, inFlight, reserveEvents, () => ahead()),
    (it) => it.stop(),
  );
  const { fatal, outbox, writesHere } = options;
  const committed: LedgerOptions['committed'] = (newest, milliseconds) => {
    storage.took(milliseconds);
    events.committed(milliseconds);
    headWriter.committed(newest);
    options.committed?.();
  };
  const migrated = (migrations: string[], copy: string) =>
    log.info(
      { event: 'database.migrated', migrations, copy },
      'the database was brought up to date; the copy is from before',
    );
  const failed = (error: unknown) => storage.fail(error);
  const needs = { migrate: create, migrated, diskReserve, committed, fatal: failed, outbox, writesHere };
  const opened = opening.use(openBooks(at.database, { access: 'write', ...needs }));
  if (judged) log.warn({ event: 'storage.unsafe' }, judged.wrong); // Not before: a start that is refused reports only its reason.
  const time = options.time ?? systemTime;
  const damaged = (error: unknown) => events.failed('books', error);
  const stallSeconds = () => config.storage.stall_seconds;
  const { write } = opened;
  const watched = { directory: config.dataDirectory, write, stallSeconds, time, health, fatal, damaged };
  const storage = opening.adopt(watchStorage(watched), (it) => it.stop());
  const readReplicas = async () => options.storage?.readReplicas?.(options.storage.readMount(config.dataDirectory));
  const replicas = opening.adopt(watchReplicas(readReplicas, events), (it) => it.stop());
  const ledger = { ...opened, write: storage.write };
  ahead = () => growthAhead(ledger.read, at.database);
  const keyring = openKeyring(ledger.read, masterKey);
  const keySource: KeySource = { from: config.masterKey.from, path: config.masterKey.path };
  const clock = clockOf(ledger.read, at, log, time);
  const { isSynced = isClockSynced } = options;
  const clockFailed = (error: unknown) => events.failed('clock', error);
  const clockWatch = watchClock({ clock, ledger, log, time, isSynced, file: at.clock, failed: clockFailed });

  health.fault = await examine(ledger, at, clock, masterKey.id, config, events, options);
  if (!health.fault) await clockWatch.judge(options.acceptClock ?? false);
  opening.adopt(headWriter, async (it) => {
    // A head that is ahead of the database is evidence: it is not overwritten. An older head that remains, on a full disk, is none.
    if (!health.fault) await it.stop().catch((error) => events.failed('head', error));
  });
  if (!health.fault) {
    await headWriter.flush();
    await finishRotation({ ledger, keyring, keySource }).catch((error) => events.failed('master_key', error));
    warnOfOldKey({ keyring, keySource }, log);
  }
  return {
    ledger,
    clock,
    keyring,
    keySource,
    health,
    diskReserve,
    clockWatch,
    storage,
    replicas,
    unsafeStorage: judged?.isUntrusted ? judged.wrong : undefined,
  };
}

/** Enters the data directory and takes its lock, after judging the file system below it. */
async function enter(config: Config, options: BooksOptions, opening: AsyncDisposableStack) {
  const { log, create } = options;
  const patience = {
    milliseconds: COMMAND_MILLISECONDS,
    waits: (holder: string) => log.warn({ event: 'lock.waiting', holder }, `waiting until ${holder} has ended`),
  };
  if (options.storage) prepareDirectory(config.dataDirectory, create);
  const judged = options.storage && judgeStorage(config.dataDirectory, options.storage);
  const lock = { file: 'lock' as const, who: options.who, ...(create ? { patience } : {}) };
  const at = opening.use(await enterDirectory(config.dataDirectory, { create, lock }));
  return { at, judged };
}

/** Books smaller than this are verified as a whole before they are served, in less than a tenth of a second. */
const SMALL_BYTES = 4 * 1024 * 1024;
const isSmall = (client: Ledger['client']) =>
  Number(client.pragma('page_count', { simple: true })) * Number(client.pragma('page_size', { simple: true })) <
  SMALL_BYTES;

function changedSchema(client: Ledger['client']): Pick<Verification, 'problems' | 'faults'> {
  const { listed, count } = faultsOf((fault) => findChangedSchema(client, fault));
  return { problems: listed, faults: count };
}

/**
 * Writes the rows of a new installation, and begins the new epoch of an accepted loss. Returns why the books may not be
 * served, or undefined.
 */
async function examine(
  ledger: Ledger,
  at: Files,
  clock: Clock,
  masterKeyId: string,
  config: Config,
  events: Pick<Events, 'booksMoved'>,
  options: BooksOptions,
): Promise<string | undefined> {
  const now = clock.now();
  if (!findInstallation(ledger.read)) await ledger.write(install, { masterKeyId, now });

  const marks = await readMarks(at);
  const isExamined = options.acceptLoss || (options.create && isSmall(ledger.client));
  // At least the schema: statements are prepared when they are first used, which may be in the middle of a payment.
  const examined = isExamined ? audit(ledger.client) : changedSchema(ledger.client);
  const missing = examined.faults ? missingPart(ledger.client) : undefined;
  let fault = gapOf(ledger, marks) ?? newFault(ledger.read, examined);
  if (missing)
    fault = `the books are damaged: ${missing}. No accepted loss makes up for that: restore the newest backup`;
  else if (fault && options.acceptLoss) {
    options.log.warn({ event: 'loss.accepted', fault }, 'the loss was accepted; a new epoch begins');
    const epoch = { reason: fault, acceptedFaults: examined.faults, above: newestOf(marks).epoch };
    // Not earlier than the books: that would accept a clock that is behind them.
    const at = Math.max(now, newestTime(ledger.read));
    await ledger.write(beginNewEpoch, { ...epoch, because: 'the loss of entries was accepted', now: at });
    fault = undefined;
  }
  if (fault)
    options.log.error(
      { event: 'not_served', fault },
      missing
        ? 'this database is not served'
        : 'this database is not served; `purser doctor` explains, `purser serve --accept-loss` begins a new epoch',
    );
  else {
    if (isExamined && examined.faults < currentEpoch(ledger.read).acceptedFaults)
      await ledger.write(lowerAcceptedFaults, { remaining: examined.faults });
    if (options.create && installationOf(ledger.read).defaultAccountId === null)
      await ledger.write(openDefaultAccount, { now });
    const move = await recognise(ledger, at, (options.machineId ?? readMachineId)(), now);
    if (move) events.booksMoved(move, missingOn(config, at));
  }
  return fault;
}

/**
 * Notes where these books are served. Returns the move, where they come from another machine. Begins the report-only state where
 * they may be a copy.
 */
async function recognise(
  ledger: Ledger,
  at: Files,
  machineId: string | undefined,
  now: number,
): Promise<BooksMove | undefined> {
  if (machineId === undefined) return undefined;
  const known = installationOf(ledger.read);
  const current = machineHash(machineId, known.installationId);
  const location: BooksLocation = { machineHash: current, host: hostname(), fileMark: fileMark(at.database) };
  const isSame = known.machineHash?.equals(current) ?? false;
  if (isSame && known.host === location.host && known.fileMark === location.fileMark) return undefined;
  if (isSame || known.machineHash === null) {
    await ledger.write(recordLocation, { location, move: undefined, because: undefined, now }).catch((error) => {
      // A full disk does not prevent the start: the next one notes it.
      if (!(error instanceof Refusal) || error.code !== 'read_only') throw error;
    });
    return undefined;
  }
  const move = { from: known.host, host: hostname(), writtenAt: knownTimeOf(ledger.read, at).at };
  await ledger.write(recordLocation, { location, move, because: whyReportMoved(ledger.read, known, location), now });
  return move;
}

/** Returns which of an installation's files did not come along to another machine. Without the master key it does not start at all. */
function missingOn(config: Config, at: Files): string[] {
  const hasLeases = Object.values(config.compute).some(Boolean);
  return [
    ...(config.file === undefined ? [`the settings (purser.yaml in ${config.dataDirectory}, or --config)`] : []),
    ...(hasLeases && !existsSync(at.sshHostKey)
      ? [`${at.sshHostKey} (a new one is made, which clients distrust)`]
      : []),
  ];
}
