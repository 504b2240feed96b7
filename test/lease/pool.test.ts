import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { parse, stringify } from 'yaml';
import { changeResource, findResource, type Resource } from '../../src/ledger/resource.ts';
import { randomFrom, SEED } from '../helper/random.ts';
import { until } from '../helper/waiting.ts';
import { LONG, openMemoryPool, PRICE } from './leases.ts';

const open = (t: TestContext, more: object = {}) => openMemoryPool(t, ['a', 'b'], more);
type Pool = Awaited<ReturnType<typeof open>>;
const lost = () => {
  throw new Error('the connection was reset');
};
const rows = ({ app }: Pool) =>
  (app.ledger.client.prepare('select id from resource order by id').pluck().all() as string[]).map(
    (id) => findResource(app.ledger.read, id) as Resource,
  );
const backendsOf = (purser: Pool) => rows(purser).map((it) => it.backend);
const creates = (purser: Pool) =>
  (['a', 'b'] as const).map((it) => purser.memories[it].calls.filter((call) => call === 'create').length);

test('backends are filled in order, and every later call goes to the one that has the machine', async (t) => {
  const purser = await open(t);
  const { token } = await purser.openWallet(LONG);
  purser.memories.a.room = 1;
  const ids = [];
  for (let i = 0; i < 3; i++) ids.push((await purser.lease(token)).body.id as string);
  assert.deepEqual(await purser.machines(), ['a m1', 'b m1', 'b m2']);
  assert.deepEqual(
    (await purser.run('resource.list', {})).resources.map((it) => it.backend),
    ['b', 'b', 'a'],
  );
  for (const it of Object.values(purser.memories)) it.calls.length = 0;
  const exec = await purser.ask('POST', '/v1/compute/exec', { token, body: { id: ids[1], command: 'true' } });
  assert.equal(exec.status, 200, exec.text);
  assert.deepEqual([purser.memories.a.calls, purser.memories.b.calls], [[], ['exec']]);
  // Both have a machine m1: only that of the lease goes.
  await purser.stop(token, ids[1] as string);
  assert.deepEqual(await purser.machines(), ['a m1', 'b m2']);
  await purser.stop(token, ids[0] as string);
  await purser.lease(token);
  assert.deepEqual(await purser.machines(), ['a m2', 'b m2'], 'the first has room again');

  const metrics = await purser.app.events.registry.metrics();
  for (const line of [
    'purser_leases_live{slot="provider_one",backend="a"} 1',
    'purser_leases_live{slot="provider_one",backend="b"} 1',
    'purser_backend_up{slot="provider_one",backend="b"} 1',
    'purser_leases_live{slot="provider_three",backend="container"} 0',
  ])
    assert.ok(metrics.includes(line), line);
  assert.deepEqual(purser.problems(), []);
});

test('with most_free the backend with the most room comes first; one that cannot say comes last', async (t) => {
  const purser = await open(t, { fill: 'most_free' });
  const { token } = await purser.openWallet(LONG);
  const size = { a: 3, b: 4 };
  for (const name of ['a', 'b'] as const)
    Object.assign(purser.of(name), { freeFor: async () => size[name] - purser.memories[name].machines.size });
  for (let i = 0; i < 5; i++) assert.equal((await purser.lease(token)).status, 200);
  assert.deepEqual(backendsOf(purser), ['b', 'a', 'b', 'a', 'b']);
  Object.assign(purser.of('b'), { freeFor: async () => lost() });
  await purser.lease(token);
  assert.equal(backendsOf(purser).at(-1), 'a');
  // Whoever only knows whether there is room has one free.
  Object.assign(purser.of('a'), { freeFor: async () => 0 });
  const [offer] = await purser.of('b').offers();
  Object.assign(purser.of('b'), { freeFor: undefined, offers: async () => [{ ...offer, available: true }] });
  await purser.lease(token);
  assert.equal(backendsOf(purser).at(-1), 'b');
});

test('an unknown outcome stays with its backend: no other is asked, and the retry finds the machine', async (t) => {
  const purser = await open(t);
  const { token } = await purser.openWallet(LONG);
  purser.memories.a.after.create = lost;
  assert.equal((await purser.lease(token, 'k')).body.error.code, 'operation_uncertain');
  purser.memories.a.room = 0;
  const again = await purser.lease(token, 'k');
  assert.deepEqual([again.status, again.body.status], [200, 'running']);
  assert.deepEqual(creates(purser), [1, 0]);
  assert.deepEqual(await purser.machines(), ['a m1']);
  assert.deepEqual(backendsOf(purser), ['a']);
});

