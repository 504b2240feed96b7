import assert from 'node:assert/strict';
import { cpSync, mkdtempSync, readdirSync, rmSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { build } from 'esbuild';
import { openDatabase } from '../../src/db/open.ts';
import { files } from '../../src/files/data-directory.ts';
import { audit } from '../../src/ledger/audit.ts';
import { atEveryMoment, dieAt, momentsOf } from '../executable/steps.ts';
import { hasComponent } from '../helper/component.ts';
import { temporaryDirectory } from '../ledger/books.ts';
import { FIXTURES, layDirectory, query, rowsOf } from './upgrade-shared.ts';

/** The way of the oldest goes through every migration of the others. */
const OLDEST = FIXTURES.sort()[0] as string;

/** The child in one file: from its sources it takes ten times as long to start, and it is started some fifty times. */
async function bundle(directory: string): Promise<string> {
  const outfile = join(directory, 'migrate-child.mjs');
  await build({
    entryPoints: [join(import.meta.dirname, 'migrate-child.ts')],
    outfile,
    bundle: true,
    platform: 'node',
    format: 'esm',
    external: ['better-sqlite3'],
    define: { 'import.meta.url': JSON.stringify(new URL('../../src/files/asset.ts', import.meta.url).href) },
  });
  symlinkSync(join(import.meta.dirname, '../../node_modules'), join(directory, 'node_modules'));
  return outfile;
}

test(`a start that dies while it brings ${OLDEST} up to date leaves before or after`, async (t) => {
  if (!hasComponent(t, 'strace')) return;
  const { directory } = layDirectory(t, OLDEST);
  const copies = temporaryDirectory(t);
  const copy = () => {
    const to = mkdtempSync(join(copies, 'data-'));
    cpSync(directory, to, { recursive: true });
    return to;
  };
  const [columns, before] = query(files(directory).database, (client) => rowsOf(client));
  const program = await bundle(temporaryDirectory(t));
  const start = (to: string) => [program, files(to).database];
  const moments = await momentsOf(start(copy()), {}, process.execPath);
  const died = await atEveryMoment(moments, async (moment) => {
    const to = copy();
    const said = await dieAt(moment, start(to), {}, process.execPath);
    const { client } = openDatabase(files(to).database, { migrate: true }); // The next start needs nobody's help.
    assert.equal(rowsOf(client, columns)[1], before);
    assert.deepEqual(audit(client).problems, []);
    client.close();
    assert.deepEqual(
      readdirSync(to).filter((name) => name.endsWith('.part')),
      [],
    );
    rmSync(to, { recursive: true });
    return said;
  });
  t.diagnostic(`${died} kills while ${OLDEST} was brought up to date`);
});
