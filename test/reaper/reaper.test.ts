import assert from 'node:assert/strict';
import test, { type TestContext } from 'node:test';
import { setTimeout } from 'node:timers/promises';
import { createKeyring } from '../../src/access/keyring.ts';
import { createClock, systemTime } from '../../src/base/clock.ts';
import { createKeyedMutex } from '../../src/base/keyed-mutex.ts';
import { createLimit } from '../../src/base/limits.ts';
import { createLog } from '../../src/base/log.ts';
import { centsToNanos } from '../../src/base/money.ts';
import { createActivity } from '../../src/compute/activity.ts';
import { createSlots } from '../../src/compute/slots.ts';
import { createKeepMemory } from '../../src/lease/keep.ts';
import { createOutages } from '../../src/lease/outages.ts';
import { createRoomQueue } from '../../src/lease/room-queue.ts';
import { createTenantOf } from '../../src/ledger/tenant.ts';
import { findWallet } from '../../src/ledger/wallet.ts';
import { createReaper, type ReaperApp } from '../../src/reaper/reaper.ts';
import { createFundsQueue } from '../../src/spend/funds-queue.ts';
import { createInFlight } from '../../src/spend/in-flight.ts';
import { createEvents } from '../../src/telemetry/events.ts';
import { open } from '../../src/wallet/open.ts';
import { createRandom, SEED } from '../helper/random.ts';
import { handClock, openTestServer } from '../helper/server.ts';
import { reset } from '../helper/upstream.ts';
import { done, MASTER_KEY_ID, openBooks, unknown } from '../ledger/books.ts';

/**
 * A reaper over real books, with its timers and both clocks in hand. `begun` counts passes, `atOnce` the most that ran
 * at the same time, and `gate` keeps what a pass writes from going on.
 */
async function openReaper(t: TestContext) {
  const books = await openBooks(t);
  t.mock.timers.enable({ apis: ['setTimeout'] });
  const time = handClock();
  const log = createLog('silent');
  const clock = createClock(time, { at: 0 }, log);
  const passes = { begun: 0, running: 0, atOnce: 0 };
  let gate = Promise.resolve();
  const app: ReaperApp = {
    ledger: {
      ...books.ledger,
      async write(write, data) {
        await gate;
        return books.ledger.write(write, data);
      },
    },
    clock,
    tenantOf: createTenantOf(books.ledger.read),
    events: createEvents(log),
    inFlight: createInFlight(),
    fundsQueue: createFundsQueue(
      () => 0,
      createTenantOf(books.ledger.read),
      () => {},
    ),
    roomQueue: createRoomQueue(async () => false, createTenantOf(books.ledger.read)),
    config: {
      close_wait_seconds: 0,
      keep: { cpu_percent: 5 },
      router: {
        upstreams: [],
        models: [],
        uncertain: { after_seconds: 100, policy: 'charge' },
        on_cancel: 'stop',
        cancel_grace_seconds: 3,
      },
    },
    limits: { released: createLimit(0, time.monotonic), unspent: createLimit(0, time.monotonic) },
    storage: { confirmAfterPause: () => undefined },
    wakeAt() {},
    slots: createSlots([]),
    leaseMutex: createKeyedMutex(),
    warm: {
      ...{ ids: () => [], count: () => 0, take: () => undefined, takeProof: () => false, giveBack() {} },
      ...{ async tend() {}, async lease() {}, makeRoom: async () => false, async close() {} },
    } as ReaperApp['warm'],
    egress: {
      async open() {},
      async narrow() {},
      reached: () => undefined,
      secretsFor: () => undefined,
      hasSecrets: () => false,
      start() {},
      close() {},
    },
    outages: createOutages(),
    leaseChecks: new Map(),
    waitingFor: new Map(),
    resumeFractions: new Map(),
    usages: new Map(),
    activity: createActivity(),
    keeps: createKeepMemory(),
    installationId: 'inst_test',
    answerSeconds: 30,
    state: { sweepAt: 0 },
    keyring: createKeyring({ id: MASTER_KEY_ID, key: Buffer.alloc(32) }),
    keysWalked: new Map(),
    paymentPoller: undefined,
    health: {
      // Every pass asks this first, and once.
      get fault() {
        passes.begun++;
        passes.running++;
        passes.atOnce = Math.max(passes.atOnce, passes.running);
        return undefined;
      },
    },
    diskReserve: { shortage: () => undefined },
    keysUsed: {
      // The last that a pass looks at.
      get size() {
        passes.running--;
        return 0;
      },
    } as Map<string, number>,
  };
  const account = await books.account(100_000, clock.now());
  const reaper = createReaper(app);
  t.after(() => reaper.stop());
  return {
    books,
    reaper,
    running: app.inFlight,
    passes,
    now: clock.now,
    wallet: async (seconds: number) => (await books.wallet(account, { expiresInSeconds: seconds }, clock.now())).id,
    status: (id: string) => findWallet(books.ledger.read, id)?.status,
    /** Time passes for everybody; what was due in it has been done afterwards. */
    async pass(seconds: number) {
      time.advance(seconds);
      t.mock.timers.tick(seconds * 1000);
      await turns();
    },
    shut() {
      const { promise, resolve } = Promise.withResolvers<void>();
      gate = promise;
      return resolve;
    },
  };
}
/** More turns of the event loop than a pass needs. */
async function turns(count = 50): Promise<void> {
  for (let i = 0; i < count; i++) await new Promise((resolve) => setImmediate(resolve));
}

