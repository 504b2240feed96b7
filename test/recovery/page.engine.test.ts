import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { copyFileSync, mkdirSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { delimiter, dirname, join } from 'node:path';
import test from 'node:test';
import { files } from '../../src/files/data-directory.ts';
import { openWallClock } from '../../torture/site.ts';
import { EXECUTABLE, installation } from '../helper/executable.ts';
import { until } from '../helper/waiting.ts';
import { temporaryDirectory } from '../ledger/books.ts';
import { end, litestreamFor, startBeside } from './litestream.ts';

// docs/recovery.md is what is tested here: its blocks are run as they are printed and in their order, in a world where the
// places that they name are directories of the test.

const DOCS = join(import.meta.dirname, '../../docs');

type Block = { heading: string; code: string };

function readBlocks(): Block[] {
  let heading = '';
  const blocks: Block[] = [];
  const page = readFileSync(join(DOCS, 'recovery.md'), 'utf8');
  for (const [, title, code] of page.matchAll(/^## (.+)$|^```\w*\n([\s\S]*?)^```$/gm))
    if (title) heading = title;
    else blocks.push({ heading, code: code as string });
  return blocks;
}

test('every command of the page of recovery does what the page says', async (t) => {
  const litestream = litestreamFor(t);
  if (!litestream) return;
  const purser = installation(t, { settings: null, env: { PURSER_LISTEN: '127.0.0.1:0' } });
  const work = temporaryDirectory(t);
  const backups = join(work, 'backups');
  const bin = join(work, 'bin');
  const masterKey = join(work, 'master.key');
  for (const directory of [backups, bin]) mkdirSync(directory);
  symlinkSync(litestream, join(bin, 'litestream'));
  const env = { PATH: [bin, dirname(EXECUTABLE), process.env.PATH].join(delimiter), PURSER_DATA: purser.directory };
  const replica = `file://${work}/replica`;
  let backup = '';
  const placed = (code: string) =>
    code
      .replaceAll('/mnt/backups/purser-2026-11-21.db', backup || '/nowhere')
      .replaceAll('/mnt/backups', backups)
      .replaceAll('/var/lib/purser/purser.db', files(purser.directory).database)
      .replaceAll('s3://bucket/purser', replica)
      .replaceAll('/root/keys/master.key', masterKey)
      .replaceAll('restore-drill.sh', join(DOCS, 'restore-drill.sh'))
      .replaceAll('replica.db', join(work, 'replica.db'));
  const blocks = readBlocks();
  /** The next block, which has to stand under that heading. */
  const next = (heading: string) => {
    const block = blocks.shift();
    assert.equal(block?.heading, heading);
    return placed((block as Block).code);
  };
  const run = (code: string) =>
    new Promise<{ stdout: string; stderr: string }>((resolve, reject) =>
      execFile('sh', ['-euc', code], { env }, (error, stdout, stderr) =>
        error ? reject(new Error(`${code}\n${stdout}${stderr}`)) : resolve({ stdout, stderr }),
      ),
    );

  let server = await purser.serve();
  const account = (await purser.json('account', 'list')).accounts[0].id as string;
  await purser.json('account', 'credit', account, '500c');
  copyFileSync(join(purser.directory, 'master.key'), masterKey);
  const shown = RegExp(`^${account} +default +5\\.00 `, 'm');

  const made = await run(next('Backup'));
  const [name, ...rest] = readdirSync(backups);
  assert.match(name ?? '', /^purser-\d{4}-\d\d-\d\d\.db$/);
  assert.deepEqual(rest, []);
  backup = join(backups, name as string);
  assert.match(made.stdout, /^installation_id +inst_/m);
  await purser.json('account', 'credit', account, '77c'); // Known here, and not in the backup.

  await server.stop();
  const restored = await run(next('Restore'));
  assert.match(
    restored.stderr,
    /The database that was here is .*before-restore-.*\nEntries \d+ to \d+ were known here/,
  );
  assert.match((await run('purser account list')).stdout, shown);
  const reconciled = await run(next('Restore'));
  assert.match(reconciled.stdout, /only reports: the books were restored from a backup of [\s\S]*That is over\./);

  writeFileSync(join(purser.directory, 'purser.yaml'), next('Scheduled backups'));
  const scheduled = join(backups, 'purser');
  mkdirSync(scheduled);
  server = await purser.serve();
  await until('the server has made a backup by itself', async () =>
    readdirSync(scheduled).some((it) => it.endsWith('.db')),
  );
  const beside = startBeside(t, ['sh', '-c', `exec ${next('Litestream').trim()}`], { ...process.env, ...env });
  const copy = join(work, 'looked-at.db');
  await until('the replica can be restored', () =>
    run(`rm -f ${copy} && litestream restore -o ${copy} ${replica}`).then(
      () => true,
      () => false,
    ),
  );
  await purser.json('account', 'credit', account, '100c');
  await server.stop();
  await end(beside);
  assert.match((await run(next('Litestream'))).stderr, /The database that was here is/);
  assert.match((await run('purser account list')).stdout, RegExp(`^${account} +default +6\\.00 `, 'm'));

  const drilled = await run(next('The drill'));
  assert.match(drilled.stdout, shown, 'of the backup');
  assert.match(drilled.stdout, RegExp(`^${account} +default +6\\.00 `, 'm'), 'of the replica');

  const before = readFileSync(masterKey, 'utf8');
  const rotated = await run(next('Rotating the master key'));
  assert.match(rotated.stdout, /^previous_master_key_id +mk_/m);
  assert.notEqual(readFileSync(join(purser.directory, 'master.key'), 'utf8'), before);
  const [kept] = readdirSync(purser.directory).filter((it) => it.startsWith('master.key.before-'));
  assert.match(rotated.stderr, RegExp(`kept in .*/${kept}`));

  rmSync(join(purser.directory, 'master.key'));
  const replaced = await run(next('A lost master key'));
  assert.match(replaced.stdout, /^Open wallets, .*: 0$/m);
  assert.match(replaced.stderr, /^Nothing was changed\.\n[\s\S]*The master key is mk_\w+ now/m);

  const clock = openWallClock(t, work);
  if (!clock) return;
  await (await purser.serve()).stop();
  clock.leap(10 * 86_400);
  const accepted = startBeside(t, ['sh', '-c', `exec ${next('A wrong clock').trim()}`], {
    ...process.env,
    ...env,
    ...clock.env,
    PATH: `${clock.env.PATH}:${env.PATH}`,
    PURSER_LISTEN: '127.0.0.1:0',
  });
  await until('the clock is accepted', async () => (await purser.json('status')).ready);
  await end(accepted);
  // Debian has to be booted for this one: what it does is tested there, by test/service/upgrade.soak.test.ts.
  assert.match(next('Upgrades'), /^purser upgrade \/root\/release\/purser-[\d.]+-linux-x64\n$/);
  assert.deepEqual(blocks, [], 'no block of the page is left');
  assert.deepEqual((await purser.json('ledger', 'verify')).problems, []);
});
