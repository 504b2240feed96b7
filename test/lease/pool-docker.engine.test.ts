import assert from 'node:assert/strict';
import test, { type TestContext } from 'node:test';
import { tagPrefix } from '../../src/compute/backend.ts';
import { readConfig } from '../../src/config/config.ts';
import { examine } from '../../src/doctor/doctor.ts';
import { type Daemon, IMAGE, openDocker } from '../compute/engines/docker.ts';
import { until } from '../helper/waiting.ts';
import { type LeaseServer, LONG, openWith, poolOf } from './leases.ts';

/** A purser with two real engines behind provider_one. The first has room for two leases of these tests, the second for four. */
async function openTwo(t: TestContext, more: object = {}) {
  const engines: Daemon[] = [];
  for (let i = 0; i < 2; i++) {
    const engine = await openDocker(t);
    if (!engine) return undefined;
    engines.push(engine);
  }
  const [a, b] = engines as [Daemon, Daemon];
  const pool = poolOf({ a: a.socket, b: b.socket }, IMAGE, more, { limits: { cpus: 1, memory_gib: 0.5 } });
  pool.backends.forEach((it, i) => {
    Object.assign(it, { capacity: { cpus: i + 1, memory_gib: 64 } });
  });
  const purser = await openWith(t, a.socket, IMAGE, { settings: { compute: { provider_one: pool } } });
  /** How many containers of this installation each engine has. */
  const counts = async () =>
    Promise.all(
      engines.map(async ({ docker }) => {
        const all = await docker.listContainers({ all: true });
        return all.filter((it) => it.Names[0]?.startsWith(`/${tagPrefix(purser.app.installationId)}`)).length;
      }),
    );
  return { purser, a, b, counts };
}

const exec = (purser: LeaseServer, token: string, id: string) =>
  purser.ask('POST', '/v1/compute/exec', { token, body: { id, command: 'echo here' } });

test('two engines: the second takes what the first has no room for; when the first dies, the second goes on', async (t) => {
  const opened = await openTwo(t);
  if (!opened) return;
  const { purser, a, counts } = opened;
  const { id: walletId, token } = await purser.openWallet(LONG);
  const ids: string[] = [];
  for (let i = 0; i < 3; i++) {
    const made = await purser.lease(token);
    assert.deepEqual([made.status, made.body.status], [200, 'running'], made.text);
    ids.push(made.body.id);
  }
  const [first, , third] = ids as [string, string, string];
  assert.deepEqual(await counts(), [2, 1]);
  for (const id of ids) assert.equal((await exec(purser, token, id)).body.stdout, 'here\n');

  a.signal('SIGKILL');
  await until('the engine has gone', () =>
    a.docker.ping().then(
      () => false,
      () => true,
    ),
  );
  const unreached = await exec(purser, token, first);
  assert.deepEqual([unreached.status, unreached.body.error.code], [503, 'provider_unavailable']);
  assert.equal((await purser.status(token, first)).status, 'running', 'nobody knows yet that it is lost');
  const fourth = await purser.lease(token);
  assert.deepEqual([fourth.status, fourth.body.status], [200, 'running'], fourth.text);
  assert.equal((await exec(purser, token, third)).body.stdout, 'here\n');
  await purser.stop(token, third);
  assert.equal((await purser.status(token, third)).status, 'stopped');

  await a.revive();
  for (let i = 0; i < 3; i++) {
    purser.clock.advance(60);
    await purser.app.reaper.runOnce();
  }
  // Without live-restore the death of the engine was that of its containers.
  assert.deepEqual(
    [(await purser.status(token, first)).end_reason, (await purser.status(token, fourth.body.id)).status],
    ['provider_ended', 'running'],
  );
  assert.equal((await purser.closeWallet(walletId)).status, 200);
  assert.deepEqual(await counts(), [0, 0]);
  assert.deepEqual(purser.problems(), []);
});

for (const [where, name] of [
  ['between the refusal of the first engine and the second', 'before'],
  ['after the second has made the machine', 'after'],
] as const)
  test(`two engines: dying ${where} leaves no machine without a row, and none twice`, async (t) => {
    const opened = await openTwo(t);
    if (!opened) return;
    const { purser, counts } = opened;
    const { id: walletId, token } = await purser.openWallet(LONG);
    for (let i = 0; i < 2; i++) await purser.lease(token);
    const died = Promise.withResolvers<void>();
    const never = Promise.withResolvers<never>();
    const second = purser.app.slots.list[1]?.backend;
    assert.ok(second);
    const { create } = second;
    second.create = async (order) => {
      if (name === 'after') await create(order);
      died.resolve();
      return never.promise;
    };
    void purser.lease(token, 'k').catch(() => {});
    await died.promise;
    await purser.crash(() => never.reject(new Error('it is dead')));
    await purser.lease(token, 'k');
    for (let i = 0; i < 3; i++) {
      purser.clock.advance(10);
      await purser.app.reaper.runOnce();
    }
    const live = (await purser.run('resource.list', {})).resources.filter((it) => it.ended_at === null);
    assert.deepEqual(await counts(), name === 'after' ? [2, 1] : [2, live.length - 2]);
    assert.equal((await purser.closeWallet(walletId)).status, 200);
    assert.deepEqual(await counts(), [0, 0]);
    assert.deepEqual(purser.problems(), []);
  });

test('two engines: with most_free the larger one is filled first, and doctor tries both by name', async (t) => {
  const opened = await openTwo(t, { fill: 'most_free' });
  if (!opened) return;
  const { purser, counts } = opened;
  const { token } = await purser.openWallet(LONG);
  const seen: string[] = [];
  for (let i = 0; i < 3; i++) {
    await purser.lease(token);
    seen.push((await counts()).join());
  }
  assert.deepEqual(seen, ['0,1', '0,2', '1,2'], 'of two that are equal the first');
  const config = readConfig({ data: purser.directory }, {});
  const found = (await examine(config)).filter((it) => it.name.startsWith('provider_one '));
  const trials = found.filter((it) => it.name.endsWith(': trial')).map((it) => [it.name, it.ok]);
  assert.deepEqual(trials, [
    ['provider_one a: trial', true],
    ['provider_one b: trial', true],
  ]);
});
