import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { doubtBooks } from '../../src/lease/report-only.ts';
import { findResource, type Resource } from '../../src/ledger/resource.ts';
import { hold, LONG, openMemoryServer, SPEC } from './leases.ts';
import { pauses } from './pause-shared.ts';

const SIZE = { cpus: SPEC.cpus, memory_gib: SPEC.memory_gib };
/** A minute after one could not be made, another is. */
const RETRY_SECONDS = 60;

type Server = Awaited<ReturnType<typeof openMemoryServer>>;
/** Opens a server that keeps `count` machines of the size of `SPEC` made. One for an hour costs two dollars. */
async function open(t: TestContext, count = 1): Promise<Server> {
  const purser = await openMemoryServer(t, {
    change: (settings) => ({
      ...settings,
      compute: {
        ...settings.compute,
        provider_one: {
          ...settings.compute.provider_one,
          prices: { cpu_hourly_usd: '4', memory_gib_hourly_usd: '0' },
          warm: [{ count, ...SIZE }],
        },
      },
    }),
  });
  await tend(purser);
  assert.equal(warm(purser), count);
  return purser;
}
/** Has the pool do what is due by now. The first pass of a server has found an engine that is not there. */
async function tend(purser: Server) {
  purser.clock.advance(RETRY_SECONDS);
  await purser.app.warm.tend();
}
const warm = ({ app, backend }: Pick<Server, 'app' | 'backend'>) => app.warm.count(backend);
const row = ({ app }: Server, id: string) => findResource(app.ledger.read, id) as Resource;
const failures = ({ log }: Server) => log.filter((it) => it.includes('"event":"warm.failed"')).length;
const made = ({ memory }: Server) => memory.calls.filter((it) => it === 'create').length;

test('a lease takes a machine that was made before, with its own deadline, and another is made in its place', async (t) => {
  const purser = await open(t);
  const { token } = await purser.openWallet(LONG);
  const [ref] = await purser.machines();
  const { status, body } = await purser.lease(token);
  assert.deepEqual([status, body.status], [200, 'running']);
  const leased = row(purser, body.id);
  assert.deepEqual([leased.ref, made(purser), warm(purser)], [ref, 1, 0]);
  assert.equal(purser.memory.machines.get(ref as string)?.deadline, leased.expiresAt);
  assert.equal(leased.expiresAt - (leased.readyAt as number), SPEC.max_seconds);
  const told = async () => (await purser.run('status', {})).backends.find((it) => it.slot === 'provider_one')?.warm;
  assert.deepEqual(await told(), { ready: 0, wanted: 1 });
  await purser.app.warm.tend();
  assert.equal(made(purser), 1, 'the first command of the lease is not to wait for the engine');
  await tend(purser);
  assert.deepEqual([made(purser), warm(purser)], [2, 1]);
  assert.deepEqual(await told(), { ready: 1, wanted: 1 });
  const metrics = await purser.app.events.registry.metrics();
  for (const line of [
    'purser_warm_machines{slot="provider_one",backend="container"} 1',
    'purser_leases_total{slot="provider_one",backend="container",event="warm"} 1',
  ])
    assert.ok(metrics.includes(line), line);
  await purser.stop(token, body.id);
  assert.equal((await purser.machines()).length, 1);
  assert.deepEqual(purser.problems(), []);
});

test('a machine is warm once commands run in it, and is not tried again when it is leased', async (t) => {
  const purser = await open(t);
  const { token } = await purser.openWallet(LONG);
  let fault: string | undefined = 'not yet';
  let proofs = 0;
  purser.backend.guest.prove = async () => {
    proofs++;
    return fault;
  };
  assert.equal((await purser.lease(token)).body.status, 'running');
  assert.deepEqual([made(purser), proofs], [1, 0]);
  await tend(purser);
  assert.deepEqual([made(purser), warm(purser), proofs], [2, 0, 1]);
  fault = undefined;
  await tend(purser);
  assert.deepEqual([made(purser), warm(purser), proofs], [2, 1, 2]);
  assert.equal((await purser.lease(token)).body.status, 'running');
  assert.deepEqual([made(purser), proofs], [2, 2]);
  assert.equal((await purser.lease(token)).body.status, 'running');
  assert.deepEqual([made(purser), proofs], [3, 3], 'one that is made for a lease is tried');
});

test('a lease that ends before it was ready leaves nothing of its warm machine in memory', async (t) => {
  const purser = await open(t);
  const { token } = await purser.openWallet(LONG);
  const { clock, warm } = purser.app;
  const handOver = warm.lease;
  t.mock.method(warm, 'lease', async (...args: Parameters<typeof handOver>) => {
    const made = await handOver(...args);
    t.mock.method(clock, 'expiryBlocked', () => 'the clock is in doubt'); // So it is never captured.
    return made;
  });
  const { body } = await purser.ask('POST', '/v1/compute/create?wait_seconds=0', {
    token,
    key: randomUUID(),
    body: { provider: 'provider_one', spec: SPEC },
  });
  assert.equal(body.status, 'provisioning');
  await purser.stop(token, body.id);
  assert.notEqual(row(purser, body.id).endedAt, null);
  assert.equal(warm.takeProof(body.id), false);
});