test('when all refuse, the tenant is told of the one that is full, the operator of each, and nothing is held', async (t) => {
  const purser = await open(t);
  const { token } = await purser.openWallet(LONG);
  purser.memories.a.room = 0;
  purser.memories.b.unreachable = true;
  const refused = await purser.lease(token);
  assert.deepEqual([refused.status, refused.body.error.code], [503, 'capacity_unavailable']);
  assert.equal(refused.body.error.message, 'No room. Nothing was charged.');
  assert.deepEqual(creates(purser), [1, 1]);
  const [row] = rows(purser);
  assert.match(row?.lastError ?? '', /^No room\. .*a: No room\. .*; b: Nobody answers\. /);
  assert.equal((await purser.budget(token)).held_usd, '0.00');
  purser.memories.a.unreachable = true;
  assert.equal((await purser.lease(token)).body.error.code, 'provider_unavailable');
});

test('a backend that is down stops no other, and is asked last while its leases fail', async (t) => {
  const purser = await open(t);
  const { token } = await purser.openWallet(LONG);
  const { id } = (await purser.lease(token)).body;
  Object.assign(purser.memories.a.before, { inspect: lost, destroy: lost, listOwned: lost });
  purser.clock.advance(60);
  await purser.app.reaper.runOnce();
  const { backends } = await purser.run('status', {});
  assert.deepEqual(
    backends.map((it) => [it.slot, it.backend, it.up, it.failing_leases]),
    [
      ['provider_one', 'a', false, 1],
      ['provider_one', 'b', true, 0],
      ['provider_three', 'container', true, 0],
    ],
  );
  assert.match(await purser.app.events.registry.metrics(), /purser_backend_up\{slot="provider_one",backend="a"\} 0/);
  assert.equal((await purser.lease(token)).status, 200);
  assert.deepEqual(creates(purser), [1, 1]);
  assert.equal((await purser.status(token, id)).status, 'running', 'what is on it is kept until something is known');
  purser.memories.a.before = {};
  purser.clock.advance(60);
  await purser.app.reaper.runOnce();
  await purser.lease(token);
  assert.deepEqual(creates(purser), [2, 1]);
});

test('a lease that is stopped while the first backend is asked is not made on the second', async (t) => {
  const purser = await open(t);
  const { id: walletId, token } = await purser.openWallet(LONG);
  purser.memories.a.room = 0;
  let closing: Promise<unknown> | undefined; // It waits for the create in turn.
  purser.memories.a.before.create = async () => {
    closing = purser.closeWallet(walletId);
    await until('the wallet is closing', () => purser.wallet(walletId).status !== 'active');
  };
  await purser.lease(token);
  await closing;
  assert.deepEqual(creates(purser), [1, 0]);
  assert.deepEqual(await purser.machines(), []);
  assert.deepEqual(purser.problems(), []);
});

test('a machine on another backend than its row names is found by its tag, while one that is down is not waited for', async (t) => {
  const purser = await openMemoryPool(t, ['a', 'b', 'c']);
  const { token } = await purser.openWallet(LONG);
  purser.memories.a.room = 0;
  purser.memories.c.before.find = lost;
  purser.memories.b.after.create = lost;
  assert.equal((await purser.lease(token, 'k')).body.error.code, 'operation_uncertain');
  const [{ id }] = rows(purser as never) as [Resource];
  // As a backup from before the second was asked has it.
  const values = { backend: 'a', quarantinedAt: purser.app.clock.now() };
  await purser.app.ledger.write(changeResource, { id, values });
  const { leases } = await purser.run('resource.reconcile', {});
  assert.deepEqual(
    leases.map((it) => [it.machine, it.would_end]),
    [['running', null]],
    'what would be done is what is reported',
  );
  await purser.app.ledger.write(changeResource, { id, values: { quarantinedAt: null } });
  const found = await purser.lease(token, 'k');
  assert.deepEqual([found.status, found.body.status], [200, 'running']);
  assert.deepEqual(backendsOf(purser as never), ['b']);
  await purser.stop(token, id);
  assert.deepEqual(await purser.machines(), []);
});

test('two backends that lead to the same engine do not take each other’s machines for orphans', async (t) => {
  const purser = await open(t);
  const { token } = await purser.openWallet(LONG);
  purser.memories.a.machines = purser.memories.b.machines;
  const { id } = (await purser.lease(token)).body;
  purser.clock.advance(400);
  for (let i = 0; i < 2; i++) {
    await purser.app.reaper.runOnce();
    purser.clock.advance(100);
  }
  assert.equal((await purser.status(token, id)).status, 'running');
});

