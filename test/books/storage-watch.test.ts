import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { mkdirSync, renameSync, rmSync } from 'node:fs';
import test, { type TestContext } from 'node:test';
import Client from 'better-sqlite3';
import { tagOf } from '../../src/compute/backend.ts';
import { writeWith } from '../helper/closures.ts';
import { loseDisk, STATEMENTS } from '../helper/lost-disk.ts';
import { openTestServer, type TestServer, type TestServerOptions } from '../helper/server.ts';
import { completion, gate } from '../helper/upstream.ts';
import { until, waitFor } from '../helper/waiting.ts';
import { LONG, openMemoryServer } from '../lease/leases.ts';
import { holdWriter } from './held-writer.ts';

const REASON = /the disk has confirmed no commit for 10 s/;

/** A server that would end its process, and a promise of that. */
async function openEnding<S extends TestServer>(
  t: TestContext,
  open: (t: TestContext, options: TestServerOptions) => Promise<S>,
  options: TestServerOptions = {},
) {
  const { promise: ended, resolve } = Promise.withResolvers<Error>();
  const settings = { storage: { stall_seconds: 10 }, ...options.settings };
  const purser = await open(t, { fatal: (error) => resolve(error as Error), ...options, settings });
  return { purser, ended };
}

/** Lets seconds pass in which the process looks at its disk. */
function pass({ clock, app }: Pick<TestServer, 'clock' | 'app'>, seconds: number): void {
  for (let i = 0; i < seconds; i++) {
    clock.advance(1);
    app.storage.look();
  }
}

/** Resolves when what a writer in this thread was asked for is written. */
async function written(): Promise<void> {
  for (let turn = 0; turn < 3; turn++) await new Promise((resolve) => setImmediate(resolve));
}

const newWallet = (purser: TestServer) =>
  purser.ask('POST', '/v1/wallets', {
    token: purser.accountKey,
    key: randomUUID(),
    body: { name: 'late', budget_cents: 100, expires_in_seconds: 60 },
  });

test('a disk that confirms nothing: those who wait are told that it is unknown, nothing more goes out, also when it answers later, and the process ends', async (t) => {
  const writer = holdWriter(t);
  const { purser, ended } = await openEnding(t, openTestServer, { writesHere: false });
  const { token } = await purser.openWallet();
  const late = gate(completion());
  purser.upstream.handle = late.handler;
  const inFlight = purser.chat(token);
  await waitFor('it is at the model', purser.upstream.arrived(1));

  writer.hold();
  const unheld = purser.chat(token);
  const wallet = newWallet(purser);
  late.open();
  await until('a settlement, a hold and a wallet wait for the disk', () => writer.held().length >= 3);
  pass(purser, 10);
  assert.equal((await purser.ask('GET', '/readyz')).status, 200, 'as long as it may take');
  pass(purser, 1);
  assert.match(purser.app.health.fault ?? '', REASON); // What readyz says, on the connections that are still open.
  for (const answer of await Promise.all([inFlight, unheld, wallet])) {
    assert.deepEqual([answer.status, answer.body.error.code], [503, 'operation_uncertain']);
    assert.match(answer.body.error.message, REASON);
    assert.match(answer.body.error.message, /same Idempotency-Key/);
  }
  assert.match((await ended).message, REASON);
  await assert.rejects(newWallet(purser), /ECONNREFUSED|other side closed|ECONNRESET/);

  const commits = purser.app.ledger.commitCount();
  writer.release();
  await until('the disk answers', () => purser.app.ledger.commitCount() > commits);
  await purser.app.inFlight.whenTheseEnd();
  assert.equal(purser.upstream.calls.length, 1, 'a hold that became durable too late calls no model');
});

test('what takes long, but is confirmed in time, ends nothing; nor does a pause of the process itself', async (t) => {
  const writer = holdWriter(t);
  const { purser } = await openEnding(t, openTestServer, {
    writesHere: false,
    fatal: (error) => assert.fail(error as Error),
  });
  writer.hold();
  const wallet = newWallet(purser);
  await until('it waits', () => writer.held().length > 0);
  pass(purser, 9);
  writer.release();
  assert.equal((await wallet).status, 201);
  pass(purser, 4);

  writer.hold();
  const second = newWallet(purser);
  await until('it waits', () => writer.held().length > 0);
  purser.clock.advance(3600);
  purser.app.storage.look();
  purser.app.storage.look();
  writer.release();
  assert.equal((await second).status, 201);
});

test('the books are written to within seconds while something is in flight or somebody uses them, and else not at all', async (t) => {
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet();
  const { ledger } = purser.app;
  const beats = async (seconds: number) => {
    const before = ledger.commitCount();
    pass(purser, seconds);
    await written();
    return ledger.commitCount() - before;
  };
  assert.equal(await beats(7), 1, 'the wallet was used');
  assert.equal(await beats(60), 0);
  const late = gate(completion());
  purser.upstream.handle = late.handler;
  const inFlight = purser.chat(token);
  await waitFor('it is at the model', purser.upstream.arrived(1));
  for (let i = 0; i < 3; i++) assert.equal(await beats(6), 1, 'a chat is in flight');
  late.open();
  assert.equal((await inFlight).status, 200);
  assert.equal(await beats(60), 0);
  await purser.budget(token);
  assert.equal(await beats(7), 1, 'a figure was read');
  assert.equal(await beats(60), 0);
  assert.deepEqual(purser.problems(), []);
});

