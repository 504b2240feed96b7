import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import test, { type TestContext } from 'node:test';
import { followFaults } from '../../src/base/fault.ts';
import type { Pausing, Spec } from '../../src/compute/backend.ts';
import { createRoomQueue } from '../../src/lease/room-queue.ts';
import { findResource } from '../../src/ledger/resource.ts';
import { createAudience } from '../../src/spend/audience.ts';
import { holdTimeouts } from '../helper/held-timeouts.ts';
import type { Answer } from '../helper/server.ts';
import { UNHURRIED_MILLISECONDS, until } from '../helper/waiting.ts';
import { hold, type LeaseServer, LONG, openMemoryPool, openMemoryServer, SPEC } from './leases.ts';
import { pauses } from './pause-shared.ts';
import { MONTH, snapshotting } from './snapshot-shared.ts';

/** A create with `wait_seconds` waits for room where its slot is full (design 2.18). */

type Server = Awaited<ReturnType<typeof open>>;
/** Opens a server whose only place is taken by the lease `first` of a wallet. */
async function open(t: TestContext) {
  const real = setInterval;
  // A test is not saved by the check of all lines.
  t.mock.method(globalThis, 'setInterval', (run: () => void, milliseconds: number) =>
    real(run, milliseconds === 20_000 ? UNHURRIED_MILLISECONDS : milliseconds),
  );
  const purser = await openMemoryServer(t);
  purser.memory.room = 1;
  const { id, token } = await purser.openWallet(LONG);
  const first = (await purser.lease(token)).body.id as string;
  return Object.assign(purser, { walletId: id, token, first });
}

type Asked = { token?: string; key?: string; wait?: number; spec?: object; signal?: AbortSignal };
const create = (purser: Server, { token = purser.token, key = randomUUID(), wait = 600, spec, signal }: Asked = {}) =>
  purser.ask('POST', `/v1/compute/create?wait_seconds=${wait}`, {
    token,
    key,
    body: { provider: 'provider_one', spec: { ...SPEC, ...spec } },
    ...(signal ? { signal } : {}),
  });
const waiting = ({ app }: LeaseServer, count: number) =>
  until(
    () => `${count} wait; there are ${app.roomQueue.count()}`,
    () => app.roomQueue.count() === count,
  );
const codeOf = ({ status, body }: Answer) => [status, body.error?.code];
const FULL = [503, 'capacity_unavailable'];

test('a create waits for a machine to be given back, holds nothing meanwhile, and its key is the same request', async (t) => {
  const purser = await open(t);
  const made = create(purser, { key: 'k' });
  await waiting(purser, 1);
  const again = create(purser, { key: 'k' });
  const budget = await purser.budget(purser.token);
  assert.deepEqual([budget.held_usd, budget.holds], ['0.00', []]);
  assert.deepEqual(codeOf(await create(purser, { key: 'k', spec: { cpus: 1 } })), [409, 'idempotency_conflict']);
  assert.deepEqual(codeOf(await create(purser, { key: 'k', wait: 0 })), [409, 'idempotency_in_progress']);
  assert.equal(purser.app.roomQueue.count(), 1);
  await purser.stop(purser.token, purser.first);
  const [one, other] = await Promise.all([made, again]);
  assert.deepEqual([one.status, one.body.status, other.body.id], [200, 'running', one.body.id]);
  assert.deepEqual(one.headers['idempotent-replayed'] ?? other.headers['idempotent-replayed'], 'true');
  assert.deepEqual([purser.memory.made, purser.app.roomQueue.count()], [2, 0]);
  assert.deepEqual(purser.problems(), []);
});

test('the processors of a resumption that its engine refuses go to who waits', async (t) => {
  const purser = pauses(await open(t));
  const { memory, backend, token, first } = purser;
  assert.equal((await purser.pause(token, first)).status, 200);
  const pausing = backend.guest.pause as Pausing;
  const { status } = purser;
  // A machine takes a place unless its row says that it is paused, and the slot counts anew where that may have changed.
  t.mock.method(pausing, 'letGo', () => {
    memory.room = findResource(purser.app.ledger.read, first)?.status === 'paused' ? 2 : 1;
  });
  let made: Promise<Answer> | undefined;
  t.mock.method(pausing, 'end', async () => {
    made = create(purser);
    await waiting(purser, 1);
    return { kind: 'refused', reason: 'the engine is busy' };
  });
  assert.deepEqual(codeOf(await purser.resume(token, first)), [503, 'provider_unavailable']);
  assert.equal((await status(token, first)).status, 'paused');
  assert.equal((await made)?.body.status, 'running');
});

