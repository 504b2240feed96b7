import assert from 'node:assert/strict';
import {
  chmodSync,
  copyFileSync,
  cpSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { basename, dirname, join } from 'node:path';
import test, { type TestContext } from 'node:test';
import Client from 'better-sqlite3';
import { getTableColumns, getTableName, is } from 'drizzle-orm';
import { SQLiteTable } from 'drizzle-orm/sqlite-core';
import { generateMasterKey } from '../../src/access/master-key.ts';
import { auditFiles } from '../../src/books/examine.ts';
import { readConfig } from '../../src/config/config.ts';
import { takeLock } from '../../src/db/lock.ts';
import { openDatabase } from '../../src/db/open.ts';
import * as schema from '../../src/db/schema.ts';
import { files, LockedError } from '../../src/files/data-directory.ts';
import { findAccount, setDisputed } from '../../src/ledger/account.ts';
import { currentEpoch, reportOnlyOf } from '../../src/ledger/installation.ts';
import { keepOf } from '../../src/ledger/keep.ts';
import { changeResource, findResource } from '../../src/ledger/resource.ts';
import { backUp } from '../../src/recovery/backup.ts';
import { type Restored, restore } from '../../src/recovery/restore.ts';
import { readRestrictions } from '../../src/recovery/restrictions.ts';
import { endSpending } from '../../src/wallet/close.ts';
import { layFixture } from '../fixtures/dump.ts';
import { writeWith } from '../helper/closures.ts';
import { freePort } from '../helper/free-port.ts';
import { openGateway } from '../helper/gateway.ts';
import { createRandom, length, SEED } from '../helper/random.ts';
import { handClock, openTestServer, type TestServer } from '../helper/server.ts';
import { childOf } from '../helper/tenants.ts';
import { openKept } from '../lease/keep-shared.ts';
import { temporaryDirectory } from '../ledger/books.ts';
import { openAuthenticator } from '../ui/authenticator.ts';
import { at, byLink, here, make, signIn } from '../ui/passkeys-shared.ts';

const DAY = 86_400;

/** What `purser restore` does in a data directory, without what it prints. */
function restoreIn(directory: string, file: string, options: { force?: boolean; env?: Record<string, string> } = {}) {
  const config = readConfig({ data: directory }, options.env ?? {});
  return restore(config, { file, force: options.force ?? false });
}

/** A purser with a backup of its first half, still open. */
async function openBackedUp(t: TestContext) {
  const purser = await openTestServer(t);
  const early = await purser.openWallet({ name: 'early' });
  await purser.chat(early.token);
  const file = join(temporaryDirectory(t), 'backup.db');
  const backup = await backUp(purser.directory, file, '1.2.3', 1_790_000_000);
  const late = await purser.openWallet({ name: 'late' });
  await purser.chat(early.token);
  return { purser, early, late, file, backup };
}

const statusOf = async (purser: TestServer, token: string) => (await purser.ask('GET', '/v1/budget', { token })).status;
const conflict = (message: RegExp) => ({ code: 'conflict', message });

test('the restored books are those of the backup, in a new epoch, and the others are kept', async (t) => {
  const { purser, early, late, file, backup } = await openBackedUp(t);
  const known = (await purser.run('ledger.head', {})).seq;
  await purser.close();
  const restored = await restoreIn(purser.directory, file);
  const { database, head } = files(purser.directory);
  const kept = restored.kept as string;
  const { file: _, bytes: __, ...manifest } = backup;
  assert.deepEqual(restored, {
    file,
    manifest,
    installation_id: purser.app.installationId,
    head: { ...backup.head, epoch: 2 },
    kept,
    lost_to_seq: known,
    carried_over: {
      revoked_keys: 0,
      suspended_accounts: 0,
      frozen_wallets: 0,
      ended_orders: 0,
      narrowed_leases: 0,
      frozen_installation: false,
    },
  } satisfies Restored);
  assert.match(basename(kept), /^purser\.db\.before-restore-\d{8}T\d{6}Z$/);
  assert.equal(readFileSync(head, 'utf8').split(' ')[2], '2');
  assert.deepEqual(
    readdirSync(purser.directory)
      .filter((name) => /^purser\.db/.test(name))
      .sort(),
    ['purser.db', basename(kept)],
  );
  assert.deepEqual((await auditFiles(files(purser.directory))).problems, []);

  await purser.reopen();
  assert.equal((await purser.ask('GET', '/readyz')).status, 200);
  assert.equal((await purser.chat(early.token)).status, 200);
  assert.equal(await statusOf(purser, late.token), 401, 'nobody knows it here');
  assert.match(reportOnlyOf(purser.app.ledger.read)?.reason ?? '', /restored from a backup of 2026-09-2/);
  assert.deepEqual(purser.problems(), []);

  // The way back is the file that was kept.
  await purser.close();
  const back = join(temporaryDirectory(t), 'back.db');
  copyFileSync(kept, back);
  const undone = await restoreIn(purser.directory, back, { force: true });
  assert.equal(undone.head.epoch, 3);
  await purser.reopen();
  assert.equal(await statusOf(purser, late.token), 200);
  assert.equal(existsSync(database), true);
});

test('what was revoked, suspended, frozen or closed since the backup stays stopped in the restored books', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  const { id: closedId, token: closed } = await purser.openWallet({ name: 'closed later' });
  const { id: frozenId } = await purser.openWallet({ name: 'frozen later' });
  const { id: openId, token: open } = await purser.openWallet({ name: 'left alone' });
  const other = await purser.run('account.create', { name: 'other' });
  const { id: keyId, key } = await purser.run('key.create', { account: purser.accountId, name: 'leaked' });
  const operatorKey = await purser.run('operator-key.mint', { name: 'leaked' });
  const file = join(temporaryDirectory(t), 'backup.db');
  await backUp(purser.directory, file, '1.2.3', 1_790_000_000);

  const [gatewayKey] = (await purser.run('wallet.gateway-keys', { id: gateway.walletId })).keys;
  for (const id of [keyId, gatewayKey?.id as string]) await purser.run('key.revoke', { id });
  await purser.run('operator-key.revoke', { id: operatorKey.id });
  await purser.run('account.suspend', { id: other.id });
  await purser.run('wallet.freeze', { id: frozenId, reason: 'it loops' });
  await purser.run('wallet.close', { id: closedId });
  await purser.run('freeze', { reason: 'we are attacked' });
  await purser.close();
  const { carried_over } = await restoreIn(purser.directory, file);
  assert.deepEqual(carried_over, {
    revoked_keys: 3,
    suspended_accounts: 1,
    frozen_wallets: 2,
    ended_orders: 0,
    narrowed_leases: 0,
    frozen_installation: true,
  } satisfies Restored['carried_over']);
  assert.deepEqual((await auditFiles(files(purser.directory))).problems, []);

  await purser.reopen();
  assert.match(
    (await purser.run('status', {})).frozen.sentence ?? '',
    /frozen since .* \(we are attacked\), 1 account is suspended, 2 wallets/,
  );
  assert.equal((await purser.chat(open)).body.error.code, 'read_only');
  await purser.run('unfreeze', {});
  assert.equal((await purser.ask('GET', '/v1/wallets', { token: key })).status, 401);
  assert.equal((await gateway.chat()).status, 401);
  assert.equal((await purser.chat(closed)).body.error.code, 'wallet_frozen');
  assert.equal((await purser.run('wallet.show', { id: frozenId })).freeze_reason, 'it loops');
  assert.match((await purser.run('wallet.show', { id: closedId })).freeze_reason ?? '', /had ended in the books/);
  assert.equal((await purser.chat(open)).status, 200, openId);
  assert.deepEqual(purser.problems(), []);

  await purser.close();
  writeFileSync(files(purser.directory).database, 'these are no books');
  assert.equal((await restoreIn(purser.directory, file)).carried_over, null, 'nobody knows what they stopped');
});