test('it looks at the books when it starts, and then once a minute, even with nothing due', async (t) => {
  const { reaper, passes, pass } = await openReaper(t);
  await pass(300);
  assert.equal(passes.begun, 0, 'not before it starts');
  reaper.start();
  await pass(0);
  assert.equal(passes.begun, 1);
  await pass(59);
  assert.equal(passes.begun, 1, 'it sleeps, it does not poll');
  await pass(1);
  assert.equal(passes.begun, 2);
});

test('it is awake when the next wallet expires', async (t) => {
  const { reaper, pass, wallet, status } = await openReaper(t);
  const [soon, later] = [await wallet(10), await wallet(30)];
  reaper.start();
  await pass(0);
  await pass(9);
  assert.deepEqual([status(soon), status(later)], ['active', 'active']);
  await pass(1);
  assert.deepEqual([status(soon), status(later)], ['closed', 'active']);
  await pass(20);
  assert.equal(status(later), 'closed');
});

test('a deadline that comes up while it sleeps wakes it in time, and a later one does not delay it', async (t) => {
  const { reaper, pass, wallet, status, now, passes } = await openReaper(t);
  reaper.start();
  await pass(0);
  const id = await wallet(5);
  reaper.wakeAt(now() + 5);
  reaper.wakeAt(now() + 50);
  await pass(4);
  assert.equal(passes.begun, 1);
  await pass(1);
  assert.equal(status(id), 'closed');
});

test('a deadline that comes up during a pass is not slept through', async (t) => {
  const { reaper, pass, wallet, status, now, shut } = await openReaper(t);
  const first = await wallet(1);
  reaper.start();
  await pass(0);
  const letOn = shut();
  await pass(1);
  reaper.wakeAt(now() + 2);
  const second = await wallet(2);
  assert.equal(status(first), 'active', 'the pass is in the middle');
  letOn();
  await turns();
  assert.equal(status(first), 'closed');
  await pass(2);
  assert.equal(status(second), 'closed');
});

test('what is uncertain is decided when its policy comes, without being called', async (t) => {
  const { reaper, pass, wallet, books, now } = await openReaper(t);
  const id = await wallet(0);
  const operation = await books.hold(id, 5n, {}, now());
  await books.settle(operation.id, unknown, now());
  reaper.start();
  await pass(0);
  for (const [seconds, held] of [
    [60, 5n],
    [39, 5n],
    [1, 0n],
  ] as const) {
    await pass(seconds);
    assert.equal(findWallet(books.ledger.read, id)?.held, held);
  }
});

test('a wallet that cannot be closed yet is tried again every two seconds', async (t) => {
  const { reaper, running, pass, wallet, status, books, now, passes } = await openReaper(t);
  const id = await wallet(1);
  const operation = await books.hold(id, 5n, {}, now());
  const call = Promise.withResolvers<Buffer>();
  void running.drive(operation, async (started) => {
    started(operation.id);
    const answer = await call.promise;
    await books.settle(operation.id, done(5n), now());
    return answer;
  });
  reaper.start();
  await pass(0);
  await pass(1);
  assert.equal(status(id), 'expired');
  for (let i = 0; i < 5; i++) await pass(2);
  assert.equal(passes.begun, 7);
  call.resolve(Buffer.from('{}'));
  await turns();
  assert.equal(status(id), 'expired', 'it is only looked at when its time has come');
  await pass(2);
  assert.equal(status(id), 'closed');
});

test('a pass that fails is told of and tried again, and the reaper lives on', async (t) => {
  const { reaper, pass, wallet, status, books } = await openReaper(t);
  const id = await wallet(1);
  reaper.start();
  await pass(0);
  books.ledger.client.exec('alter table answer rename to gone');
  await pass(1);
  assert.equal(status(id), 'closed', 'one chore that fails stops no other');
  const late = await wallet(3);
  await pass(2);
  books.ledger.client.exec('alter table gone rename to answer');
  await pass(2);
  assert.equal(status(late), 'closed');
});

