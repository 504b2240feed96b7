import { existsSync, readdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import type { Clock } from '../base/clock.ts';
import { contained } from '../base/fault.ts';
import { parseJson } from '../base/parse-json.ts';
import { Refusal } from '../base/refusal.ts';
import type { Config } from '../config/config.ts';
import { connect } from '../db/addon.ts';
import { runOwn } from '../files/own-command.ts';
import { reportOnlyOf } from '../ledger/installation.ts';
import type { Ledger } from '../ledger/ledger.ts';
import type { Events } from '../telemetry/events.ts';
import { readManifest } from './manifest.ts';

/** Interval of the check whether a backup is due. */
const CHECK_MILLISECONDS = 10_000;
/** Seconds after which a backup that failed is tried again, or sooner where `every` is shorter. */
const RETRY_SECONDS = 300;
const OUTPUT_BYTES_MAX = 1024 * 1024;

type BackupsApp = {
  /** `backup` may change while the server runs. */
  readonly config: Pick<Config, 'backup'>;
  clock: Pick<Clock, 'now'>;
  events: Pick<Events, 'backupMade' | 'backupFailed' | 'gauge'>;
  installationId: string;
  ledger: Pick<Ledger, 'read'>;
};
/** The outcome of a backup. */
type BackupOutcome = { file: string } | { error: Error };
/** Makes one backup. The signal aborts it. Throws the reason when none was made. */
type MakeBackup = (file: string, signal: AbortSignal) => Promise<void>;

type Backups = {
  start(): void;
  /** Ends a backup that is being made. */
  stop(): Promise<void>;
  /**
   * Makes a backup whether one is due or not, after one that is being made, and returns its file. It replaces no planned backup,
   * and is never removed. Throws `conflict` with the reason why there is none.
   */
  makeNow(): Promise<string>;
  /** Makes a backup if one is due and none is being made, and removes those beyond `keep`. Never throws. */
  runOnce(): Promise<void>;
};

const nameOf = (installationId: string) =>
  new RegExp(
    `^purser-${installationId}-(\\d{4})(\\d\\d)(\\d\\d)T(\\d\\d)(\\d\\d)(\\d\\d)Z(-manual(-\\d+)?)?\\.db(\\.part.*)?$`,
  );
/** The end of the names of the planned ones. Those that an operator asked for have another. */
const PLANNED = /Z\.db$/;

const pathOf = (directory: string, installationId: string, now: number, ending = '') => {
  const time = new Date(now * 1000).toISOString().replace(/[-:]|\.\d+/g, '');
  return join(directory, `purser-${installationId}-${time}${ending}.db`);
};

/** Returns a path for a backup that an operator asked for; several of the same second are numbered. */
function manualPath(directory: string, installationId: string, now: number): string {
  for (let count = 1; ; count++) {
    const file = pathOf(directory, installationId, now, count === 1 ? '-manual' : `-manual-${count}`);
    if (!existsSync(file)) return file;
  }
}

/**
 * Returns the finished planned backups of an installation by the times in their names, oldest first. Those with a future time,
 * after the clock went back, come first: their age is unknown. Throws when the directory cannot be read.
 */
function backupsIn(directory: string, installationId: string, now: number): { file: string; at: number }[] {
  const name = nameOf(installationId);
  const all = readdirSync(directory)
    .filter((it) => name.test(it) && PLANNED.test(it))
    .sort()
    .map((file) => {
      const [, year, month, day, hour, minute, second] = name.exec(file) ?? [];
      return { file, at: Date.parse(`${year}-${month}-${day}T${hour}:${minute}:${second}Z`) / 1000 };
    });
  return [...all.filter((it) => it.at > now), ...all.filter((it) => it.at <= now)];
}

/**
 * Returns the Unix seconds of the newest planned backup of an installation without a time in the future. Throws when the directory
 * cannot be read.
 */
export function newestBackup(directory: string, installationId: string, now: number): number | undefined {
  const at = backupsIn(directory, installationId, now).at(-1)?.at;
  return at !== undefined && at <= now ? at : undefined;
}

/** Knows the time of the newest planned backup, and shows its age as a gauge. */
function watchNewest(app: BackupsApp) {
  let newest: { directory: string; at: number | undefined } | undefined;
  function lookUp(directory: string, now: number): number | undefined {
    try {
      return newestBackup(directory, app.installationId, now);
    } catch {
      return undefined; // The next backup reports the fault of the directory.
    }
  }
  /** Returns the result of `newestBackup`, looked up once, and again after the clock went back. */
  function find(directory: string, now: number): number | undefined {
    if (newest?.directory !== directory || (newest.at ?? 0) > now) newest = { directory, at: lookUp(directory, now) };
    return newest.at;
  }
  app.events.gauge('backup_age_seconds', 'Since the newest backup of `backup`; +Inf when there is none.', () => {
    if (!app.config.backup) return undefined;
    const now = app.clock.now();
    const at = find(app.config.backup.directory, now);
    return at === undefined ? Number.POSITIVE_INFINITY : now - at;
  });
  app.events.gauge('backup_every_seconds', '`backup.every`.', () => app.config.backup?.every);
  return {
    find,
    /** Notes the time of a backup that was made a moment ago. */
    note(directory: string, at: number) {
      newest = { directory, at };
    },
  };
}

/**
 * Creates the server's own backups (`backup` in purser.yaml). One is due `every` after the newest in the directory, also across
 * restarts. A failure is logged once, until one succeeds. Only files with the name and the manifest of a backup of this
 * installation are removed, and only after a new one was made; what one that was killed has left goes before. A server that only
 * reports removes none: another one of the same installation may run, and write to the same directory.
 */
export function createBackups(app: BackupsApp, make: MakeBackup): Backups {
  const ending = new AbortController();
  let timer: NodeJS.Timeout | undefined;
  let running: Promise<BackupOutcome> | undefined;
  let failedAt: number | undefined;
  const newest = watchNewest(app);

  function begin(making: Promise<BackupOutcome>): Promise<BackupOutcome> {
    running = making.finally(() => {
      running = undefined;
    });
    return running;
  }
  /** Makes a backup, with the room that one which was killed has left filled. */
  async function makeIn(directory: string, file: string): Promise<void> {
    if (!reportOnlyOf(app.ledger.read)) removeUnfinished(directory, app.installationId);
    await make(file, ending.signal);
  }
  async function backUpByHand(directory: string, now: number): Promise<BackupOutcome> {
    try {
      const file = manualPath(directory, app.installationId, now);
      await makeIn(directory, file);
      app.events.backupMade(file, []);
      return { file };
    } catch (error) {
      return { error: error as Error };
    }
  }
  async function backUp({ directory, keep }: NonNullable<Config['backup']>, now: number): Promise<BackupOutcome> {
    try {
      const file = pathOf(directory, app.installationId, now);
      await makeIn(directory, file);
      newest.note(directory, now);
      const removed = reportOnlyOf(app.ledger.read) ? [] : removeOutdated(directory, keep, app.installationId, now);
      app.events.backupMade(file, removed);
      failedAt = undefined;
      return { file };
    } catch (error) {
      if (ending.signal.aborted) return { error: new Error('the server is stopping') };
      app.events.backupFailed(error, failedAt === undefined);
      failedAt = now;
      return { error: error as Error };
    }
  }

  async function runOnce() {
    const { backup } = app.config;
    if (running) return void (await running);
    if (!backup || ending.signal.aborted) return;
    const now = app.clock.now();
    if (isDue(backup.every, { madeAt: newest.find(backup.directory, now), failedAt, now }))
      await begin(backUp(backup, now));
  }

  return {
    async makeNow() {
      while (running) await running;
      const { backup } = app.config;
      if (ending.signal.aborted) throw new Refusal('conflict', 'No backup was made: the server is stopping.');
      if (!backup) throw new Refusal('conflict', NO_DIRECTORY);
      const made = await begin(backUpByHand(backup.directory, app.clock.now()));
      if ('file' in made) return made.file;
      throw new Refusal('conflict', `No backup was made: ${made.error.message}`, { cause: made.error });
    },
    runOnce,
    start() {
      const check = contained('timer', runOnce);
      check();
      timer = setInterval(check, CHECK_MILLISECONDS);
      timer.unref();
    },
    async stop() {
      clearInterval(timer);
      ending.abort();
      await running;
    },
  };
}

const NO_DIRECTORY = 'No directory for backups is set: set `backup` in purser.yaml, or run `purser backup FILE`.';

/** Returns whether a planned backup is to be made now: the newest is old enough, and none failed a short while ago. */
function isDue(
  every: number,
  { madeAt, failedAt, now }: { madeAt: number | undefined; failedAt: number | undefined; now: number },
): boolean {
  if (failedAt !== undefined && now < failedAt + Math.min(RETRY_SECONDS, every)) return false;
  return madeAt === undefined || now >= madeAt + every;
}

/** Returns whether a file is a backup of this installation. False if it cannot be read: it is then not removed. */
function isOurs(file: string, installationId: string): boolean {
  try {
    const client = connect(file, { readonly: true });
    try {
      return readManifest(client)?.installation_id === installationId;
    } finally {
      client.close();
    }
  } catch {
    return false;
  }
}

/** Removes the remains of unfinished backups: only one is made at a time, so each was left by one that was killed. */
function removeUnfinished(directory: string, installationId: string): void {
  const name = nameOf(installationId);
  try {
    for (const it of readdirSync(directory))
      if (name.test(it) && it.includes('.db.part')) rmSync(join(directory, it), { force: true });
  } catch {} // The backup that is made now reports the fault of the directory.
}

/** Removes the backups beyond the newest `keep`. Returns the removed ones. */
function removeOutdated(directory: string, keep: number, installationId: string, now: number): string[] {
  const outdated = backupsIn(directory, installationId, now)
    .slice(0, -keep)
    .map((it) => join(directory, it.file))
    .filter((it) => isOurs(it, installationId));
  for (const it of outdated) rmSync(it);
  return outdated;
}

/** Makes backups with `purser backup` in a process of its own, because a copy blocks the thread that makes it. */
export function runBackup(dataDirectory: string): MakeBackup {
  return async (file, signal) => {
    const args = ['--data', dataDirectory, '--json', 'backup', file];
    const { error, stdout } = await runOwn(args, { env: {}, signal, maxBuffer: OUTPUT_BYTES_MAX });
    if (error) throw new Error(messageIn(stdout) ?? error.message, { cause: error });
  };
}

function messageIn(stdout: string): string | undefined {
  try {
    return (parseJson(stdout) as { error?: { message?: string } }).error?.message;
  } catch {
    return undefined;
  }
}