test('a passkey that was removed since the backup signs nobody in, nor does a copy of one that was used since', async (t) => {
  // A passkey signs in at the address where it was made.
  const purser = await openTestServer(t, { settings: { listen: `127.0.0.1:${await freePort()}` } });
  const operator = await byLink(purser);
  const [lost, used] = [openAuthenticator(here(purser)), openAuthenticator(here(purser))];
  for (const [name, it] of Object.entries({ lost, used }))
    assert.equal((await make(operator, it, {}, name)).status, 303, name);
  const file = join(temporaryDirectory(t), 'backup.db');
  await backUp(purser.directory, file, '1.2.3', 1_790_000_000);

  const { passkeys } = await purser.run('passkey.list', {});
  const [removed] = passkeys.filter((it) => it.name === 'lost');
  await purser.run('passkey.remove', { id: removed?.id as string });
  assert.equal((await signIn(at(purser), used, { count: 9 })).status, 303);
  await purser.close();
  assert.equal((await restoreIn(purser.directory, file)).carried_over?.revoked_keys, 1);
  await purser.reopen();
  assert.equal((await signIn(at(purser), lost)).status, 401);
  assert.equal((await signIn(at(purser), used, { count: 9 })).status, 401);
  assert.equal((await signIn(at(purser), used, { count: 10 })).status, 303);
  assert.deepEqual(purser.problems(), []);

  // Books of a release without passkeys still tell the rest.
  await purser.close();
  const older = new Client(files(purser.directory).database);
  older.exec('pragma foreign_keys = off; drop table browser_session; drop table passkey');
  older.close();
  assert.equal((await restoreIn(purser.directory, file)).carried_over?.revoked_keys, 0);
});

