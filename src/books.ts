import { existsSync } from 'node:fs';
import { type Keyring, openKeyring } from './access/keyring.ts';
import { machineHash, readMachineId } from './access/machine-id.ts';
import { readMasterKey } from './access/master-key.ts';
import { finishRotation, type KeyPlace, warnOfOldKey } from './access/rotation.ts';
import { type Clock, createClock, systemTime, type TimeSource } from './clock.ts';
import type { Config, Secrets } from './config/config.ts';
import { refuseOpenToOthers } from './config/strict-modes.ts';
import { createDiskReserve, type DiskReserve } from './db/disk-reserve.ts';
import { takeLock } from './db/lock.ts';
import type { Events } from './events.ts';
import { files, prepareDirectory } from './files/data-directory.ts';
import type { Health } from './health.ts';
import { beginReportOnly } from './lease/report-only.ts';
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
import { createHeadWriter } from './reaper/head-writer.ts';

/** What has to be open before anything may move money. */
export type Books = {
  ledger: Ledger;
  clock: Clock;
  keyring: Keyring;
  keyPlace: KeyPlace;
  health: Health;
  diskReserve: DiskReserve;
};

export type BooksOptions = {
  log: Log;
  /** Who holds the data directory, for whoever finds it locked. */
  who: string;
  /** Creates the data directory and the database when they are missing, and migrates. */
  create: boolean;
  /** Begins a new epoch where the database is behind its head file, its chain is broken or its books are damaged. */
  acceptLoss?: boolean;
  time?: TimeSource;
  /** Says which machine this is; what /etc/machine-id says unless given. */
  machineId?: () => string | undefined;
  /** A COMMIT failed: stop the process at once. */
  fatal: (error: unknown) => void;
};

/** How long a server waits at its start for a command that has the data directory. */
const COMMAND_MILLISECONDS = 60_000;

/**
 * Opens the books of a data directory for the one process that may write them: directory, lock, master key, ledger, clock.
 * Examines them, and says by `health.fault` where they may not be served. Closes in the opposite order by `opening`.
 * `inFlight` counts the requests that will want to be settled on a full disk.
 */
export async function openBooks(
  config: Config,
  secrets: Secrets,
  options: BooksOptions,
  events: Events,
  inFlight: () => number,
  opening: AsyncDisposableStack,
): Promise<Books> {
  const { log } = options;
  const at = files(config.dataDirectory);
  prepareDirectory(config.dataDirectory, options.create);
  refuseOpenToOthers(config, secrets, (sentence) => log.warn({ event: 'master_key.open' }, sentence));
  const patience = {
    milliseconds: COMMAND_MILLISECONDS,
    waits: (holder: string) => log.warn({ event: 'lock.waiting', holder }, `waiting until ${holder} has ended`),
  };
  opening.adopt(await takeLock(at.lock, options.who, options.create ? patience : undefined), (it) => it.release());
  const isNew = !existsSync(at.database);
  // Before the database: without it no token of this installation could be made again, so nothing may exist first.
  const masterKey = readMasterKey(secrets.masterKey, { create: isNew && options.create });

  const health: Health = { fault: 'the database has not been examined yet' };
  const headWriter = createHeadWriter(at, () => ledger, events, health);
  const diskReserve = opening.adopt(createDiskReserve(at.reserve, inFlight, events), (it) => it.stop());
  const { committed } = headWriter;
  const ledger = opening.adopt(
    openLedger(at.database, { migrate: options.create, room: diskReserve, committed, fatal: options.fatal }),
    (it) => it.close(),
  );
  const keyring = openKeyring(ledger.read, masterKey);
  const { from, path } = secrets.masterKey;
  const keyPlace: KeyPlace = { from, path };
  const clock = createClock(options.time ?? systemTime, lastJournalAt(ledger.read), log);

  health.fault = await examine(ledger, at, clock, masterKey.id, options);
  opening.adopt(headWriter, async (it) => {
    // A head that the database is behind is evidence: it is not overwritten. An older one that stays, on a full disk, is none.
    if (!health.fault) await it.stop().catch((error) => events.failed('head', error));
  });
  if (!health.fault) {
    await headWriter.flush();
    await finishRotation({ ledger, keyring, keyPlace }).catch((error) => events.failed('master_key', error));
    warnOfOldKey({ keyring, keyPlace }, log);
  }
  return { ledger, clock, keyring, keyPlace, health, diskReserve };
}

/** Books of so many bytes are examined whole before they are served: it takes less than a tenth of a second. */
const SMALL_BYTES = 4 * 1024 * 1024;
const isSmall = (client: Ledger['client']) =>
  Number(client.pragma('page_count', { simple: true })) * Number(client.pragma('page_size', { simple: true })) <
  SMALL_BYTES;

/** Writes what a new installation is. Returns why an older one may not be served, or undefined. */
async function examine(
  ledger: Ledger,
  at: { head: string; tip: string },
  clock: Clock,
  masterKeyId: string,
  options: BooksOptions,
): Promise<string | undefined> {
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
  return fault;
}

/** On another machine than before these books may be a copy: then nothing is destroyed that they may not own. */
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