test('without wait_seconds, with 0, and when its time is up a create is refused as the backend said', async (t) => {
  const purser = await open(t);
  assert.deepEqual(codeOf(await purser.lease(purser.token)), FULL);
  assert.deepEqual(codeOf(await create(purser, { wait: 0 })), FULL);
  const late = await create(purser, { wait: 1 });
  assert.deepEqual([...codeOf(late), late.headers['retry-after']], [...FULL, '10']);
  assert.equal(late.body.error.message, 'No room. Nothing was charged.');
  assert.equal(purser.app.roomQueue.count(), 0);
});

test('those who wait are served in the order in which they came, each as soon as the one before has its machine', async (t) => {
  const purser = await open(t);
  const ended: string[] = [];
  const lined = [];
  for (const name of ['a', 'b', 'c']) {
    const { token } = await purser.openWallet(LONG);
    lined.push(create(purser, { token }).then((it) => ended.push(`${name} ${it.body.status}`)));
    await waiting(purser, lined.length);
  }
  for (const count of [1, 2]) {
    for (const { ref } of [...purser.memory.machines.values()]) purser.memory.machines.delete(ref);
    purser.app.roomQueue.wake('provider_one');
    await until('the next has its machine', () => ended.length === count);
  }
  // The machine that is made does not run yet: the next is not kept from its own.
  purser.memory.ready = false;
  const last = create(purser);
  await waiting(purser, 2);
  purser.memory.room = 3;
  purser.app.roomQueue.wake('provider_one');
  await until('both are made', () => purser.memory.made === 5);
  await waiting(purser, 0);
  for (const it of purser.memory.machines.values()) it.state = 'running';
  await Promise.all([...lined, last]);
  assert.deepEqual(ended, ['a running', 'b running', 'c running']);
});

test('a machine that does not fit keeps nobody from one that does', async (t) => {
  const purser = await open(t);
  const { backend, memory } = purser;
  memory.room = 2;
  backend.freeFor = async (spec: Spec) => ('cpus' in spec && spec.cpus > 1 ? 0 : memory.room - memory.machines.size);
  const full = memory.before.create;
  memory.before.create = (({ quote }: { quote: { spec: { cpus: number } } }) => {
    memory.room = quote.spec.cpus > 1 ? 0 : 2;
  }) as NonNullable<typeof full>;
  const large = create(purser, { spec: { cpus: 2 }, wait: 2 });
  await waiting(purser, 1);
  memory.room = 2;
  assert.equal((await create(purser)).body.status, 'running');
  assert.deepEqual(codeOf(await large), FULL);
});

for (const what of ['from a snapshot', 'for longer than another backend sells'])
  test(`a create ${what} waits for room where that is, and keeps no create of its wallet from room elsewhere`, async (t) => {
    const purser = snapshotting(await openMemoryPool(t, ['a', 'b']));
    const { token } = await purser.openWallet(MONTH);
    purser.memories.a.room = 1;
    const { quote } = purser.of('b');
    Object.assign(purser.of('b'), { quote: async (spec: Spec) => ({ ...(await quote(spec)), maxSeconds: 900 }) });
    const first = (await purser.lease(token)).body.id;
    const snapshot = (await purser.snapshot(token, first)).body.snapshot_id;
    const wait = (query = '', seconds = 600) =>
      purser.ask('POST', `/v1/compute/create?wait_seconds=600${query}`, {
        token,
        key: randomUUID(),
        body: { provider: 'provider_one', spec: { ...SPEC, max_seconds: seconds } },
      });
    const bound = what === 'from a snapshot' ? wait(`&snapshot=${snapshot}`) : wait('', 1200);
    await waiting(purser, 1);
    const plain = await wait();
    assert.deepEqual([plain.body.status, await purser.machines()], ['running', ['a m1', 'b m1']]);
    purser.app.roomQueue.wake('provider_one');
    await purser.stop(token, first);
    assert.equal((await bound).body.status, 'running');
    assert.deepEqual(await purser.machines(), ['a m2', 'b m1']);
    const refused = purser.app.ledger.client.prepare("select count(*) from resource where status = 'failed'").pluck();
    assert.equal(Number(refused.get()), 1, 'where there is no room it is not asked again');
    assert.deepEqual(purser.problems(), []);
  });