test('what is offered alike by several is one offer, available while one has room', async (t) => {
  const purser = await open(t);
  const { token } = await purser.openWallet(LONG);
  const offers = async () =>
    (await purser.ask('GET', '/v1/compute/offers', { token })).body.offers
      .filter((it: { provider: string }) => it.provider === 'provider_one')
      .map((it: { available: boolean }) => it.available);
  assert.deepEqual(await offers(), [false], 'neither engine is there');
  const [offer] = await purser.of('b').offers();
  Object.assign(purser.of('b'), { offers: async () => [{ ...offer, available: true }] });
  assert.deepEqual(await offers(), [true]);
  Object.assign(purser.of('a'), { offers: lost });
  assert.deepEqual(await offers(), [true]);
});

test('backends with another price are left out, and the lease has the limits that all candidates keep', async (t) => {
  const purser = await open(t);
  const { token } = await purser.openWallet(LONG);
  const change = (name: 'a' | 'b', quoted: object) => {
    const { quote } = purser.of(name);
    Object.assign(purser.of(name), { quote: async (spec: never) => ({ ...(await quote(spec)), ...quoted }) });
  };
  change('a', { maxSeconds: 1200 });
  const first = (await purser.lease(token)).body;
  assert.equal(rows(purser)[0]?.maxSeconds, 1200);
  assert.equal(first.charged_usd, PRICE);
  const longer = await purser.lease(token, undefined, { max_seconds: 1800 });
  assert.equal(longer.status, 200);
  assert.deepEqual(backendsOf(purser), ['a', 'b'], 'only the second rents for so long');
  assert.equal((await purser.lease(token, undefined, { max_seconds: 3601 })).body.error.code, 'lease_limit_exceeded');
  change('b', { priceHourly: 1n });
  purser.memories.a.room = 0;
  assert.equal((await purser.lease(token)).body.error.code, 'capacity_unavailable');
});

test('a backend with live leases cannot leave the list; one joins it beside the leases of a slot that had one', async (t) => {
  const purser = await open(t);
  const { token } = await purser.openWallet(LONG);
  purser.memories.a.room = 0;
  const { id } = (await purser.lease(token)).body;
  const file = join(purser.directory, 'purser.yaml');
  const whole = readFileSync(file, 'utf8');
  const edit = (change: (list: { name?: string }[]) => unknown) => () => {
    const settings = parse(whole);
    settings.compute.provider_one = change(settings.compute.provider_one.backends);
    writeFileSync(file, stringify(settings));
  };
  await assert.rejects(
    purser.reopen(edit((list) => ({ backends: list.slice(0, 1) }))),
    (error: Error) =>
      error.message.includes('compute.provider_one no longer has the backend b') && error.message.includes(id),
  );
  await purser.reopen(edit((list) => ({ backends: list.slice(1) })));
  await purser.stop(token, id);
  const { name: _, ...alone } = parse(whole).compute.provider_one.backends[0];
  await purser.reopen(edit(() => alone));
  assert.equal((await purser.lease(token)).body.error?.code, undefined);
  assert.equal(backendsOf(purser).at(-1), 'container');
  await purser.reopen(edit((list) => ({ backends: [alone, list[1]] })));
  assert.deepEqual(
    purser.app.slots.list.map(({ slotPath: place }) => place),
    ['provider_one container', 'provider_one b', 'provider_three'],
  );
});

/** Every await of a create that goes on to a second backend, at which the process may die. */
const DEATHS = [
  ['before', 'a', 'create'],
  ['after', 'a', 'create'],
  ['before', 'b', 'create'],
  ['after', 'b', 'create'],
  ['before', 'b', 'inspect'],
  ['after', 'b', 'extend'],
] as const;
for (const [when, backend, call] of DEATHS)
  test(`dying ${when} ${call} of ${backend} leaves no machine that no row knows, and none twice`, async (t) => {
    const purser = await open(t);
    const { id: walletId, token } = await purser.openWallet(LONG);
    purser.memories.a.room = 0;
    const died = Promise.withResolvers<void>();
    const never = Promise.withResolvers<never>();
    const memory = purser.memories[backend];
    memory[when][call] = () => {
      died.resolve();
      return never.promise;
    };
    void purser.lease(token, 'k').catch(() => {});
    await died.promise;
    await assertRecovered(purser, walletId, token, () => {
      delete memory[when][call];
      return purser.crash(() => never.reject(new Error('it is dead')));
    });
  });

