import assert from 'node:assert/strict';
import { copyFileSync, existsSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import Client from 'better-sqlite3';
import { createLog } from '../../src/base/log.ts';
import { Nanos } from '../../src/base/money.ts';
import { readConfig } from '../../src/config/config.ts';
import { knownSchema } from '../../src/db/known-schema.ts';
import { files } from '../../src/files/data-directory.ts';
import { type CommitMark, openTipFile, readTipFile } from '../../src/ledger/head.ts';
import { post } from '../../src/ledger/journal.ts';
import { serve } from '../../src/main/serve.ts';
import { urlOf } from '../../src/net/listen.ts';
import { writeWith } from '../helper/closures.ts';
import { loseDisk } from '../helper/lost-disk.ts';
import { startProgramsQuickly } from '../helper/quick-programs.ts';
import { openTestServer, type TestServer } from '../helper/server.ts';
import { until } from '../helper/waiting.ts';

/** Serves the closed purser once more, as `purser serve` or `purser serve --accept-loss` would. */
async function serveAgain(purser: TestServer, options: { acceptLoss?: boolean } = {}): Promise<void> {
  const config = readConfig({ data: purser.directory }, {});
  purser.app = await serve(config, {
    log: createLog('debug', [], (line) => purser.log.push(line)),
    who: 'a test',
    create: true,
    time: purser.clock,
    writesHere: true, // Its threads are tested on the executable; starting them from source takes most of a start.
    fatal(error) {
      throw error;
    },
    ...options,
  });
  purser.url = urlOf(purser.app.address);
}

/** What is done to the files of a closed purser, and how the fault is named. */
const FAULTS: Record<string, { damage: (purser: TestServer, older: string) => void; named: RegExp }> = {
  'a database that is behind its head file': {
    damage(purser, older) {
      const { database } = files(purser.directory);
      for (const suffix of ['-wal', '-shm']) rmSync(`${database}${suffix}`, { force: true });
      copyFileSync(older, database);
    },
    named: /the journal ends at entry \d+, but entry \d+ was on disk: entries \d+ to \d+ are lost/,
  },
  'a database that is gone beside its head file': {
    damage: (purser) => rmSync(files(purser.directory).database),
    named: /the journal ends at entry 0, but entry \d+ was on disk: entries 1 to \d+ are lost/,
  },
  'a head file that is missing beside a journal': {
    damage: (purser) => rmSync(files(purser.directory).head),
    named: /ledger\.head is missing beside a journal of \d+ entries/,
  },
  'a head file that is garbage': {
    damage: (purser) => writeFileSync(files(purser.directory).head, 'garbage\n'),
    named: /ledger\.head is damaged/,
  },
  'a head file that is empty': {
    damage: (purser) => writeFileSync(files(purser.directory).head, ''),
    named: /ledger\.head is damaged/,
  },
  'a head file of another history': {
    damage(purser) {
      const { head } = files(purser.directory);
      const [seq, , epoch] = readFileSync(head, 'utf8').trim().split(' ');
      writeFileSync(head, `${seq} ${'ab'.repeat(32)} ${epoch}\n`);
    },
    named: /entry \d+ is not the one that was on disk/,
  },
  'a chain that is broken among the newest entries': {
    damage: (purser) =>
      change(
        purser,
        'drop trigger entry_is_never_changed; update entry set amount_nanos = amount_nanos + 1 where seq = 2',
      ),
    named: /the chain of the journal is broken at entry 2/,
  },
  'a row that was changed': {
    damage: (purser) => change(purser, "update account set name = 'mine'"),
    named: /the books are damaged \(1 faults\): account acct_\w+ was changed: its checksum does not match/,
  },
  'a balance that was changed': {
    damage: (purser) => change(purser, 'update account set available_cents = available_cents + 1'),
    named: /the books are damaged \(1 faults\): account acct_\w+ has \d+ cents available, the journal/,
  },
  'a trigger that is gone': {
    damage: (purser) => change(purser, 'drop trigger entry_is_never_changed'),
    named: /the books are damaged \(1 faults\): the trigger entry_is_never_changed is missing/,
  },
  'a lost commit that moved no money': {
    damage(purser) {
      const { tip } = files(purser.directory);
      const { quietCommits, ...mark } = readTipFile(tip) as CommitMark;
      const file = openTipFile(tip);
      file.write({ ...mark, quietCommits: quietCommits + 1 });
      file.close();
    },
    named: /1 commits that moved no money are lost: ledger\.tip counts \d+ of them, the database \d+/,
  },
};

/** Changes the database of a server with other hands than ours. */
function change(purser: TestServer, sql: string): void {
  const client = new Client(files(purser.directory).database);
  client.exec(sql);
  client.close();
}

/** A purser with some history, closed, and damaged. */
async function openDamaged(t: Parameters<typeof openTestServer>[0], name: string) {
  const purser = await openTestServer(t);
  const before = await purser.openWallet();
  await purser.close();
  const older = join(purser.directory, 'older.db');
  copyFileSync(files(purser.directory).database, older);
  await serveAgain(purser);
  const { token } = await purser.openWallet();
  await purser.chat(token);
  await purser.close();
  FAULTS[name]?.damage(purser, older);
  const { head } = files(purser.directory);
  const headFile = () => (existsSync(head) ? readFileSync(head, 'utf8') : undefined);
  return { purser, wallet: before, headFile };
}

for (const [name, { named }] of Object.entries(FAULTS)) {
  test(`${name} is not served: it opens, is not ready, and says why`, async (t) => {
    const { purser, headFile } = await openDamaged(t, name);
    const evidence = headFile();
    await serveAgain(purser);
    const ready = await purser.ask('GET', '/readyz');
    assert.equal(ready.status, 503);
    assert.match(ready.body.reason, named);
    for (const [method, path] of [
      ['GET', '/v1/account'],
      ['GET', '/v1/budget'],
      ['POST', '/v1/wallets'],
    ] as const) {
      const answer = await purser.ask(method, path, { token: purser.accountKey, key: 'k' });
      assert.equal(answer.status, 503);
      assert.equal(answer.body.error.code, 'read_only');
      assert.match(answer.body.error.message, named);
    }
    assert.equal((await purser.ask('GET', '/healthz')).status, 200, 'the process is well');
    await assert.rejects(purser.run('account.credit', { id: purser.accountId, cents: 1 }), named);
    assert.equal(purser.log.filter((line) => line.includes('"event":"not_served"')).length, 1);
    await purser.close();
    assert.equal(headFile(), evidence, 'the head file is evidence');
  });

  test(`${name} is served again once the loss is accepted, in a new epoch`, async (t) => {
    const { purser, headFile } = await openDamaged(t, name);
    await serveAgain(purser, { acceptLoss: true });
    assert.equal((await purser.ask('GET', '/readyz')).status, 200);
    const epochs = purser.app.ledger.client.prepare('select number, reason from epoch order by number').raw().all();
    assert.equal(epochs.length, 2);
    assert.match((epochs[1] as [bigint, string])[1], named);
    assert.match(headFile() ?? '', / 2 \d+\n$/);

    // It goes on by itself: the next start needs no flag.
    await purser.close();
    await serveAgain(purser);
    assert.equal((await purser.ask('GET', '/readyz')).status, 200);
    purser.accountId = (await purser.run('account.list', {})).accounts[0]?.id as string;
    purser.accountKey = (await purser.run('key.create', { account: purser.accountId, name: 'new' })).key;
    await purser.run('account.credit', { id: purser.accountId, cents: 1000 });
    const { token } = await purser.openWallet();
    assert.equal((await purser.chat(token)).status, 200);
    await purser.reopen();
    assert.equal((await purser.ask('GET', '/v1/account', { token: purser.accountKey })).status, 200);
  });
}

test('an accepted fault that is gone makes no room for another, whether a start or a running server sees that it is gone', async (t) => {
  startProgramsQuickly(t);
  const purser = await openTestServer(t);
  await purser.openWallet();
  await purser.close();
  const rename = (name: string) => change(purser, `update account set name = '${name}'`);
  rename('mine');
  await serveAgain(purser, { acceptLoss: true });
  const accepted = () =>
    purser.app.ledger.client.prepare('select accepted_faults from epoch order by number desc').pluck().get();
  assert.deepEqual([(await purser.ask('GET', '/readyz')).status, accepted()], [200, 1n]);
  assert.equal((await purser.app.booksWatch.runOnce()).faults, 1);
  assert.equal(accepted(), 1n, 'it is still there');
  rename('default');
  assert.equal((await purser.app.booksWatch.runOnce()).faults, 0);
  assert.equal(accepted(), 0n);
  await purser.close();

  rename('mine');
  await serveAgain(purser);
  assert.match((await purser.ask('GET', '/readyz')).text, /the books are damaged \(1 faults\)/);
  await purser.close();
  await serveAgain(purser, { acceptLoss: true });
  await purser.close();
  rename('default');
  await serveAgain(purser);
  assert.equal(accepted(), 0n);
  await purser.close();
  change(purser, "update wallet set name = 'mine'");
  await serveAgain(purser);
  assert.match((await purser.ask('GET', '/readyz')).text, /wallet wal_\w+ was changed/);
});

test('while a database is not served nothing in it moves, not even what is due', async (t) => {
  const { purser, wallet } = await openDamaged(t, 'a head file that is missing beside a journal');
  purser.clock.advance(7200);
  await serveAgain(purser);
  await purser.ask('POST', `/v1/wallets/${wallet.id}/close`, { token: purser.accountKey });
  assert.equal(purser.wallet(wallet.id).status, 'active');
  assert.equal(purser.app.ledger.commitCount(), 0);
});

/** Makes books too large to be verified as a whole at a start: with rows of somebody else's. */
const enlarge = (purser: TestServer) =>
  change(purser, 'create table _litestream_x (x blob); insert into _litestream_x values (zeroblob(6000000))');

test('large books whose table has lost a column are not served, whatever is accepted: a payment would end in the middle', async (t) => {
  const purser = await openTestServer(t);
  await purser.close();
  enlarge(purser);
  change(purser, 'alter table answer rename column body to b0dy');
  for (const options of [{}, { acceptLoss: true }]) {
    await serveAgain(purser, options);
    assert.match(
      (await purser.ask('GET', '/readyz')).text,
      /the books are damaged: the table answer has no column body\. No accepted loss makes up for that/,
    );
    await purser.close();
  }
});

test('large books whose schema was changed are not served before the loss is accepted', async (t) => {
  const purser = await openTestServer(t);
  await purser.close();
  enlarge(purser);
  change(purser, 'drop trigger entry_is_never_changed');
  await serveAgain(purser);
  assert.match((await purser.ask('GET', '/readyz')).text, /the trigger entry_is_never_changed is missing/);
  await purser.close();
  await serveAgain(purser, { acceptLoss: true });
  assert.equal((await purser.ask('GET', '/readyz')).status, 200);
});

test('accepting a loss where there is none changes nothing', async (t) => {
  const purser = await openTestServer(t);
  await purser.close();
  await serveAgain(purser, { acceptLoss: true });
  assert.equal(purser.app.ledger.client.prepare('select count(*) from epoch').pluck().get(), 1n);
});

test('a journal that is ahead of its head file is served: the last second before a crash is no loss', async (t) => {
  const purser = await openTestServer(t);
  const { head } = files(purser.directory);
  const early = readFileSync(head, 'utf8');
  await purser.openWallet();
  await purser.close();
  const late = readFileSync(head, 'utf8');
  assert.notEqual(early, late, 'a clean close leaves an exact head');
  writeFileSync(head, early);
  await serveAgain(purser);
  assert.equal((await purser.ask('GET', '/readyz')).status, 200);
  assert.equal(readFileSync(head, 'utf8'), late, 'and it is exact again from the start');
});

test('a break that is older than what a start looks at is found in the background, and service stops', async (t) => {
  const purser = await openTestServer(t);
  const at = purser.app.clock.now();
  const movement = { at, causeId: 'evt_1', debit: 'funding', credit: 'account:acct_1', amount: Nanos(1n) };
  await writeWith(purser.app.ledger, (tx) => post(tx, Array(40_010).fill(movement)));
  await purser.close();
  const trigger = knownSchema().get('trigger entry_is_never_changed') as string; // A start sees one that is gone.
  const edit = 'update entry set amount_nanos = amount_nanos + 1 where seq = 2';
  change(purser, `drop trigger entry_is_never_changed; ${edit}; ${trigger}`);
  await serveAgain(purser);
  const serving = purser.log.findLast((line) => line.includes('"event":"serving"'));
  assert.match(serving ?? '', /"ready":true/, 'the start did not look at it');
  const ready = await until('the server says that it is not ready', async () => {
    const answer = await purser.ask('GET', '/readyz');
    return answer.status === 503 && answer;
  });
  assert.match(ready.body.reason, /broken at entry 2/);
  assert.equal((await purser.ask('GET', '/v1/account', { token: purser.accountKey })).body.error.code, 'read_only');
  assert(purser.log.some((line) => line.includes('"event":"chain.failed"')));
});

test('a row that is changed under a running server is found by its own examination, and service stops', async (t) => {
  startProgramsQuickly(t);
  const purser = await openTestServer(t);
  await purser.openWallet();
  assert.deepEqual((await purser.app.booksWatch.runOnce()).problems, []);
  assert.equal((await purser.ask('GET', '/readyz')).status, 200);
  change(purser, "update wallet set name = 'mine'");
  assert.equal((await purser.app.booksWatch.runOnce()).ok, false);
  const ready = await purser.ask('GET', '/readyz');
  assert.equal(ready.status, 503);
  assert.match(ready.body.reason, /wallet wal_\w+ was changed: its checksum does not match/);
  assert.equal((await purser.ask('GET', '/v1/account', { token: purser.accountKey })).body.error.code, 'read_only');
  assert(purser.log.some((line) => line.includes('"event":"books.failed"')));
});

test('a fault that is found on a disk that takes no commit is none of the books', async (t) => {
  startProgramsQuickly(t);
  const { promise: ended, resolve } = Promise.withResolvers<unknown>();
  const purser = await openTestServer(t, { fatal: resolve });
  await purser.openWallet();
  change(purser, "update wallet set name = 'mine'");
  loseDisk(t);
  await assert.rejects(purser.app.booksWatch.runOnce(), /a commit failed/);
  assert.match(String(await ended), /disk I\/O error/);
  assert.equal(purser.app.health.fault, 'a commit failed (disk I/O error)');
});

test('an examination that cannot be carried out is no verdict: service goes on, and it is told', async (t) => {
  startProgramsQuickly(t);
  const purser = await openTestServer(t);
  renameSync(files(purser.directory).database, join(purser.directory, 'elsewhere.db'));
  await assert.rejects(purser.app.booksWatch.runOnce(), /the books could not be examined/);
  assert.equal((await purser.ask('GET', '/readyz')).status, 200);
  renameSync(join(purser.directory, 'elsewhere.db'), files(purser.directory).database);
});