test('what had ended or was narrowed since the backup neither goes on nor reaches more in the restored books', async (t) => {
  const purser = await openKept(t);
  const { id, walletId } = purser;
  assert.equal((await purser.keep()).status, 200);
  const refill = { cents: 500, every: 'day' } as const;
  await purser.run('wallet.refill', { id: walletId, refill });
  const { id: filledId } = await purser.openWallet();
  await purser.run('wallet.refill', { id: filledId, refill });
  const file = join(temporaryDirectory(t), 'backup.db');
  await backUp(purser.directory, file, '1.2.3', 1_790_000_000);

  assert.equal((await purser.keep({ extend_seconds: 0 })).body.keep.reason, 'requested');
  await purser.run('wallet.refill', { id: walletId, refill: null });
  await purser.app.ledger.write(changeResource, { id, values: { egressAllow: '["pypi.org"]' } });
  const { ledger } = purser.app;
  await writeWith(ledger, (tx) => setDisputed(tx, purser.accountId, purser.app.clock.now()));
  await purser.close();
  const { carried_over: carried } = await restoreIn(purser.directory, file);
  assert.deepEqual([carried?.ended_orders, carried?.narrowed_leases], [2, 1]);
  await purser.reopen();
  const { read } = purser.app.ledger;
  assert.notEqual(keepOf(read, id)?.endedAt, null);
  assert.equal(purser.wallet(walletId).refill, null);
  assert.notEqual(purser.wallet(filledId).refill, null, 'it was not ended');
  assert.equal(findResource(read, id)?.egressAllow, '["pypi.org"]');
  assert.notEqual(findAccount(read, purser.accountId)?.disputedAt, null);
  assert.deepEqual(purser.problems(), []);
});

/** Returns how a chat of each of these wallets is answered: the code of its refusal, or its status. */
const answersOf = (purser: TestServer, wallets: { token: string }[]) =>
  Promise.all(wallets.map(({ token }) => purser.chat(token).then((it) => it.body.error?.code ?? it.status)));

test('what was stopped since the backup stays stopped, also where the clock of the machine is ahead at the restore', async (t) => {
  const time = handClock();
  time.leap(-30 * DAY); // The right time: a restore reads the clock of the machine.
  const purser = await openTestServer(t, { time });
  const open = () => purser.openWallet({ expires_in_seconds: 2 * DAY });
  const [closed, frozen, filled, left] = [await open(), await open(), await open(), await open()];
  const below = await childOf(purser, closed.token);
  await purser.run('wallet.refill', { id: filled.id, refill: { cents: 500, every: 'day' } });
  const file = join(temporaryDirectory(t), 'backup.db');
  await backUp(purser.directory, file, '1.2.3', 1_790_000_000);
  await purser.run('wallet.close', { id: closed.id });
  await purser.run('wallet.freeze', { id: frozen.id });
  await purser.run('wallet.refill', { id: filled.id, refill: null });
  await purser.close();
  const { carried_over: carried } = await restoreIn(purser.directory, file);
  assert.deepEqual([carried?.frozen_wallets, carried?.ended_orders], [3, 1]);
  await purser.reopen(undefined, { acceptClock: true }); // The clock has been set right.
  const stopped = Array(3).fill('wallet_frozen');
  assert.deepEqual(await answersOf(purser, [closed, below, frozen, filled, left]), [...stopped, 200, 200]);
  assert.equal(purser.wallet(filled.id).refill, null);
  assert.deepEqual(purser.problems(), []);
});