test('no machine is for two leases, however many are asked for at once', async (t) => {
  const purser = await open(t, 3);
  const wallets = [await purser.openWallet(LONG), await purser.openWallet(LONG)];
  const leases = await Promise.all(
    Array.from({ length: 20 }, (_, i) => purser.lease((wallets[i % 2] as { token: string }).token)),
  );
  const refs = leases.map(({ body }) => row(purser, body.id).ref);
  assert.equal(new Set(refs).size, 20);
  assert.ok(!refs.includes(null));
  assert.equal(made(purser), 20, 'three were there');
  assert.equal(warm(purser), 0);
});

test('a machine that one lease has taken, and is not held for yet, is not for another', async (t) => {
  const purser = await open(t);
  const { pool, spec } = { pool: purser.app.warm, spec: { ...SPEC, gpu: null, gpus: 0 } };
  const id = pool.take(purser.backend, spec, null) as string;
  assert.equal(pool.take(purser.backend, spec, null), undefined);
  await tend(purser);
  const other = pool.take(purser.backend, spec, null);
  assert.ok(other !== undefined && other !== id, 'another was made in the meantime');
  for (const it of [id, other]) pool.giveBack(it);
  await tend(purser);
  assert.deepEqual([warm(purser), (await purser.machines()).length], [1, 1], 'one is too many');
});

test('only a lease of the same size takes one; any other is made as always', async (t) => {
  const purser = await open(t);
  const { token } = await purser.openWallet(LONG);
  assert.equal((await purser.lease(token, 'k', { cpus: 1 })).status, 200);
  assert.deepEqual([made(purser), warm(purser)], [2, 1]);
});

test('a refused request leaves the machine to the next', async (t) => {
  const purser = await open(t);
  const poor = await purser.openWallet({ budget_cents: 100, expires_in_seconds: 7200 });
  const short = await purser.openWallet({ budget_cents: 100, expires_in_seconds: 300 });
  const dear = { max_seconds: 3600 };
  assert.equal((await purser.lease(poor.token, 'k', dear)).body.error.code, 'insufficient_funds');
  assert.equal((await purser.lease(short.token)).body.error.code, 'lease_limit_exceeded');
  assert.deepEqual([made(purser), warm(purser)], [1, 1]);
  const { token } = await purser.openWallet(LONG);
  assert.equal((await purser.lease(token)).status, 200);
  assert.equal(made(purser), 1);
});

test('warm machines give way to a lease that needs their room, and stay where that would not do', async (t) => {
  const purser = await open(t, 2);
  const { token } = await purser.openWallet(LONG);
  purser.memory.room = 2;
  purser.backend.freeFor = async () => 0;
  assert.equal((await purser.lease(token, 'large', { cpus: 2 })).body.error.code, 'capacity_unavailable');
  assert.equal(warm(purser), 2);
  purser.backend.freeFor = async () => 1;
  assert.equal((await purser.lease(token, 'other', { cpus: 1 })).body.status, 'running');
  assert.equal(warm(purser), 1);
  await purser.app.warm.tend();
  assert.deepEqual([warm(purser), (await purser.machines()).length], [1, 2]);
  assert.deepEqual(purser.problems(), []);
});

test('a warm machine gives its processors to a lease that is resumed', async (t) => {
  const purser = pauses(await open(t));
  const { memory } = purser;
  const { token } = await purser.openWallet(LONG);
  const { id } = (await purser.lease(token)).body;
  assert.equal((await purser.pause(token, id)).status, 200);
  await tend(purser);
  assert.equal(warm(purser), 1);
  Object.defineProperty(memory, 'lacking', {
    get: () => (memory.machines.size > 1 ? 'no processor is free' : undefined),
  });
  assert.equal((await purser.resume(token, id)).body.status, 'running');
  assert.deepEqual([warm(purser), memory.machines.size], [0, 1]);
});

test('one that is still being made gives way as well', async (t) => {
  const purser = await open(t);
  const { token } = await purser.openWallet(LONG);
  await purser.lease(token);
  purser.memory.room = 2;
  purser.backend.freeFor = async () => 1;
  const making = hold();
  purser.memory.after.create = () => making.wait();
  purser.clock.advance(RETRY_SECONDS);
  const tending = purser.app.warm.tend();
  await making.arrived;
  delete purser.memory.after.create;
  const lease = purser.lease(token);
  making.go();
  assert.equal((await lease).body.status, 'running');
  await tending;
  assert.deepEqual([warm(purser), (await purser.machines()).length], [0, 2]);
});

test('a machine that has ended or is gone refuses nobody', async (t) => {
  const purser = await open(t, 2);
  const { token } = await purser.openWallet(LONG);
  const [first, second] = [...purser.memory.machines.values()];
  Object.assign(first as object, { state: 'ended' });
  purser.memory.machines.delete(second?.ref as string);
  for (const key of ['a', 'b']) assert.equal((await purser.lease(token, key)).body.status, 'running');
  assert.deepEqual([made(purser), (await purser.machines()).length], [4, 2]);
  assert.deepEqual(purser.problems(), []);
});