test('stopping waits for the pass that runs', async (t) => {
  const { reaper, pass, wallet, status, shut } = await openReaper(t);
  const id = await wallet(1);
  reaper.start();
  await pass(0);
  const letOn = shut();
  await pass(1);
  let stopped = false;
  const stopping = reaper.stop().then(() => {
    stopped = true;
  });
  await turns();
  assert.equal(stopped, false);
  letOn();
  await stopping;
  assert.equal(status(id), 'closed');
});

test('once stopped it does nothing until it is started again', async (t) => {
  const { reaper, pass, wallet, status, passes, now } = await openReaper(t);
  const id = await wallet(10);
  reaper.start();
  await pass(0);
  await reaper.stop();
  reaper.wakeAt(now());
  await pass(3600);
  assert.equal(passes.begun, 1);
  assert.equal(status(id), 'active');
  reaper.start();
  await pass(0);
  assert.equal(status(id), 'closed');
});

test('stopping before the start, twice, and starting twice are nothing special', async (t) => {
  const { reaper, pass, passes } = await openReaper(t);
  await reaper.stop();
  await Promise.all([reaper.stop(), reaper.stop()]);
  reaper.start();
  reaper.start();
  await pass(0);
  assert.equal(passes.begun, 1);
  await Promise.all([reaper.stop(), reaper.stop()]);
  await reaper.stop();
});

test('a start right after a stop that is not over yet never leads to two passes at once', async (t) => {
  const { reaper, pass, wallet, passes, shut, status } = await openReaper(t);
  const id = await wallet(1);
  reaper.start();
  await pass(0);
  const letOn = shut();
  await pass(1);
  const first = reaper.stop();
  reaper.start();
  await pass(10);
  assert.equal(passes.running, 1);
  let over = false;
  const second = reaper.stop().then(() => {
    over = true;
  });
  await turns();
  assert.equal(over, false, 'the second stop waits for the same pass');
  letOn();
  await Promise.all([first, second]);
  assert.equal(status(id), 'closed');
  assert.deepEqual([passes.running, passes.atOnce], [0, 1]);
});

test(`a thousand starts, stops and calls in any order: never two passes at once, and a stop is a stop (PURSER_TEST_SEED=${SEED})`, async (t) => {
  const { reaper, pass, wallet, passes, now } = await openReaper(t);
  const random = createRandom(SEED);
  const stops: Promise<void>[] = [];
  for (let i = 0; i < 1000; i++) {
    const what = random.weighted({ start: 30, stop: 15, forget: 15, wake: 15, time: 20, wallet: 5 });
    if (what === 'start') reaper.start();
    if (what === 'forget') stops.push(reaper.stop());
    if (what === 'wake') reaper.wakeAt(now() + random.whole(-1, 5));
    if (what === 'wallet') await wallet(random.whole(1, 20));
    if (what === 'time') await pass(random.whole(0, 3));
    if (what === 'stop') {
      await reaper.stop();
      const { begun } = passes;
      assert.equal(passes.running, 0);
      await pass(61);
      assert.equal(passes.begun, begun, 'nothing runs after a stop');
    }
    assert(passes.atOnce <= 1);
  }
  await reaper.stop();
  await Promise.all(stops);
  assert(passes.begun > 20, `${passes.begun} passes`);
});

test('by the real clock, a wallet that expires soon is closed without anybody asking', async (t) => {
  const purser = await openTestServer(t, { time: { ...systemTime, advance() {}, leap() {}, bootAgain() {} } });
  const { token } = await purser.openWallet();
  // The interface has no wallet that lives for so short a time; the ledger has.
  const order = {
    accountId: purser.accountId,
    name: 'short',
    parentId: null,
    budget: centsToNanos(100),
    expiresInSeconds: 3,
    requestId: 'req_1',
  };
  const short = await open(purser.app, { ...order, idempotencyKey: 'k', fingerprint: Buffer.alloc(32) });
  const read = async () =>
    (await purser.ask('GET', `/v1/wallets/${short.wallet.id}`, { token: purser.accountKey })).body;
  let record = await read();
  assert.equal(record.status, 'active');
  for (let i = 0; i < 100_000 && record.status !== 'closed'; i++) {
    await setTimeout(10);
    record = await read();
  }
  assert.deepEqual([record.status, record.close_reason, record.returned_cents], ['closed', 'expired', 100]);
  assert(record.closed_at >= record.expires_at);
  assert.equal((await purser.budget(token)).status, 'active', 'and no other');
});

test('what became uncertain is decided without anybody asking', async (t) => {
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet();
  purser.upstream.handle = reset;
  await purser.chat(token, { model: 'flat' });
  purser.clock.advance(900);
  purser.app.wakeAt(purser.app.clock.now());
  let budget = await purser.budget(token);
  for (let i = 0; i < 100_000 && budget.holds.length; i++) budget = await purser.budget(token);
  assert.deepEqual([budget.used_usd, budget.held_usd], ['0.01', '0.00']);
});
