import assert from 'node:assert/strict';
import { cpSync, existsSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { walletToken } from '../../src/access/keyring.ts';
import { hashToken } from '../../src/access/token.ts';
import { createLog } from '../../src/base/log.ts';
import type { Refusal } from '../../src/base/refusal.ts';
import { readConfig } from '../../src/config/config.ts';
import { accountOf } from '../../src/ledger/account.ts';
import { audit } from '../../src/ledger/audit.ts';
import { currentEpoch } from '../../src/ledger/installation.ts';
import { findWallet, type Wallet } from '../../src/ledger/wallet.ts';
import { type App, openApp } from '../../src/main/app.ts';
import { runCommand } from '../../src/operator/commands.ts';
import { backUp } from '../../src/recovery/backup.ts';
import { replaceLostKey } from '../../src/recovery/lost-key.ts';
import { restore } from '../../src/recovery/restore.ts';
import { hasComponent } from '../helper/component.ts';
import { installation } from '../helper/executable.ts';
import { temporaryDirectory } from '../ledger/books.ts';
import { atEveryMoment, dieAt, momentsOf } from './steps.ts';

const ENV = { PURSER_LISTEN: '127.0.0.1:0' };

/** An installation with a wallet, not running, and a way to work on copies of its directory. */
async function openClosed(t: TestContext) {
  const purser = installation(t, { settings: null, env: ENV });
  const server = await purser.serve();
  const account = (await purser.json('account', 'list')).accounts[0].id as string;
  await purser.json('account', 'credit', account, '1000c');
  const made = await purser.json('wallet', 'create', '--account', account, '--name', 'a', '--budget-cents', '500');
  await server.stop();
  const copies = temporaryDirectory(t);
  const copy = (from = purser.directory) => {
    const to = mkdtempSync(join(copies, 'data-'));
    cpSync(from, to, { recursive: true, preserveTimestamps: true });
    return to;
  };
  return { purser, copy, copies, wallet: { id: made.id as string, token: made.agent_token as string } };
}

/** The purser of a directory, opened in this process for a moment: as the next command would find it. */
async function inside<T>(directory: string, inspect: (app: App) => T | Promise<T>): Promise<T> {
  const config = readConfig({ data: directory }, ENV);
  await using app = await openApp(config, {
    log: createLog('error', [], () => {}),
    who: 'a test',
    create: false,
    fatal: (error) => assert.fail(error as Error),
  });
  assert.equal(app.health.fault, undefined);
  assert.deepEqual(audit(app.ledger.client).problems, []);
  return await inspect(app);
}
const tokenIn = (directory: string, id: string) => inside(directory, (app) => tokenOf(app, id));
const tokenOf = (app: App, id: string) => walletToken(app.keyring, findWallet(app.ledger.read, id) as Wallet);

function restoreIn(directory: string, file: string) {
  const config = readConfig({ data: directory }, ENV);
  return restore(config, { file, force: false });
}

/** Previous keys that a rotation keeps, on purpose. */
const KEPT = 'master.key.before-';
const canTrace = (t: TestContext) => hasComponent(t, 'strace');

test('a rotation of the master key that dies at any step leaves the old key or the new, and every token', async (t) => {
  if (!canTrace(t)) return;
  const { copy, wallet } = await openClosed(t);
  const moments = await momentsOf(['--data', copy(), 'master-key', 'rotate'], ENV);
  const seen = new Set<string>();
  const died = await atEveryMoment(moments, async (moment) => {
    const directory = copy();
    const said = await dieAt(moment, ['--data', directory, 'master-key', 'rotate'], ENV);
    // Whatever the key is now, it can be rotated again, and no copy of one is left in the open.
    await inside(directory, async (app) => {
      assert.equal(tokenOf(app, wallet.id), wallet.token);
      assert.equal(app.keyring.given.id, app.keyring.current.id);
      seen.add(app.keyring.current.id);
      await runCommand(app, 'master-key.rotate', {});
    });
    assert.equal(await tokenIn(directory, wallet.id), wallet.token);
    assert.deepEqual(
      readdirSync(directory).filter((name) => name.startsWith('master.key') && !name.startsWith(KEPT)),
      ['master.key'],
    );
    rmSync(directory, { recursive: true });
    return said;
  });
  t.diagnostic(`${died} kills, each before another change of the disk`);
  assert(seen.size > 2, 'some died before the new key was in force, and some after');
});

test('the replacement of a lost master key that dies at any step can be done again, and gives every wallet a token', async (t) => {
  if (!canTrace(t)) return;
  const { copy, wallet } = await openClosed(t);
  const keyless = () => {
    const directory = copy();
    rmSync(join(directory, 'master.key'));
    return directory;
  };
  const argv = (directory: string) => ['--data', directory, 'master-key', 'replace', '--lost', '--yes'];
  const moments = await momentsOf(argv(keyless()), ENV);
  const outcomes = new Set<string>();
  const died = await atEveryMoment(moments, async (moment) => {
    const directory = keyless();
    const said = await dieAt(moment, argv(directory), ENV);
    const config = readConfig({ data: directory }, ENV);
    const again = await replaceLostKey(config, { apply: true }).catch((error: Refusal) => error.code);
    outcomes.add(typeof again === 'string' ? again : String(again.wallets.length));
    await inside(directory, (app) => {
      const { tokenHash } = findWallet(app.ledger.read, wallet.id) as Wallet;
      assert.notEqual(tokenOf(app, wallet.id), wallet.token);
      assert.deepEqual(hashToken(tokenOf(app, wallet.id)), tokenHash, 'the token that the books know');
    });
    rmSync(directory, { recursive: true });
    return said;
  });
  t.diagnostic(`${died} kills, each before another change of the disk`);
  // Where the new key was in force already, it is not lost.
  assert.deepEqual([...outcomes].sort(), ['1', 'conflict']);
});

test('a backup that dies at any step leaves nothing under its name, or a whole one', async (t) => {
  if (!canTrace(t)) return;
  const { purser, copies, wallet } = await openClosed(t);
  const file = join(copies, 'backup.db');
  const data = ['--data', purser.directory];
  const moments = await momentsOf([...data, 'backup', file], ENV);
  rmSync(file);
  const died = await atEveryMoment(moments, async (moment) => {
    const said = await dieAt(moment, [...data, 'backup', file], ENV);
    if (!existsSync(file)) await backUp(purser.directory, file, '1', 1);
    const directory = mkdtempSync(join(copies, 'new-'));
    cpSync(join(purser.directory, 'master.key'), join(directory, 'master.key'));
    await restoreIn(directory, file);
    assert.equal(await tokenIn(directory, wallet.id), wallet.token);
    rmSync(directory, { recursive: true });
    rmSync(file);
    rmSync(`${file}.part`, { force: true }); // Its other name, where it died between getting the one and losing the other.
    assert.deepEqual(
      readdirSync(copies).filter((name) => name.startsWith('backup')),
      [],
    );
    return said;
  });
  t.diagnostic(`${died} kills, each before another change of the disk`);
});

test('a restore that dies at any step leaves the books of before or those of the backup, and both can be served', async (t) => {
  if (!canTrace(t)) return;
  const { purser, copy, copies, wallet } = await openClosed(t);
  const file = join(copies, 'backup.db');
  await purser.json('backup', file);
  const account = (await purser.json('account', 'list')).accounts[0].id as string;
  await purser.json('account', 'credit', account, '77c'); // Known here, and not in the backup.
  const moments = await momentsOf(['--data', copy(), 'restore', file], ENV);
  const seen = { before: 0, after: 0 };
  const died = await atEveryMoment(moments, async (moment) => {
    const directory = copy();
    const said = await dieAt(moment, ['--data', directory, 'restore', file], ENV);
    const epoch = await inside(directory, (app) => {
      assert.equal(tokenOf(app, wallet.id), wallet.token);
      const { number } = currentEpoch(app.ledger.read);
      assert.deepEqual(
        [number, accountOf(app.ledger.read, account).availableCents],
        number === 1 ? [1, 577] : [2, 500],
      );
      return number;
    });
    seen[epoch === 1 ? 'before' : 'after']++;
    if (epoch === 1) assert.equal((await restoreIn(directory, file)).head.epoch, 2);
    const left = readdirSync(directory).filter((name) => name.includes('restored'));
    assert.deepEqual(left, [], 'the next restore has tidied');
    rmSync(directory, { recursive: true });
    return said;
  });
  t.diagnostic(`${died} kills, each before another change of the disk`);
  assert(seen.before && seen.after, JSON.stringify(seen));
});