test('machines that end before they run are made one a minute, however often a pass looks, and the rest once one runs', async (t) => {
  const purser = await open(t, 3);
  const { memory, app } = purser;
  const { token } = await purser.openWallet(LONG);
  for (const key of ['a', 'b', 'c']) await purser.lease(token, key);
  memory.ready = false;
  const before = made(purser);
  const told = failures(purser);
  for (let minutes = 1; minutes <= 3; minutes++) {
    purser.clock.advance(RETRY_SECONDS);
    for (let i = 0; i < 5; i++) {
      await app.warm.tend();
      for (const it of memory.machines.values()) if (it.state === 'provisioning') it.state = 'ended';
    }
    assert.deepEqual([made(purser) - before, failures(purser) - told], [minutes, minutes]);
  }
  memory.ready = true;
  await tend(purser);
  assert.equal(warm(purser), 3);
});

test('an engine that cannot be asked for what a dead process left is told of once a minute', async (t) => {
  const purser = await open(t, 2);
  await purser.crash(() => {});
  purser.memory.before.find = () => {
    throw new Error('the engine does not answer');
  };
  await tend(purser);
  const told = failures(purser);
  for (let i = 0; i < 10; i++) await purser.app.warm.tend();
  assert.equal(failures(purser), told);
  await tend(purser);
  assert.equal(failures(purser), told + 1);
  delete purser.memory.before.find;
  await tend(purser);
  assert.deepEqual([warm(purser), (await purser.machines()).length], [2, 2]);
});

test('its deadline is moved while the server runs, and one that did not take it is replaced', async (t) => {
  const purser = await open(t);
  const [machine] = [...purser.memory.machines.values()];
  const before = machine?.deadline as number;
  purser.clock.advance(2000);
  await purser.app.warm.tend();
  assert.equal(machine?.deadline, before + 2000);
  purser.clock.advance(3600);
  await purser.app.warm.tend(); // It has ended by its own deadline.
  await tend(purser);
  assert.equal(warm(purser), 1);
  assert.deepEqual([...purser.memory.machines.values()].length, 1);
  assert.notEqual((await purser.machines())[0], machine?.ref);
});

test('a sweep spares them, and ends the same machines once nobody knows them', async (t) => {
  const purser = await open(t);
  purser.clock.advance(400);
  assert.equal((await purser.app.reaper.runOnce()).orphans, 0);
  assert.equal(warm(purser), 1);
  const ids = purser.app.warm.ids;
  purser.app.warm.ids = () => [];
  purser.clock.advance(61);
  assert.equal((await purser.app.reaper.runOnce()).orphans, 1);
  purser.app.warm.ids = ids;
});

test('the stop of the server ends them, and leaves no list', async (t) => {
  const purser = await open(t, 2);
  const { token } = await purser.openWallet(LONG);
  const { id } = (await purser.lease(token)).body;
  const { memory } = purser;
  let machines: string[] = [];
  const file = join(purser.directory, 'warm.json');
  assert.ok(existsSync(file));
  await purser.reopen(() => {
    machines = [...memory.machines.keys()];
    assert.ok(!existsSync(file));
  });
  assert.deepEqual(machines, [row(purser, id).ref]);
});

test('after a crash those of the dead process end at once, and those that became leases stay', async (t) => {
  const purser = await open(t, 2);
  const { token } = await purser.openWallet(LONG);
  const { id } = (await purser.lease(token)).body;
  await purser.crash(() => {});
  assert.equal((await purser.machines()).length, 2);
  await purser.app.warm.tend();
  const { ref } = row(purser, id);
  assert.ok(ref !== null && purser.memory.machines.has(ref));
  await tend(purser);
  assert.deepEqual([warm(purser), (await purser.machines()).length], [2, 3]);
  assert.equal((await purser.status(token, id)).status, 'running');
  assert.deepEqual(purser.problems(), []);
});

test('in the report-only state nothing is made, leased or ended', async (t) => {
  const purser = await open(t);
  const { token } = await purser.openWallet(LONG);
  const now = Math.floor(purser.clock.wall() / 1000);
  await purser.app.ledger.write(doubtBooks, { because: 'a test says so', now });
  purser.memory.calls.length = 0;
  await tend(purser);
  assert.deepEqual(purser.memory.calls, []);
  assert.equal((await purser.lease(token)).status, 200);
  assert.equal(made(purser), 1);
  await purser.reopen();
  assert.equal((await purser.machines()).length, 2);
});

test('a request that was repeated with its key gets the same lease', async (t) => {
  const purser = await open(t);
  const { token } = await purser.openWallet(LONG);
  const key = randomUUID();
  const [one, other] = await Promise.all([purser.lease(token, key), purser.lease(token, key)]);
  assert.equal(one.body.id, other.body.id);
  assert.equal((await purser.lease(token, key)).body.id, one.body.id);
  assert.equal(made(purser), 1);
});