test('the refill of a wallet that had ended since the backup does not go on', async (t) => {
  const purser = await openTestServer(t, { creditCents: 10_000 });
  const { id } = await purser.openWallet({ budget_cents: 500, expires_in_seconds: 0 });
  await purser.run('wallet.refill', { id, refill: { cents: 1000, every: 'day', carry: 'all' } });
  const file = join(temporaryDirectory(t), 'backup.db');
  await backUp(purser.directory, file, '1.2.3', 1_790_000_000);
  await purser.run('wallet.close', { id });
  await purser.close();
  assert.equal((await restoreIn(purser.directory, file)).carried_over?.ended_orders, 1);
  await purser.reopen();
  const credit = async () => (await purser.run('account.show', { id: purser.accountId })).available_cents;
  const before = await credit();
  for (let day = 0; day < 3; day++) {
    purser.clock.advance(DAY);
    await purser.app.reaper.runOnce();
  }
  assert.equal(await credit(), before, 'it takes nothing more from its account');
  assert.equal(purser.wallet(id).refill, null);
});

test('every wallet that had ended since the backup comes back frozen, however far the closing of the ones above it had come', async (t) => {
  const purser = await openTestServer(t);
  await purser.app.reaper.stop();
  const [top, other] = [await purser.openWallet({ expires_in_seconds: 0 }), await purser.openWallet()];
  const [closed, parent] = [await childOf(purser, top.token), await childOf(purser, top.token)];
  const tree = [top, closed, parent, await childOf(purser, parent.token, '0.10')];
  const beside = [other, await childOf(purser, other.token)];
  const file = join(temporaryDirectory(t), 'backup.db');
  await backUp(purser.directory, file, '1.2.3', 1_790_000_000);
  await purser.run('wallet.close', { id: closed.id });
  // Closing has begun and nothing is closed yet, as after a crash.
  await purser.app.ledger.write(endSpending, { id: top.id, reason: 'account_request', now: purser.app.clock.now() });
  await purser.close();
  const { carried_over: carried } = await restoreIn(purser.directory, file);
  assert.equal(carried?.frozen_wallets, tree.length);
  await purser.reopen();
  for (const it of tree) {
    const frozen = tree.slice(tree.indexOf(it));
    assert.deepEqual(await answersOf(purser, frozen), Array(frozen.length).fill('wallet_frozen'));
    await purser.run('wallet.unfreeze', { id: it.id });
  }
  assert.deepEqual(await answersOf(purser, [...tree, ...beside]), Array(tree.length + beside.length).fill(200));
  assert.deepEqual(purser.problems(), []);
});

/** Whether a restore carries over what a column stops, or why it need not. */
const STOPPING: Record<string, 'carried over' | string> = {
  'account.disputed_at': 'carried over',
  'account.suspended_at': 'carried over',
  'delivery.gave_up_at': 'a receiver that gets an event again knows it by its id',
  'installation.frozen_at': 'carried over',
  'keep.ended_at': 'carried over',
  'key.revoked_at': 'carried over',
  'master_key.retired_at': 'restored books need the key of their time',
  'passkey.removed_at': 'carried over',
  'resource.abandoned_reason': 'books that were restored only report',
  'resource.egress_allow': 'carried over',
  'resource.end_wanted': 'its time is paid, and its machine is looked for',
  'resource.ended_at': 'its machine is looked for, and is gone',
  'resource.questioned_at': 'every live lease is in quarantine',
  'router_key.revoked_at': 'carried over',
  'snapshot.end_wanted': 'its disk is looked for before a day is paid',
  'snapshot.ended_at': 'its disk is looked for before a day is paid',
  'wallet.closed_at': 'carried over',
  'wallet.frozen_at': 'carried over',
  'wallet.refill': 'carried over',
};

