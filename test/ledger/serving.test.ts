import assert from 'node:assert/strict';
import { copyFileSync, existsSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import Client from 'better-sqlite3';
import { readConfig } from '../../src/config/config.ts';
import { files } from '../../src/files/data-directory.ts';
import { type CommitMark, openTip, readTip } from '../../src/ledger/head.ts';
import { post } from '../../src/ledger/journal.ts';
import { createLog } from '../../src/log.ts';
import { Nanos } from '../../src/money.ts';
import { urlOf } from '../../src/net/listen.ts';
import { serve } from '../../src/serve.ts';
import { openTestServer, type TestServer } from '../helper/server.ts';

/** Serves the closed house once more, as `purser serve` or `purser serve --accept-loss` would. */
async function serveAgain(house: TestServer, options: { acceptLoss?: boolean } = {}): Promise<void> {
  const { config, secrets } = readConfig({ data: house.directory }, {});
  house.app = await serve(config, secrets, {
    log: createLog('debug', [], (line) => house.log.push(line)),
    who: 'a test',
    create: true,
    time: house.clock,
    fatal(error) {
      throw error;
    },
    ...options,
  });
  house.url = urlOf(house.app.address);
}

/** What is done to the files of a closed house, and how the fault is named. */
const FAULTS: Record<string, { damage: (house: TestServer, older: string) => void; named: RegExp }> = {
  'a database that is behind its head file': {
    damage(house, older) {
      const { database } = files(house.directory);
      for (const suffix of ['-wal', '-shm']) rmSync(`${database}${suffix}`, { force: true });
      copyFileSync(older, database);
    },
    named: /the journal ends at entry \d+, but entry \d+ was on disk: entries \d+ to \d+ are lost/,
  },
  'a database that is gone beside its head file': {
    damage: (house) => rmSync(files(house.directory).database),
    named: /the journal ends at entry 0, but entry \d+ was on disk: entries 1 to \d+ are lost/,
  },
  'a head file that is missing beside a journal': {
    damage: (house) => rmSync(files(house.directory).head),
    named: /ledger\.head is missing beside a journal of \d+ entries/,
  },
  'a head file that is garbage': {
    damage: (house) => writeFileSync(files(house.directory).head, 'garbage\n'),
    named: /ledger\.head is damaged/,
  },
  'a head file that is empty': {
    damage: (house) => writeFileSync(files(house.directory).head, ''),
    named: /ledger\.head is damaged/,
  },
  'a head file of another history': {
    damage(house) {
      const { head } = files(house.directory);
      const [seq, , epoch] = readFileSync(head, 'utf8').trim().split(' ');
      writeFileSync(head, `${seq} ${'ab'.repeat(32)} ${epoch}\n`);
    },
    named: /entry \d+ is not the one that was on disk/,
  },
  'a chain that is broken among the newest entries': {
    damage: (house) =>
      change(
        house,
        'drop trigger entry_is_never_changed; update entry set amount_nanos = amount_nanos + 1 where seq = 2',
      ),
    named: /the chain of the journal is broken at entry 2/,
  },
  'a row that was changed': {
    damage: (house) => change(house, "update account set name = 'mine'"),
    named: /the books are damaged \(1 faults\): account acct_\w+ was changed: its checksum does not match/,
  },
  'a balance that was changed': {
    damage: (house) => change(house, 'update account set available_cents = available_cents + 1'),
    named: /the books are damaged \(1 faults\): account acct_\w+ has \d+ cents available, the journal/,
  },
  'a trigger that is gone': {
    damage: (house) => change(house, 'drop trigger entry_is_never_changed'),
    named: /the books are damaged \(1 faults\): the trigger entry_is_never_changed is missing/,
  },
  'a lost commit that moved no money': {
    damage(house) {
      const { tip } = files(house.directory);
      const { quietCommits, ...mark } = readTip(tip) as CommitMark;
      const file = openTip(tip);
      file.write({ ...mark, quietCommits: quietCommits + 1 });
      file.close();
    },
    named: /1 commits that moved no money are lost: ledger\.tip counts \d+ of them, the database \d+/,
  },
};

/** Changes the database of a house with other hands than ours. */
function change(house: TestServer, sql: string): void {
  const client = new Client(files(house.directory).database);
  client.exec(sql);
  client.close();
}

/** A house with some history, closed, and damaged. */
async function openDamaged(t: Parameters<typeof openTestServer>[0], name: string) {
  const house = await openTestServer(t);
  const before = await house.openWallet();
  await house.close();
  const older = join(house.directory, 'older.db');
  copyFileSync(files(house.directory).database, older);
  await serveAgain(house);
  const { token } = await house.openWallet();
  await house.chat(token);
  await house.close();
  FAULTS[name]?.damage(house, older);
  const { head } = files(house.directory);
  const headFile = () => (existsSync(head) ? readFileSync(head, 'utf8') : undefined);
  return { house, wallet: before, headFile };
}

for (const [name, { named }] of Object.entries(FAULTS)) {
  test(`${name} is not served: it opens, is not ready, and says why`, async (t) => {
    const { house, headFile } = await openDamaged(t, name);
    const evidence = headFile();
    await serveAgain(house);
    const ready = await house.ask('GET', '/readyz');
    assert.equal(ready.status, 503);
    assert.match(ready.body.reason, named);
    for (const [method, path] of [
      ['GET', '/v1/account'],
      ['GET', '/v1/budget'],
      ['POST', '/v1/wallets'],
    ] as const) {
      const answer = await house.ask(method, path, { token: house.accountKey, key: 'k' });
      assert.equal(answer.status, 503);
      assert.equal(answer.body.error.code, 'read_only');
      assert.match(answer.body.error.message, named);
    }
    assert.equal((await house.ask('GET', '/healthz')).status, 200, 'the process is well');
    await assert.rejects(house.run('account.credit', { id: house.accountId, cents: 1 }), named);
    assert.equal(house.log.filter((line) => line.includes('"event":"not_served"')).length, 1);
    await house.close();
    assert.equal(headFile(), evidence, 'the head file is evidence');
  });

  test(`${name} is served again once the loss is accepted, in a new epoch`, async (t) => {
    const { house, headFile } = await openDamaged(t, name);
    await serveAgain(house, { acceptLoss: true });
    assert.equal((await house.ask('GET', '/readyz')).status, 200);
    const epochs = house.app.ledger.client.prepare('select number, reason from epoch order by number').raw().all();
    assert.equal(epochs.length, 2);
    assert.match((epochs[1] as [bigint, string])[1], named);
    assert.match(headFile() ?? '', / 2 \d+\n$/);

    // It goes on by itself: the next start needs no flag.
    await house.close();
    await serveAgain(house);
    assert.equal((await house.ask('GET', '/readyz')).status, 200);
    house.accountId = (await house.run('account.list', {})).accounts[0]?.id as string;
    house.accountKey = (await house.run('key.create', { account: house.accountId, name: 'new' })).key;
    await house.run('account.credit', { id: house.accountId, cents: 1000 });
    const { token } = await house.openWallet();
    assert.equal((await house.chat(token)).status, 200);
    await house.reopen();
    assert.equal((await house.ask('GET', '/v1/account', { token: house.accountKey })).status, 200);
  });
}

test('while a database is not served nothing in it moves, not even what is due', async (t) => {
  const { house, wallet } = await openDamaged(t, 'a head file that is missing beside a journal');
  house.clock.advance(7200);
  await serveAgain(house);
  await house.ask('POST', `/v1/wallets/${wallet.id}/close`, { token: house.accountKey });
  assert.equal(house.wallet(wallet.id).status, 'active');
  assert.equal(house.app.ledger.commitCount(), 0);
});

test('accepting a loss where there is none changes nothing', async (t) => {
  const house = await openTestServer(t);
  await house.close();
  await serveAgain(house, { acceptLoss: true });
  assert.equal(house.app.ledger.client.prepare('select count(*) from epoch').pluck().get(), 1n);
});

test('a journal that is ahead of its head file is served: the last second before a crash is no loss', async (t) => {
  const house = await openTestServer(t);
  const { head } = files(house.directory);
  const early = readFileSync(head, 'utf8');
  await house.openWallet();
  await house.close();
  const late = readFileSync(head, 'utf8');
  assert.notEqual(early, late, 'a clean close leaves an exact head');
  writeFileSync(head, early);
  await serveAgain(house);
  assert.equal((await house.ask('GET', '/readyz')).status, 200);
  assert.equal(readFileSync(head, 'utf8'), late, 'and it is exact again from the start');
});

test('a break that is older than what a start looks at is found in the background, and service stops', async (t) => {
  const house = await openTestServer(t);
  const at = house.app.clock.now();
  const movement = { at, causeId: 'evt_1', debit: 'funding', credit: 'account:acct_1', amount: Nanos(1n) };
  await house.app.ledger.write((tx) => post(tx, Array(40_010).fill(movement)));
  await house.close();
  FAULTS['a chain that is broken among the newest entries']?.damage(house, '');
  await serveAgain(house);
  assert.equal((await house.ask('GET', '/readyz')).status, 200);
  // A bounded wait for the event, by the answers of the house itself.
  let ready = await house.ask('GET', '/readyz');
  for (let i = 0; i < 100_000 && ready.status === 200; i++) ready = await house.ask('GET', '/readyz');
  assert.equal(ready.status, 503);
  assert.match(ready.body.reason, /broken at entry 2/);
  assert.equal((await house.ask('GET', '/v1/account', { token: house.accountKey })).body.error.code, 'read_only');
  assert(house.log.some((line) => line.includes('"event":"chain.failed"')));
});

test('a row that is changed under a running server is found by its own examination, and service stops', async (t) => {
  const house = await openTestServer(t);
  await house.openWallet();
  assert.deepEqual((await house.app.booksWatch.runOnce()).problems, []);
  assert.equal((await house.ask('GET', '/readyz')).status, 200);
  change(house, "update wallet set name = 'mine'");
  assert.equal((await house.app.booksWatch.runOnce()).ok, false);
  const ready = await house.ask('GET', '/readyz');
  assert.equal(ready.status, 503);
  assert.match(ready.body.reason, /wallet wal_\w+ was changed: its checksum does not match/);
  assert.equal((await house.ask('GET', '/v1/account', { token: house.accountKey })).body.error.code, 'read_only');
  assert(house.log.some((line) => line.includes('"event":"books.failed"')));
});

test('an examination that cannot be carried out is no verdict: service goes on, and it is told', async (t) => {
  const house = await openTestServer(t);
  renameSync(files(house.directory).database, join(house.directory, 'elsewhere.db'));
  await assert.rejects(house.app.booksWatch.runOnce(), /the books could not be examined/);
  assert.equal((await house.ask('GET', '/readyz')).status, 200);
  renameSync(join(house.directory, 'elsewhere.db'), files(house.directory).database);
});
