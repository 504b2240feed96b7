import assert from 'node:assert/strict';
import test, { after, type TestContext } from 'node:test';
import { deadlineInside, type Engine } from '../compute/engines/docker.ts';
import { openPodman } from '../compute/engines/podman.ts';
import { openLeaseServer, sharedDocker } from './docker-leases.ts';
import { LONG, leaseAtOnce, SPEC } from './leases.ts';

let podman: Engine | undefined;
after(() => podman?.stop());
async function sharedPodman(t: TestContext): Promise<Engine | undefined> {
  podman ??= await openPodman(t);
  return podman;
}
const ENGINES = { Docker: sharedDocker, Podman: sharedPodman };

type Server = NonNullable<Awaited<ReturnType<typeof openLeaseServer>>>;
/** Opens a server that keeps `count` containers of the size of `SPEC` made. */
async function open(t: TestContext, count: number, engine = sharedDocker): Promise<Server | undefined> {
  const size = { cpus: SPEC.cpus, memory_gib: SPEC.memory_gib };
  const purser = await openLeaseServer(
    t,
    {
      change: (settings) => ({
        ...settings,
        compute: {
          ...settings.compute,
          provider_one: { ...settings.compute.provider_one, warm: [{ count, ...size }] },
        },
      }),
    },
    engine,
  );
  await purser?.app.warm.tend();
  if (purser) assert.equal(purser.app.warm.count(purser.backend), count);
  return purser;
}
const refOf = (purser: Server, id: string) =>
  purser.app.ledger.client.prepare('select ref from resource where id = ?').pluck().get(id) as string;
const now = ({ clock }: Server) => Math.floor(clock.wall() / 1000);

for (const [name, engine] of Object.entries(ENGINES)) {
  test(`${name}: a lease takes a container that was there, and the watchdog inside keeps the deadline of the lease`, async (t) => {
    const purser = await open(t, 1, engine);
    if (!purser) return;
    const { token } = await purser.openWallet(LONG);
    const [container] = await purser.machines();
    const warmed = (container as string).slice(1);
    assert.ok(
      Math.abs((await deadlineInside(purser.engine.docker, warmed)) - now(purser) - 3600) < 60,
      'within the hour',
    );
    const { body } = await purser.lease(token);
    assert.deepEqual([body.status, refOf(purser, body.id)], ['running', warmed]);
    assert.deepEqual(await purser.machines(), [container]);
    assert.equal(await deadlineInside(purser.engine.docker, warmed), body.expires_at);
    const ran = await purser.ask('POST', '/v1/compute/exec', { token, body: { id: body.id, command: 'echo inside' } });
    assert.equal(ran.body.stdout, 'inside\n');
    await purser.stop(token, body.id);
    assert.deepEqual(await purser.machines(), []);
    assert.deepEqual(purser.problems(), []);
  });
}

test('twenty creates of two wallets at once share no container', async (t) => {
  const purser = await open(t, 4);
  if (!purser) return;
  const tokens = [(await purser.openWallet(LONG)).token, (await purser.openWallet(LONG)).token];
  const ids = await leaseAtOnce(
    purser,
    Array.from({ length: 20 }, (_, i) => tokens[i % 2] as string),
  );
  assert.equal(new Set(ids.map((id) => refOf(purser, id))).size, 20);
  assert.equal((await purser.machines()).length, 20);
  assert.equal(purser.app.warm.count(purser.backend), 0);
});

test('after a crash the containers of the dead process end, and a lease keeps its own', async (t) => {
  const purser = await open(t, 2);
  if (!purser) return;
  const { token } = await purser.openWallet(LONG);
  const { id, expires_at: end } = (await purser.lease(token)).body;
  const left = (await purser.machines()).filter((it) => it !== `/${refOf(purser, id)}`);
  assert.equal(left.length, 1);
  await purser.crash(() => {});
  await purser.app.reaper.stop();
  await purser.app.warm.tend();
  const after = await purser.machines();
  assert.ok(!after.includes(left[0] as string));
  assert.deepEqual([after.length, purser.app.warm.count(purser.backend)], [3, 2]);
  assert.equal((await purser.status(token, id)).status, 'running');
  assert.equal(await deadlineInside(purser.engine.docker, refOf(purser, id)), end);
});