test('for each column that stops something it is decided whether a restore carries that over', (t) => {
  const { client: books } = openDatabase(join(temporaryDirectory(t), 'purser.db'), { migrate: true });
  t.after(() => books.close());
  const columns = Object.values(schema).flatMap((table) =>
    is(table, SQLiteTable)
      ? Object.values(getTableColumns(table)).map(({ name }) => `${getTableName(table)}.${name}`)
      : [],
  );
  const stops =
    /\.(.*(revoked|removed|suspended|frozen|disputed|retired|ended|closed|gave_up|questioned|abandoned|wanted|blocked|disabled|denied).*|egress_allow|refill)$/;
  assert.deepEqual(columns.filter((it) => stops.test(it)).sort(), Object.keys(STOPPING).sort());
  const asked: string[] = [];
  const prepare = books.prepare.bind(books);
  books.prepare = ((sql: string) => {
    asked.push(sql);
    return prepare(sql);
  }) as typeof books.prepare;
  readRestrictions(books);
  for (const [column, decision] of Object.entries(STOPPING)) {
    const [table, name] = column.split('.') as [string, string];
    const isRead = asked.some(
      (it) => new RegExp(`from ${table}\\b`).test(it) && (it.includes(name) || name === 'closed_at'),
    );
    assert(isRead || decision !== 'carried over', column);
  }
});

test('a backup made before a rotation is restored with the key that the rotation kept', async (t) => {
  const { purser, file, backup } = await openBackedUp(t);
  const { kept } = await purser.run('master-key.rotate', {});
  await purser.close();
  await assert.rejects(restoreIn(purser.directory, file), ({ message }: Error) => {
    assert.match(message, RegExp(`needs the master key ${backup.master_key_id}.*as master\\.key\\.before-<time>`));
    assert.doesNotMatch(message, /replace --lost/);
    return true;
  });
  copyFileSync(kept as string, join(purser.directory, 'master.key'));
  assert.equal((await restoreIn(purser.directory, file)).head.epoch, 2);
});

test('a new machine needs the backup and the master key', async (t) => {
  const { purser, file, backup } = await openBackedUp(t);
  await purser.close();
  const directory = join(temporaryDirectory(t), 'data');
  const helps = 'if nobody has it any more, restore with --without-key\\.$';
  await assert.rejects(
    restoreIn(directory, file),
    conflict(RegExp(`it needs the master key ${backup.master_key_id}\\. There is no master key in .*; ${helps}`)),
  );
  const other = generateMasterKey();
  writeFileSync(join(directory, 'master.key'), other.key.toString('hex'));
  await assert.rejects(
    restoreIn(directory, file),
    conflict(RegExp(`needs the master key ${backup.master_key_id}\\. The master key is ${other.id}, but .*; ${helps}`)),
  );
  assert.equal(existsSync(files(directory).database), false);
  copyFileSync(join(purser.directory, 'master.key'), join(directory, 'master.key'));
  const restored = await restoreIn(directory, file);
  assert.deepEqual([restored.kept, restored.lost_to_seq, restored.head.epoch], [null, null, 2]);
  assert.deepEqual((await auditFiles(files(directory))).problems, []);
});

test('a backup of before a rotation needs the key of before', async (t) => {
  const { purser, early, file, backup } = await openBackedUp(t);
  const old = readFileSync(join(purser.directory, 'master.key'), 'utf8');
  await purser.run('master-key.rotate', {});
  await purser.close();
  await assert.rejects(
    restoreIn(purser.directory, file),
    conflict(RegExp(`needs the master key ${backup.master_key_id}`)),
  );
  writeFileSync(join(purser.directory, 'master.key'), old);
  await restoreIn(purser.directory, file);
  await purser.reopen();
  assert.equal(await statusOf(purser, early.token), 200);
});

test('the log of a database that is gone does not get into the restored one, and is kept', async (t) => {
  const { purser, file, backup } = await openBackedUp(t);
  const { database } = files(purser.directory);
  const log = readFileSync(`${database}-wal`); // As after a crash: closing folds it into the database.
  assert(log.length);
  await purser.close();
  rmSync(database);
  writeFileSync(`${database}-wal`, log);
  const { head, kept } = await restoreIn(purser.directory, file);
  assert.match(basename(kept as string), /^purser\.db\.before-restore-\w+-wal$/);
  assert.deepEqual(readFileSync(kept as string), log);
  assert.equal(head.seq, backup.head.seq);
  assert.deepEqual((await auditFiles(files(purser.directory))).problems, []);
  await purser.reopen();
  assert.equal((await purser.ask('GET', '/readyz')).status, 200);
});

