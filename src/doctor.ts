import { closeSync, existsSync, fsyncSync, openSync, rmSync, statfsSync, statSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { readMasterKey } from './access/master-key.ts';
import type { Finding } from './compute/backend.ts';
import { finding } from './compute/finding.ts';
import type { Config, Secrets } from './config.ts';
import { files, prepareDirectory } from './data-directory.ts';
import { type Database, openDatabase } from './db/open.ts';
import { examineSlots } from './doctor-compute.ts';
import { findGap, readHeadFile, readTip } from './ledger/head.ts';
import { findInstallation } from './ledger/installation.ts';
import { lastJournalAt } from './ledger/journal.ts';
import { uncertainOperations } from './ledger/operation.ts';
import { askSocket } from './operator/ask.ts';
import { cautionOf } from './spend/caution.ts';

export type Check = Finding;

/** Below this, no disk has really written anything: something between us and the disk says yes too early. */
const FSYNC_MILLISECONDS_MIN = 0.01;
const FSYNC_COUNT = 20;
const DISK_BYTES_MIN = 256 * 1024 * 1024;
const UPSTREAM_MILLISECONDS = 5000;
const CLOCK_SECONDS = 60;

/** File systems on which a write-ahead log or its locks cannot be trusted (statfs(2), f_type). */
const UNFIT_FILE_SYSTEMS = new Map([
  [0x6969, 'nfs'],
  [0xff534d42, 'cifs'],
  [0xfe534d42, 'smb2'],
  [0x517b, 'smb'],
  [0x65735546, 'fuse'],
  [0x01021997, '9p'],
]);

type Look = (name: string, look: () => string | Promise<string>) => Promise<boolean>;

/**
 * What is wrong with this installation, and what to do about it. Changes nothing, also while the server runs; asks only
 * the configured upstreams and backends, and has each backend where that costs nothing make one machine and destroy it.
 */
export async function examine(config: Config, secrets: Secrets): Promise<Check[]> {
  const checks: Check[] = [];
  /** One check: whatever it throws is what is wrong. */
  const check: Look = async (name, look) => {
    const found = await finding(name, look);
    checks.push(found);
    return found.ok;
  };
  await check('configuration', () => config.file ?? 'no file: every setting has its default');
  const installationId = await examineDirectory(check, config, secrets);
  for (const upstream of config.router.upstreams)
    await check(`upstream ${upstream.name}`, () =>
      tryUpstream(upstream.base_url, secrets.upstreamKeys.get(upstream.name)),
    );
  const now = () => Math.floor(Date.now() / 1000);
  return [...checks, ...(await examineSlots(config, secrets, installationId, now))];
}

/** The data directory and what is in it. Answers the installation's id, where there is a database that tells it. */
async function examineDirectory(check: Look, config: Config, secrets: Secrets): Promise<string | undefined> {
  const directory = config.dataDirectory;
  const at = files(directory);
  const exists = await check('data directory', () => {
    prepareDirectory(directory, false);
    const mode = statSync(directory).mode & 0o777;
    if (mode & 0o077)
      throw new Error(`${directory} is open to other users (mode ${mode.toString(8)}). Run: chmod 700 ${directory}`);
    return directory;
  });
  if (!exists) return undefined;

  await check('file system', () => {
    const { type } = statfsSync(directory);
    const unfit = UNFIT_FILE_SYSTEMS.get(Number(type));
    if (unfit)
      throw new Error(
        `${directory} is on ${unfit}, where SQLite's log and locks cannot be trusted. Move it to a local disk.`,
      );
    return `type 0x${Number(type).toString(16)}, local`;
  });
  await check('disk space', () => {
    const { bavail, bsize } = statfsSync(directory);
    const free = bavail * bsize;
    const text = `${Math.floor(free / 1024 / 1024)} MiB free`;
    if (free < DISK_BYTES_MIN)
      throw new Error(`${text}: settlements need room. Free some, or move ${directory} to a larger disk.`);
    return text;
  });
  await check('durability', () => {
    const median = measureFsync(directory);
    const text = `fsync takes ${median.toFixed(3)} ms (median of ${FSYNC_COUNT})`;
    if (median < FSYNC_MILLISECONDS_MIN)
      throw new Error(
        `${text}: no disk is that fast. A memory disk or a write cache that lies would lose acknowledged money in a power cut.`,
      );
    return text;
  });
  await check('server', async () => {
    const answer = await askSocket(at.socket, 'ledger.head', {}).catch((error: Error) => ({ value: error.message }));
    return answer ? `running, listens on ${at.socket}` : 'not running';
  });

  let database: Database | undefined;
  await check('database', () => {
    database = openDatabase(at.database, { migrate: false, readonly: true });
    const [fault] = (database.client.pragma('quick_check(1)') as { quick_check: string }[]).map(
      (row) => row.quick_check,
    );
    if (fault !== 'ok') throw new Error(`${at.database} is damaged: ${fault}. Restore the newest backup.`);
    return `${at.database}, ${Math.ceil(statSync(at.database).size / 1024)} KiB, whole`;
  });
  return database && examineBooks(check, database, config, secrets);
}

async function examineBooks(
  check: Look,
  { client, read }: Database,
  config: Config,
  secrets: Secrets,
): Promise<string | undefined> {
  const at = files(config.dataDirectory);
  try {
    await check('journal', async () => {
      const gap = findGap(read, await readHeadFile(at.head), readTip(at.tip));
      if (!gap) return 'the newest entries follow each other and ledger.head agrees; `purser ledger verify` checks all';
      throw new Error(`${gap}. Restore a newer backup, or accept the loss: purser serve --accept-loss`);
    });
    await check('master key', () => {
      const key = readMasterKey(secrets.masterKey, { create: false });
      const wanted = findInstallation(read)?.masterKeyId;
      if (wanted !== undefined && wanted !== key.id)
        throw new Error(
          `The key is ${key.id}, the database was made with ${wanted}. Give Purser the key it was made with.`,
        );
      const { path } = secrets.masterKey;
      if (path && statSync(path).mode & 0o077) throw new Error(`${path} can be read by others. Run: chmod 600 ${path}`);
      return `${key.id}, from the ${secrets.masterKey.from}`;
    });
    await check('leases', () => {
      const caution = cautionOf(read);
      if (caution) throw new Error(`${caution.sentence}. Look first: purser resource reconcile`);
      return 'ended when their time is over';
    });
    await check('clock', () => {
      const ahead = lastJournalAt(read) - Math.floor(Date.now() / 1000);
      if (ahead > CLOCK_SECONDS)
        throw new Error(
          `The clock is ${ahead} s behind the newest entry: no new holds until it has passed. Set the clock.`,
        );
      return 'not behind the journal';
    });
    await check('uncertain operations', () => {
      const [oldest] = uncertainOperations(read, Number.MAX_SAFE_INTEGER);
      const overdue = Math.floor(Date.now() / 1000) - (oldest?.uncertainAt ?? Number.POSITIVE_INFINITY);
      if (overdue > config.router.uncertain.after_seconds + CLOCK_SECONDS)
        throw new Error(
          `${oldest?.id} has waited ${overdue} s for its policy. Is the server running? Else: purser operation resolve`,
        );
      return oldest ? `oldest ${oldest.id}; its policy decides it` : 'none';
    });
    return findInstallation(read)?.installationId;
  } finally {
    client.close();
  }
}

/** Median milliseconds of appending 4 KiB and syncing it. */
function measureFsync(directory: string): number {
  const file = join(directory, `.doctor-${process.pid}`);
  const handle = openSync(file, 'w', 0o600);
  const page = Buffer.alloc(4096);
  try {
    const times = Array.from({ length: FSYNC_COUNT }, () => {
      writeSync(handle, page);
      const start = performance.now();
      fsyncSync(handle);
      return performance.now() - start;
    });
    return times.sort((a, b) => a - b)[FSYNC_COUNT / 2] as number;
  } finally {
    closeSync(handle);
    if (existsSync(file)) rmSync(file);
  }
}

async function tryUpstream(baseUrl: string, apiKey: string | undefined): Promise<string> {
  const { request } = await import('undici');
  try {
    const response = await request(`${baseUrl}/models`, {
      headers: apiKey ? { authorization: `Bearer ${apiKey}` } : {},
      headersTimeout: UPSTREAM_MILLISECONDS,
      bodyTimeout: UPSTREAM_MILLISECONDS,
      signal: AbortSignal.timeout(UPSTREAM_MILLISECONDS),
    });
    await response.body.dump();
    if (response.statusCode === 401 || response.statusCode === 403)
      throw new Error(`${baseUrl} refuses our key (${response.statusCode}). Check its api_key.`);
    return `${baseUrl} answers (GET /models: ${response.statusCode})`;
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    if (message.includes('refuses our key')) throw error;
    throw new Error(`${baseUrl} cannot be reached (${code ?? message}). Check its base_url and that it is running.`);
  }
}
