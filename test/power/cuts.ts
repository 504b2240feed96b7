import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join, relative } from 'node:path';
import type { TestContext } from 'node:test';
import { createLog } from '../../src/base/log.ts';
import { readConfig } from '../../src/config/config.ts';
import { headOf } from '../../src/ledger/head.ts';
import { installationOf } from '../../src/ledger/installation.ts';
import { verifyLedger } from '../../src/ledger/verify.ts';
import { type App, openApp } from '../../src/main/app.ts';
import { length } from '../helper/random.ts';
import { until } from '../helper/waiting.ts';
import type { Image, Luck } from './disk.ts';

export const CUTS = length(10, 40);
/** What becomes of the changes that were not synced, on the disks that one cut may leave. */
export const LUCKS: readonly Luck[] = ['none', 'some', 'some'];

/** What is on a disk on which everything has been synced. */
export function imageOf(directory: string): Image {
  const names = readdirSync(directory, { recursive: true, encoding: 'utf8' }).map((name) => join(directory, name));
  return new Map(names.filter((it) => statSync(it).isFile()).map((it) => [it, readFileSync(it)]));
}

/** Lays an image down in a directory of its own. What was shared memory is garbage after a cut, or nothing. */
export function layDown(t: Pick<TestContext, 'after'>, from: string, image: Image, random: () => number): string {
  const directory = mkdtempSync(join(tmpdir(), 'purser-cut-'));
  t.after(() => rmSync(directory, { recursive: true, force: true }));
  for (const [path, bytes] of image) {
    const to = join(directory, relative(from, path));
    mkdirSync(dirname(to), { recursive: true, mode: 0o700 });
    const isShared = path.endsWith('-shm');
    writeFileSync(to, isShared ? Buffer.from(bytes).fill(Math.floor(random() * 256)) : bytes, { mode: 0o600 });
  }
  return directory;
}

/** Opens a directory as `serve` opens it. */
export function reopen(directory: string): Promise<App> {
  const config = readConfig({ data: directory }, {});
  const fatal = (error: unknown) => {
    throw error;
  };
  return openApp(config, { log: createLog('silent'), who: 'a test', create: true, fatal });
}

/** Which installation this directory is, and what is wrong with it. */
export async function identify(directory: string) {
  await using app = await reopen(directory);
  const { installationId: id } = installationOf(app.ledger.read);
  const { seq, epoch } = headOf(app.ledger.read);
  return { id, seq, epoch, fault: app.health.fault, problems: verifyLedger(app.ledger.client).problems };
}

/** Resolves when the trace has everything that process `pid` did, up to its `end`. */
export async function isWritten(trace: string, pid: number | undefined, end: string): Promise<void> {
  const last = new RegExp(`^${pid} +\\+{3} ${end}`, 'm');
  await until('the trace is written', () => last.test(readFileSync(trace, 'latin1').slice(-10_000)));
}