test('while a machine is leased the books are written to; none is ended or extended before a commit that is younger than what it rests on', async (t) => {
  const writer = holdWriter(t);
  const { purser, ended } = await openEnding(t, openMemoryServer, { writesHere: false });
  const { machines } = purser.memory;
  const { token } = await purser.openWallet(LONG);
  const { body: lease } = await purser.lease(token);
  assert.equal(lease.status, 'running', lease.error?.message);
  const [kept] = [...machines.values()];
  assert(kept);
  const tag = tagOf(purser.app.installationId, 'res_00000000000000000000');
  const createdAt = Math.floor(purser.clock.wall() / 1000) - 1000;
  const orphan = () => machines.set('orphan', { ...kept, ref: 'orphan', tag, createdAt, deadline: 2 ** 40 });
  orphan();
  purser.app.state.sweepAt = 0;
  assert.equal((await purser.app.reaper.runOnce()).orphans, 1);
  assert(!machines.has('orphan'));

  orphan();
  purser.app.state.sweepAt = 0;
  writer.hold();
  const sweeping = purser.app.reaper.runOnce();
  await until('the sweep waits for a commit', () => writer.held().includes('beat'));
  assert(machines.has('orphan'));
  pass(purser, 11);
  assert.match((await ended).message, REASON);
  await sweeping;
  writer.release();
  await purser.app.storage.confirm().catch(() => {});
  assert.deepEqual([...machines.keys()], [kept.ref, 'orphan'], 'nothing was ended, though the disk answered later');
});

test('a lease alone keeps the books written to', async (t) => {
  const purser = await openMemoryServer(t);
  const { token } = await purser.openWallet(LONG);
  assert.equal((await purser.lease(token)).body.status, 'running');
  pass(purser, 7); // Since somebody used them.
  await written();
  for (let i = 0; i < 2; i++) {
    const before = purser.app.ledger.commitCount();
    pass(purser, 6);
    await written();
    assert.equal(purser.app.ledger.commitCount() - before, 1);
  }
});

for (const code of ['SQLITE_IOERR_READ', 'SQLITE_IOERR_SHMMAP'])
  test(`leases that cannot be read (${code}) have the same end: the watch asks whether there are any`, async (t) => {
    const { purser, ended } = await openEnding(t, openMemoryServer);
    const { token } = await purser.openWallet(LONG);
    assert.equal((await purser.lease(token)).body.status, 'running');
    pass(purser, 7); // Since somebody used them.
    await written();
    const read = t.mock.method(STATEMENTS, 'get', () => {
      throw new Client.SqliteError('disk I/O error', code);
    });
    pass(purser, 6);
    await until('the commit has failed', () => purser.app.health.fault !== undefined);
    read.mock.restore();
    assert.match((await ended).message, /disk I\/O error/);
  });

for (const code of ['SQLITE_IOERR_FSYNC', 'SQLITE_IOERR_WRITE', 'SQLITE_READONLY'])
  test(`${code} of a commit has the same end`, async (t) => {
    const { purser, ended } = await openEnding(t, openTestServer);
    const { token } = await purser.openWallet();
    const late = gate(completion());
    purser.upstream.handle = late.handler;
    const inFlight = purser.chat(token);
    await waitFor('it is at the model', purser.upstream.arrived(1));
    const failing = writeWith(purser.app.ledger, () => {
      throw new Client.SqliteError('the disk is gone', code);
    });
    await assert.rejects(failing, /not known: a commit failed \(the disk is gone\)/);
    assert.equal(purser.app.health.fault, 'a commit failed (the disk is gone)');
    const { status, body } = await inFlight;
    assert.deepEqual([status, body.error.code], [503, 'operation_uncertain']);
    assert.equal((await ended).message, 'the disk is gone');
    late.open();
  });

test('a read that the disk refuses has the same end', async (t) => {
  const { purser, ended } = await openEnding(t, openTestServer);
  const { token } = await purser.openWallet();
  t.mock.method(purser.app.tokens, 'find', () => {
    throw new Client.SqliteError('disk I/O error', 'SQLITE_IOERR_READ');
  });
  const { status, body } = await purser.ask('GET', '/v1/budget', { token });
  assert.deepEqual([status, body.error.code], [503, 'operation_uncertain']);
  assert.match(body.error.message, /a read failed \(disk I\/O error\)/);
  assert.equal((await ended).message, 'disk I/O error');
});

/** SQLite's word for a page that is damaged, and for one that the kernel cannot read. */
const MALFORMED = new Client.SqliteError('database disk image is malformed', 'SQLITE_CORRUPT');