test('a backend that refuses although it seems to have room is asked once for equal creates of a wallet until a machine is given back', async (t) => {
  const purser = await open(t);
  const { id, token } = await purser.openWallet(LONG);
  purser.backend.freeFor = async () => 1;
  const asked: string[] = [];
  purser.memory.before.create = ({ walletId }: { walletId: string }) => asked.push(walletId);
  const made = create(purser);
  await until('it has had its turn', () => asked.length === 2);
  await waiting(purser, 1);
  const equal = create(purser, { spec: { max_seconds: 300 } });
  await waiting(purser, 2);
  const other = create(purser, { token });
  await until('that of another wallet has had its turn', () => asked.includes(id));
  await waiting(purser, 3);
  assert.deepEqual(asked, [purser.walletId, purser.walletId, id]);
  await purser.stop(purser.token, purser.first);
  for (const [its, ofWallet] of [
    [made, purser.token],
    [equal, purser.token],
    [other, token],
  ] as const) {
    const { body } = await its;
    assert.equal(body.status, 'running');
    await purser.stop(ofWallet, body.id);
  }
  assert.deepEqual(purser.problems(), []);
});

test('a create behind a line is refused at once for what its wallet does not allow', async (t) => {
  const purser = await open(t);
  const first = create(purser);
  await waiting(purser, 1);
  const poor = await purser.openWallet({ budget_cents: 100, expires_in_seconds: 7200 });
  const dear = { cpus: 2, memory_gib: 1, max_seconds: 3600 };
  const spent = await purser.openWallet({ budget_cents: 100, expires_in_seconds: 120 });
  assert.deepEqual(codeOf(await create(purser, { token: spent.token })), [409, 'lease_limit_exceeded']);
  await purser.run('wallet.freeze', { id: poor.id, reason: 'asked' });
  assert.deepEqual(codeOf(await create(purser, { token: poor.token, spec: dear })), [403, 'wallet_frozen']);
  assert.equal(purser.memory.calls.filter((it) => it === 'create').length, 2);
  await purser.stop(purser.token, purser.first);
  await first;
});

for (const [what, end, expected] of [
  ['frozen', (it) => it.run('wallet.freeze', { id: it.walletId, reason: 'asked' }), [403, 'wallet_frozen']],
  ['closed', (it) => it.closeWallet(it.walletId), [409, 'wallet_closed']],
] as [string, (purser: Server) => Promise<unknown>, unknown[]][])
  test(`the wait ends at once when its wallet is ${what}`, async (t) => {
    const purser = await open(t);
    const { token } = await purser.openWallet(LONG);
    const [mine, other] = [create(purser), create(purser, { token })];
    await waiting(purser, 2);
    await end(purser);
    assert.deepEqual(codeOf(await mine), expected);
    if (what === 'frozen') await waiting(purser, 1);
    else assert.equal((await other).body.status, 'running', 'what the wallet had is free');
    assert.equal((await purser.budget(purser.token)).held_usd, '0.00');
    await purser.stop(purser.token, purser.first);
    assert.equal((await other).status, 200);
    assert.deepEqual(purser.problems(), []);
  });

test('a server that stops ends all waits, and one that dies leaves nothing of them', async (t) => {
  const purser = await open(t);
  const made = create(purser, { key: 'k' });
  await waiting(purser, 1);
  await purser.app.drain(Promise.resolve());
  assert.deepEqual(codeOf(await made), [503, 'read_only']);
  await purser.reopen();
  const lost = create(purser, { key: 'k' });
  lost.catch(() => {});
  await waiting(purser, 1);
  await purser.crash(() => {});
  assert.deepEqual([(await purser.budget(purser.token)).holds, purser.memory.machines.size], [[], 1]);
  await purser.stop(purser.token, purser.first);
  assert.equal((await create(purser, { key: 'k' })).body.status, 'running');
  assert.equal(purser.memory.machines.size, 1);
  assert.deepEqual(purser.problems(), []);
});

test('a client that leaves keeps its place for five seconds', async (t) => {
  const time = holdTimeouts(t, 5000);
  const purser = await open(t);
  const leave = new AbortController();
  create(purser, { key: 'k', signal: leave.signal }).catch(() => {});
  await waiting(purser, 1);
  leave.abort();
  await time.set(1);
  // It comes back, and is told to come again: it counts until it has had the time to.
  assert.deepEqual(codeOf(await create(purser, { key: 'k', wait: 0 })), [409, 'idempotency_in_progress']);
  await time.set(2);
  assert.equal(purser.app.roomQueue.count(), 1);
  time.expire();
  await waiting(purser, 0);
  await until('nothing runs', () => purser.app.inFlight.count() === 0);
  await purser.stop(purser.token, purser.first);
  assert.equal(purser.memory.machines.size, 0, 'nobody waits for it');
});

