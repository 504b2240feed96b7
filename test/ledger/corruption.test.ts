import assert from 'node:assert/strict';
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'node:test';
import Client from 'better-sqlite3';
import { createLog } from '../../src/base/log.ts';
import { auditFiles } from '../../src/books/examine.ts';
import { readConfig } from '../../src/config/config.ts';
import { files } from '../../src/files/data-directory.ts';
import { openApp } from '../../src/main/app.ts';
import { createRandom, length, type Random, SEED } from '../helper/random.ts';
import { makeReserve } from '../helper/server.ts';
import { NOTES, openStory } from './story.ts';

const DAMAGES = length(20, 120);

type Damage = { what: string; apply(directory: string): void };

/** A bit turned, a file cut short, or a sector lost: somewhere in one of the files. */
function drawDamage(random: Random, directory: string, names: readonly string[]): Damage {
  const file = random.weighted({ 'purser.db': 70, 'purser.db-wal': 20, 'ledger.head': 5, 'ledger.tip': 5 });
  if (!names.includes(file)) return drawDamage(random, directory, names);
  const bytes = readFileSync(join(directory, file));
  const at = random.whole(0, bytes.length - 1);
  const kind = random.weighted({ bit: 80, cut: 12, sector: 8 });
  const what = `${kind} at ${at} of ${file} (${bytes.length} bytes)`;
  const sector = at - (at % 512);
  if (kind === 'bit') bytes[at] = (bytes[at] as number) ^ (1 << random.whole(0, 7));
  else if (kind === 'sector') bytes.fill(0, sector, Math.min(sector + 512, bytes.length));
  const left = kind === 'cut' ? bytes.subarray(0, at) : bytes;
  return { what, apply: (to) => writeFileSync(join(to, file), left) };
}

/** Every row that somebody was told of, read table by table; what cannot be read is a row that changed. */
function rowsOf(directory: string): string {
  const client = new Client(files(directory).database);
  client.defaultSafeIntegers(true);
  try {
    const tables = client.prepare(`select name from sqlite_schema where type = 'table' order by name`).pluck().all();
    const rows = (tables as string[]).map((name) => [
      name,
      (
        client.prepare(`select rowid, * from ${name} not indexed order by rowid`).all() as Record<string, unknown>[]
      ).map((row) => ({ ...row, ...Object.fromEntries((NOTES[name] ?? []).map((note) => [note, null])) })),
    ]);
    return JSON.stringify(rows, (_, value) => (typeof value === 'bigint' ? `${value}n` : value));
  } catch (error) {
    return `unreadable: ${(error as Error).message}`;
  } finally {
    client.close();
  }
}

/** Why a start would not serve this, if it would not. */
async function startFault(directory: string): Promise<string | undefined> {
  const config = readConfig({ data: directory }, {});
  try {
    await using app = await openApp(config, {
      log: createLog('error', [], () => {}),
      who: 'a test',
      create: true,
      writesHere: true, // Starting a thread from source takes longer than the start that is tested.
      fatal: (error) => {
        throw error;
      },
    });
    return app.health.fault;
  } catch (error) {
    return (error as Error).message;
  }
}

async function verifyFault(directory: string): Promise<string | undefined> {
  try {
    return (await auditFiles(files(directory))).problems[0];
  } catch (error) {
    return (error as Error).message;
  }
}

test(`of ${DAMAGES} random damages every one that changes an acknowledged row is seen (seed ${SEED})`, async (t) => {
  const random = createRandom(SEED);
  const story = await openStory(t);
  const scratch = mkdtempSync(join(tmpdir(), 'purser-scratch-'));
  t.after(() => rmSync(scratch, { recursive: true, force: true }));
  const damaged = (from: string, damage?: Damage) => {
    const to = mkdtempSync(join(scratch, 'damaged-'));
    cpSync(from, to, { recursive: true });
    makeReserve(to);
    damage?.apply(to);
    return to;
  };
  const truth = { killed: rowsOf(damaged(story.killed)), closed: rowsOf(damaged(story.closed)) };
  for (const from of Object.values(story)) {
    assert.equal(await verifyFault(damaged(from)), undefined);
    assert.equal(await startFault(damaged(from)), undefined);
  }

  const seen = { start: 0, verify: 0 };
  const count = { changed: 0, undetected: 0, reported: 0, harmless: 0 };
  const undetected: string[] = [];
  for (let i = 0; i < DAMAGES; i++) {
    const state = random.pick(['killed', 'closed'] as const);
    const names =
      state === 'killed'
        ? ['purser.db', 'purser.db-wal', 'ledger.head', 'ledger.tip']
        : ['purser.db', 'ledger.head', 'ledger.tip'];
    const damage = drawDamage(random, story[state], names);
    const copies = Array.from({ length: 3 }, () => damaged(story[state], damage)) as [string, string, string];
    const isChanged = rowsOf(copies[0]) !== truth[state];
    const [start, verify] = [await startFault(copies[1]), await verifyFault(copies[2])];
    for (const copy of copies) rmSync(copy, { recursive: true });
    if (!isChanged) {
      if (start ?? verify) count.reported++;
      else count.harmless++;
      continue;
    }
    count.changed++;
    if (start) seen.start++;
    if (verify) seen.verify++;
    if (start && verify) continue;
    count.undetected++;
    undetected.push(`${state}: ${damage.what}: start ${start}, verify ${verify}`);
  }
  t.diagnostic(
    `${DAMAGES} damages: ${count.changed} changed a row that was acknowledged (seen by the start ${seen.start}, by ledger verify ${seen.verify}), ${count.reported} did not and are reported, ${count.harmless} met nothing that is used`,
  );
  assert.deepEqual(undetected, []);
});