/** Makes a request whose read finds the books malformed. */
async function readMalformed(t: TestContext, purser: TestServer, first = () => {}) {
  const { token } = await purser.openWallet();
  first();
  const find = t.mock.method(purser.app.tokens, 'find', () => {
    throw MALFORMED;
  });
  const { status, body } = await purser.ask('GET', '/v1/budget', { token });
  find.mock.restore();
  assert.deepEqual([status, body.error.code], [503, 'operation_uncertain']);
  assert.match(body.error.message, /a read failed \(database disk image is malformed\)/);
}

test('a read that finds the books malformed has the same end where no commit succeeds: the disk is gone', async (t) => {
  const { purser, ended } = await openEnding(t, openTestServer);
  await readMalformed(t, purser, () => loseDisk(t));
  assert.equal((await ended).message, 'disk I/O error');
  assert.equal(purser.app.health.fault, 'a commit failed (disk I/O error)');
});

test('a read that finds the books malformed on a disk that is there stops service, and not the server', async (t) => {
  const { purser } = await openEnding(t, openTestServer);
  const failed = t.mock.method(purser.app.events, 'failed');
  await readMalformed(t, purser);
  await until('service has stopped', () => purser.app.health.fault !== undefined);
  assert.equal(purser.app.health.fault, 'the books cannot be read: database disk image is malformed');
  assert.equal((await purser.ask('GET', '/readyz')).status, 503);
  assert.match((await newWallet(purser)).body.error.message, /not served: the books cannot be read: .*purser doctor/);
  assert.deepEqual(
    failed.mock.calls.map((it) => it.arguments.slice(0, 2)),
    [['books', MALFORMED]],
  );
});

test('the check of the chain, too, asks for a commit before it calls the books damaged', async (t) => {
  const { purser, ended } = await openEnding(t, openTestServer);
  purser.app.chain.start();
  loseDisk(t);
  const read = t.mock.method(STATEMENTS, 'all', () => {
    throw MALFORMED;
  });
  await until('the chain was read', () => read.mock.callCount() > 0);
  read.mock.restore();
  assert.equal((await ended).message, 'disk I/O error');
  assert.equal(purser.app.health.fault, 'a commit failed (disk I/O error)');
});

for (const [name, meanwhile] of [
  ['', async () => {}],
  [
    ', though commits on the directory that is gone succeed',
    async (purser: TestServer) => void (await newWallet(purser)),
  ],
] as const)
  test(`a data directory that was unmounted under the server has the same end${name}`, async (t) => {
    const { purser, ended } = await openEnding(t, openTestServer);
    await purser.openWallet();
    const aside = `${purser.directory}.unmounted`;
    renameSync(purser.directory, aside);
    mkdirSync(purser.directory); // The mount point, as it was before.
    try {
      for (let i = 0; i < 5; i++) {
        await meanwhile(purser);
        pass(purser, 1);
      }
      await until('it is noticed', () => purser.app.health.fault !== undefined);
      assert.match((await ended).message, /another directory is at \S+ now: the disk was unmounted$/);
      assert.match(purser.app.health.fault ?? '', /unmounted/);
    } finally {
      rmSync(purser.directory, { recursive: true });
      renameSync(aside, purser.directory);
    }
  });

test('a process that stood still for longer than a commit may take calls no model before the disk has confirmed a commit', async (t) => {
  const writer = holdWriter(t);
  const { purser } = await openEnding(t, openTestServer, { writesHere: false });
  const { token } = await purser.openWallet();
  assert.equal((await purser.chat(token)).status, 200);
  assert.equal(purser.app.storage.confirmAfterPause(), undefined, 'no commit where nothing is in doubt');

  purser.clock.advance(11);
  writer.hold();
  const confirmed = purser.app.storage.confirmAfterPause();
  assert(confirmed, 'not since it looked last');
  purser.app.storage.look();
  assert(purser.app.storage.confirmAfterPause(), 'a look at the disk is no commit');
  writer.release();
  await confirmed;
  assert.equal(purser.app.storage.confirmAfterPause(), undefined);
});

test('a hold of before a pause is no leave to call: another server may have the books', async (t) => {
  const { purser } = await openEnding(t, openTestServer);
  const { token } = await purser.openWallet();
  const { app, clock } = purser;
  const placed = app.ledger.write;
  let isPaused = false;
  app.ledger.write = async (write, data) => {
    const result = await placed(write, data);
    if (isPaused) clock.advance(11); // It stands still once the hold is on disk.
    return result;
  };
  isPaused = true;
  app.storage.confirmAfterPause = ((confirm) => () => {
    isPaused = false;
    const waits = confirm();
    assert(waits, 'it is confirmed before the call');
    app.storage.fail(new Error('the disk is another server’s'));
    return waits;
  })(app.storage.confirmAfterPause);
  const answer = await purser.chat(token);
  assert.deepEqual([answer.status, answer.body.error.code], [503, 'operation_uncertain']);
  assert.equal(purser.upstream.calls.length, 0);
});