test('the seventeenth create of a wallet that would wait is refused at once', async (t) => {
  const purser = await open(t);
  purser.app.limits.released.check = () => {};
  const lined = Array.from({ length: 16 }, () => create(purser, { wait: 3 }));
  await waiting(purser, 16);
  assert.match(await purser.app.events.registry.metrics(), /^purser_creates_waiting 16$/m);
  assert.deepEqual(codeOf(await create(purser)), FULL);
  const { token } = await purser.openWallet(LONG);
  assert.deepEqual(codeOf(await create(purser, { token, wait: 1 })), FULL);
  for (const it of await Promise.all(lined)) assert.deepEqual(codeOf(it), FULL);
});

test('a create that was answered while its machine is made is not tried again when that is refused', async (t) => {
  const purser = await open(t);
  const slow = hold();
  const made = create(purser, { key: 'k', wait: 1 });
  await waiting(purser, 1);
  purser.memory.before.create = slow.wait;
  purser.backend.freeFor = async () => 1;
  purser.app.roomQueue.wake('provider_one');
  const { status, body } = await made;
  assert.deepEqual([status, body.status], [200, 'provisioning']);
  slow.go();
  await until('it has failed', async () => (await purser.status(purser.token, body.id)).status === 'failed');
  await waiting(purser, 0);
  assert.deepEqual([purser.memory.made, (await purser.budget(purser.token)).held_usd], [1, '0.00']);
  assert.deepEqual(purser.problems(), []);
});

test('room that nobody told of is found by looking', async () => {
  let isFree = false;
  const tenant = { treeId: 'wal_a', accountId: 'acct_a' };
  const queue = createRoomQueue(
    async () => isFree,
    () => tenant as never,
    1,
  );
  const order = {
    slot: 'provider_one',
    spec: { ...SPEC, gpu: null, gpus: 0 },
    walletId: 'wal_a',
    places: () => undefined,
  } as const;
  const turn = queue.join({ ...order, answerAt: performance.now() + 600_000, isRefused: () => false });
  const come = turn?.come(createAudience());
  assert.equal(queue.hasLine('provider_one', { ...order.spec, cpus: 9 }), true);
  assert.equal(
    queue.hasLine('provider_one', { ...order.spec, gpu: 'h100', gpus: 1 }),
    false,
    'another kind of machine',
  );
  await new Promise(setImmediate);
  isFree = true;
  assert.equal(await come, 'turn');
  turn?.leave();
  assert.equal(queue.count(), 0);
});

test('however often the books change, waits in vain are looked for once in a while, and one that cannot be judged is reported', async (t) => {
  const held: (() => void)[] = [];
  t.mock.method(globalThis, 'setTimeout', (run: () => void) => {
    held.push(run);
    return { unref() {} };
  });
  const queue = createRoomQueue(
    async () => false,
    () => ({ treeId: 'wal_a', accountId: 'acct_a' }) as never,
  );
  let [count, isFrozen] = [0, false];
  const isRefused = () => {
    count++;
    if (count === 3) throw new Error('the books cannot be read');
    return isFrozen;
  };
  const order = {
    slot: 'provider_one',
    spec: { ...SPEC, gpu: null, gpus: 0 },
    walletId: 'wal_a',
    places: () => undefined,
  } as const;
  const turn = queue.join({ ...order, answerAt: performance.now() + 600_000, isRefused });
  const come = turn?.come(createAudience());
  const change = async (from: number) => {
    for (const it of Array.from({ length: 100 }, (_, at) => from + at)) {
      queue.changed(it);
      await new Promise(setImmediate);
    }
  };
  await change(1);
  assert.deepEqual([count, held.length], [1, 1]);
  held[0]?.();
  assert.equal(count, 2);
  await change(200);
  const faults: string[] = [];
  using _ = followFaults((where, error) => faults.push(`${where}: ${(error as Error).message}`));
  held[1]?.();
  isFrozen = true;
  await change(400);
  held[2]?.();
  assert.equal(await come, 'turn');
  assert.deepEqual([count, held.length, faults], [4, 3, ['timer: the books cannot be read']]);
  turn?.leave();
});