test('while a server runs, or anybody has the database open, nothing is restored', async (t) => {
  const { purser, file } = await openBackedUp(t);
  await purser.close();
  const { database, lock } = files(purser.directory);
  const held = await takeLock(lock, 'purser serve');
  await assert.rejects(restoreIn(purser.directory, file), LockedError);
  held.release();

  const idle = new Client(database); // As Litestream is between two looks: it reads nothing.
  t.after(() => idle.close());
  idle.exec('select count(*) from entry; create table _litestream_lock (id integer)');
  const before = readFileSync(database);
  await assert.rejects(restoreIn(purser.directory, file), conflict(/Another process has .* open: Litestream/));
  assert.deepEqual(readFileSync(database), before);
  idle.close();
  await restoreIn(purser.directory, file);
});

test('a backup under the name of a restore’s own copy is refused, and stays', async (t) => {
  const { purser, file } = await openBackedUp(t);
  await purser.close();
  const { database } = files(purser.directory);
  const taken = `${database}.restored`;
  copyFileSync(file, taken);
  const link = join(temporaryDirectory(t), 'link.db');
  symlinkSync(taken, link);
  const books = readFileSync(database);
  for (const name of [taken, link]) {
    await assert.rejects(restoreIn(purser.directory, name), { code: 'conflict', message: /under that name/ });
    assert.deepEqual(readFileSync(taken), readFileSync(file));
    assert.deepEqual(readFileSync(database), books);
  }
  renameSync(taken, `${taken}.kept`);
  await restoreIn(purser.directory, `${taken}.kept`);
});

test('a database that lies on another disk, where a link leads, is restored there', async (t) => {
  const { purser, file } = await openBackedUp(t);
  await purser.close();
  const { database } = files(purser.directory);
  const there = join(temporaryDirectory(t), 'books.db');
  renameSync(database, there);
  symlinkSync(there, database);
  const before = readFileSync(there);
  const { kept } = await restoreIn(purser.directory, file);
  assert.equal(readlinkSync(database), there);
  assert.notDeepEqual(readFileSync(there), before);
  assert.deepEqual([dirname(kept as string), readFileSync(kept as string)], [dirname(there), before]);
});

test('books of another installation are replaced only with --force', async (t) => {
  const { file } = await openBackedUp(t);
  const other = await openTestServer(t);
  await other.close();
  await assert.rejects(restoreIn(other.directory, file), conflict(/it needs the master key/));
  const first = (await openBackedUp(t)).purser;
  await first.close();
  cpSync(join(first.directory, 'master.key'), join(other.directory, 'master.key'));
  const backup = join(temporaryDirectory(t), 'first.db');
  await backUp(first.directory, backup, '1', 1);
  await assert.rejects(
    restoreIn(other.directory, backup),
    conflict(/it belongs to the installation inst_\w+, and the books here to/),
  );
  const restored = await restoreIn(other.directory, backup, { force: true });
  assert.equal(restored.installation_id, first.app.installationId);
});

test('a file without a manifest is taken only with --force; one that is in use never', async (t) => {
  const { purser, early, file } = await openBackedUp(t);
  await purser.close();
  const { database } = files(purser.directory);
  const raw = join(temporaryDirectory(t), 'raw.db');
  copyFileSync(database, raw);
  await assert.rejects(restoreIn(purser.directory, raw), conflict(/it has no manifest.*Use --force/));
  const restored = await restoreIn(purser.directory, raw, { force: true });
  assert.equal(restored.manifest, null);
  await purser.reopen();
  assert.equal(await statusOf(purser, early.token), 200);
  assert.match(reportOnlyOf(purser.app.ledger.read)?.reason ?? '', /restored from raw\.db/);
  await purser.close();
  writeFileSync(`${file}-wal`, 'frames');
  await assert.rejects(
    restoreIn(purser.directory, file, { force: true }),
    conflict(/there is a write-ahead log beside it/),
  );
});