for (const when of ['before', 'after'] as const)
  test(`dying ${when} the write that names the second backend leaves no machine that no row knows`, async (t) => {
    const purser = await open(t);
    const { id: walletId, token } = await purser.openWallet(LONG);
    purser.memories.a.room = 0;
    const died = Promise.withResolvers<void>();
    const never = Promise.withResolvers<never>();
    const { write } = purser.app.ledger;
    t.mock.method(purser.app.ledger, 'write', async (it: { name: string }, ...data: never[]) => {
      if (it.name !== 'lease.move') return write(it as never, ...(data as [never]));
      if (when === 'after') await write(it as never, ...(data as [never]));
      died.resolve();
      return never.promise;
    });
    void purser.lease(token, 'k').catch(() => {});
    await died.promise;
    await assertRecovered(purser, walletId, token, () => purser.crash(() => never.reject(new Error('it is dead'))));
    assert.equal(rows(purser)[0]?.backend, when === 'after' ? 'b' : 'a');
  });

/** After the crash: the same key has no second machine, live rows and machines are the same, and the wallet can be closed. */
async function assertRecovered(purser: Pool, walletId: string, token: string, crash: () => Promise<void>) {
  await crash();
  const again = await purser.lease(token, 'k');
  assert.ok([200, 503].includes(again.status), again.text);
  for (let i = 0; i < 4; i++) {
    purser.clock.advance(10);
    await purser.app.reaper.runOnce();
  }
  assertOneEach(purser);
  const live = rows(purser).filter((it) => it.endedAt === null);
  assert.equal((await purser.machines()).length, live.length);
  assert.equal((await purser.closeWallet(walletId)).status, 200);
  assert.deepEqual(await purser.machines(), []);
  assert.deepEqual(purser.problems(), []);
}

/** No two machines carry the same tag, on whichever backends. */
function assertOneEach({ memories }: Pool) {
  const tags = Object.values(memories).flatMap(({ machines }) => [...machines.values()].map((it) => it.tag));
  assert.equal(new Set(tags).size, tags.length, tags.join(' '));
}

test('under random refusals, lost answers and crashes no lease ever has two machines', async (t) => {
  t.diagnostic(`seed ${SEED}`);
  const random = randomFrom(SEED);
  const purser = await openMemoryPool(t, ['a', 'b', 'c']);
  const { id: walletId, token } = await purser.openWallet({ ...LONG, budget_cents: 5000 });
  const memories = Object.values(purser.memories);
  const never = Promise.withResolvers<never>();
  for (let i = 0; i < 60; i++) {
    let died: (() => void) | undefined;
    const hasDied = new Promise<void>((resolve) => {
      died = resolve;
    });
    for (const it of memories) {
      const kind = Math.floor(random() * 8);
      it.room = kind < 3 ? 0 : Number.POSITIVE_INFINITY;
      it.unreachable = kind === 3;
      it.before = kind === 4 ? { create: lost } : kind === 7 ? { find: lost } : {};
      it.after = kind === 5 ? { create: lost } : {};
      if (kind === 6 && i % 5 === 0)
        it[random() < 0.5 ? 'before' : 'after'].create = () => {
          died?.();
          return never.promise;
        };
    }
    const key = `k${Math.floor(random() * 40)}`;
    const asked = purser.lease(token, key).catch(() => undefined);
    if ((await Promise.race([asked, hasDied.then(() => 'died')])) === 'died') {
      for (const it of memories) Object.assign(it, { before: {}, after: {} });
      await purser.crash(() => never.reject(new Error('it is dead')));
    }
    assertOneEach(purser as never);
    if (random() < 0.3) {
      purser.clock.advance(10);
      await purser.app.reaper.runOnce();
      assertOneEach(purser as never);
    }
  }
  for (const it of memories) Object.assign(it, { before: {}, after: {}, room: Number.POSITIVE_INFINITY });
  for (let i = 0; i < 6; i++) {
    purser.clock.advance(20);
    await purser.app.reaper.runOnce();
  }
  const live = rows(purser as never).filter((it) => it.endedAt === null);
  assert.equal((await purser.machines()).length, live.length);
  assert.equal((await purser.closeWallet(walletId)).status, 200);
  assert.deepEqual(await purser.machines(), []);
  assert.deepEqual(purser.problems(), []);
});