/** What is done to a backup, and what is said of it. */
const WRONG: [what: string, damage: (client: Client.Database) => void, said: RegExp][] = [
  [
    'a row that is missing',
    (it) => it.exec('drop trigger wallet_is_never_deleted; pragma foreign_keys = off; delete from wallet'),
    /it has 0 rows of wallet, its manifest 1/,
  ],
  [
    'entries that are missing',
    (it) => it.exec('drop trigger entry_is_never_deleted; delete from entry where seq > 2'),
    /its newest entry is 2, not the one in its manifest/,
  ],
  [
    'a row that was changed',
    (it) => it.exec(`update account set name = 'mine'`),
    /account acct_\w+ was changed: its checksum/,
  ],
  [
    'a balance that was changed',
    (it) => it.exec('update account set available_cents = available_cents + 1'),
    /has \d+ cents available, the journal/,
  ],
  [
    'a trigger that is gone',
    (it) => it.exec('drop trigger entry_is_never_changed'),
    /the trigger entry_is_never_changed is missing/,
  ],
  ['a manifest that is damaged', (it) => it.exec(`update purser_backup set manifest = '{'`), /its manifest is damaged/],
  [
    'a newer schema',
    (it) => it.exec(`insert into migration values ('9999_future.sql', '00', 1)`),
    /written by a newer Purser/,
  ],
];
for (const [what, damage, said] of WRONG)
  test(`not restored: a backup with ${what}`, async (t) => {
    const { purser, file } = await openBackedUp(t);
    await purser.close();
    const { database } = files(purser.directory);
    const before = readFileSync(database);
    const client = new Client(file);
    damage(client);
    client.close();
    await assert.rejects(restoreIn(purser.directory, file), conflict(said));
    assert.deepEqual(readFileSync(database), before, 'the books here are untouched');
    assert.deepEqual(
      readdirSync(purser.directory).filter((name) => /restore/.test(name)),
      [],
    );
    await purser.reopen();
    assert.equal((await purser.ask('GET', '/readyz')).status, 200);
  });

test('what is no database of ours is not restored', async (t) => {
  const { purser } = await openBackedUp(t);
  await purser.close();
  const file = join(temporaryDirectory(t), 'other.db');
  await assert.rejects(restoreIn(purser.directory, file), { code: 'not_found' });
  writeFileSync(file, 'not a database at all, but long enough to be looked at\n'.repeat(20));
  await assert.rejects(restoreIn(purser.directory, file), conflict(/not a database/));
  rmSync(file);
  const client = new Client(file);
  client.exec('create table anything (id integer)');
  client.close();
  await assert.rejects(restoreIn(purser.directory, file, { force: true }), conflict(/not a Purser database/));
});

for (const [what, sql] of Object.entries({
  'table guest': 'create table guest (id integer)',
  'view guest': 'create view guest as select * from account',
  'index guest': 'create index guest on wallet (status)',
  'trigger guest': 'create trigger guest after insert on epoch begin select 1; end',
}))
  test(`a backup with a foreign ${what} is refused, and so are books with it that serve, if it acts on ours`, async (t) => {
    const { purser, file } = await openBackedUp(t);
    await purser.close();
    const add = (database: string) => {
      const client = new Client(database);
      client.exec(sql);
      client.close();
    };
    add(file);
    await assert.rejects(restoreIn(purser.directory, file), conflict(new RegExp(`the ${what} is not ours`)));
    const at = files(purser.directory);
    add(at.database);
    const acts = /^(index|trigger)/.test(what);
    assert.equal((await auditFiles(at)).ok, !acts);
    const copy = join(temporaryDirectory(t), 'copy.db');
    if (acts) return assert.rejects(backUp(purser.directory, copy, '0.1.0', 1), /is not ours/);
    await backUp(purser.directory, copy, '0.1.0', 1); // Without it, so that it can be restored.
    await restoreIn(purser.directory, copy);
    await purser.reopen();
    assert.equal((await purser.ask('GET', '/readyz')).status, 200);
  });

test('a copy that an older release left is restored: what its migrations had made is not foreign', async (t) => {
  const directory = temporaryDirectory(t);
  chmodSync(directory, 0o700);
  layFixture(join(import.meta.dirname, '../fixtures/0004_report_only.sql'), directory);
  const at = files(directory);
  const file = join(temporaryDirectory(t), 'old.db');
  const client = new Client(at.database);
  client.pragma('journal_mode = DELETE');
  client.close();
  renameSync(at.database, file);
  await restoreIn(directory, file, { force: true });
  assert.deepEqual((await auditFiles(at)).problems, []);
});

test('a backup whose schema is damaged is refused', async (t) => {
  const { purser, file } = await openBackedUp(t);
  await purser.close();
  const client = new Client(file);
  client.unsafeMode(true);
  client.pragma('writable_schema = ON');
  client.exec("update sqlite_schema set sql = replace(sql, 'created_at', 'created_au') where name = 'installation'");
  client.close();
  await assert.rejects(restoreIn(purser.directory, file), {
    code: 'conflict',
    message: /is not restored: the books are damaged \(2 faults\): the table installation was changed/,
  });
});

const BIT_COUNT = length(20, 60);

test(`a backup in which one bit turned is not restored, unless the bit meant nothing (seed ${SEED})`, async (t) => {
  const { purser, file, backup } = await openBackedUp(t);
  await purser.close();
  const random = createRandom(SEED);
  const whole = readFileSync(file);
  const count = { refused: 0, harmless: 0 };
  for (let i = 0; i < BIT_COUNT; i++) {
    const bytes = Buffer.from(whole);
    const at = random.whole(0, bytes.length - 1);
    bytes[at] = (bytes[at] as number) ^ (1 << random.whole(0, 7));
    const directory = join(temporaryDirectory(t), 'data');
    mkdirSync(directory, { mode: 0o700 });
    copyFileSync(join(purser.directory, 'master.key'), join(directory, 'master.key'));
    const damaged = `${directory}.db`;
    writeFileSync(damaged, bytes);
    try {
      const { head } = await restoreIn(directory, damaged);
      assert.deepEqual([head.seq, head.hash], [backup.head.seq, backup.head.hash]);
      assert.deepEqual((await auditFiles(files(directory))).problems, []);
      count.harmless++;
    } catch (error) {
      assert.equal((error as { code?: string }).code, 'conflict', `bit at ${at}: ${(error as Error).stack}`);
      count.refused++;
    }
  }
  t.diagnostic(`${BIT_COUNT} bits: ${count.refused} refused, ${count.harmless} meant nothing`);
});

for (const [what, ruin] of Object.entries<(at: ReturnType<typeof files>) => void>({
  'a database that is garbage': ({ database }) => writeFileSync(database, 'garbage\n'.repeat(1000)),
  'a database that is gone': ({ database }) => rmSync(database),
  'a head file that is garbage': ({ head }) => writeFileSync(head, 'garbage'),
  'a head file of a much later epoch': ({ head }) => writeFileSync(head, `900 ${'ab'.repeat(32)} 7 0\n`),
  'a log that belongs to nothing': ({ database }) => writeFileSync(`${database}-wal`, 'garbage\n'.repeat(1000)),
}))
  test(`restored over ${what}`, async (t) => {
    const { purser, early, file } = await openBackedUp(t);
    await purser.close();
    const at = files(purser.directory);
    ruin(at);
    const there = existsSync(at.database) ? readFileSync(at.database) : undefined;
    const restored = await restoreIn(purser.directory, file);
    if (there) assert.deepEqual(readFileSync(restored.kept as string), there);
    else assert.equal(restored.kept, null);
    if (what.includes('epoch')) assert.equal(restored.head.epoch, 8);
    await purser.reopen();
    assert.equal((await purser.ask('GET', '/readyz')).status, 200);
    assert.equal(await statusOf(purser, early.token), 200);
    assert.equal(currentEpoch(purser.app.ledger.read).number, restored.head.epoch);
  });

test('the head file is written after the database has its place: that of books that are not there would be a loss', async (t) => {
  const { purser, early, late, file } = await openBackedUp(t);
  await purser.close();
  const { head } = files(purser.directory);
  rmSync(head);
  mkdirSync(join(head, 'in its place'), { recursive: true });
  await assert.rejects(restoreIn(purser.directory, file), { code: /^(EISDIR|ENOTEMPTY|EEXIST)$/ });
  rmSync(head, { recursive: true });
  await purser.reopen();
  assert.deepEqual([await statusOf(purser, early.token), await statusOf(purser, late.token)], [200, 401]);
});
