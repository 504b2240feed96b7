import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { inspect } from 'node:util';
import type { Backend } from '../../src/compute/backend.ts';
import type { VastSettings } from '../../src/compute/engines/vast/settings.ts';
import { openVastBackend } from '../../src/compute/engines/vast/vast.ts';
import { printable, readConfig } from '../../src/config/config.ts';
import { openTestServer, type TestServer } from '../helper/server.ts';
import { until } from '../helper/waiting.ts';
import { type FakeVast, openFakeVast, VAST_KEY } from './engines/fake-vast.ts';
import { QUICK, settingsOf } from './vast-shared.ts';

type VastServer = TestServer & {
  vast: FakeVast;
  offer: number;
  lease(token: string, key?: string, spec?: object): ReturnType<TestServer['ask']>;
};
const LONG = { budget_cents: 500, expires_in_seconds: 7200 };

async function openVastServer(t: TestContext): Promise<VastServer | undefined> {
  const vast = await openFakeVast(t);
  if (!vast) return undefined;
  // biome-ignore lint/suspicious/noTemplateCurlyInString: the configuration reads it from the environment.
  const api_key = '${VAST_API_KEY}';
  const provider_three = { backend: 'vast', api_key, base_url: vast.url, image: 'busybox' };
  const purser = await openTestServer(t, {
    settings: { compute: { provider_three } },
    env: { VAST_API_KEY: VAST_KEY },
  });
  await purser.app.reaper.stop(); // Passes run when a test says so: none looks for a machine between two of its lines.
  const offer = vast.offer();
  // The configured backend keeps to Vast's spacing: here it is asked more quickly.
  const [slot] = purser.app.slots.list;
  const quick = openVastBackend(settingsOf(vast.url), {
    leases: join(purser.directory, 'leases'),
    now: () => purser.app.clock.now(),
    spacing: QUICK,
  });
  t.after(() => quick.close());
  Object.assign(slot?.backend as Backend, quick);
  return Object.assign(purser, {
    vast,
    offer,
    lease: (token: string, key = randomUUID(), spec: object = {}) =>
      purser.ask('POST', '/v1/compute/create', {
        token,
        key,
        body: { provider: 'provider_three', spec: { offer_id: String(offer), disk_gb: 16, max_seconds: 600, ...spec } },
      }),
  });
}
const PRICE = '0.06';

test('the settings of vast: defaults, no secret in what is printed, and every fault named', async (t) => {
  const directory = mkdtempSync(join(tmpdir(), 'purser-test-'));
  t.after(() => rmSync(directory, { recursive: true, force: true }));
  const read = (settings: string) => {
    writeFileSync(join(directory, 'purser.yaml'), `compute:\n  provider_three: ${settings}\n`);
    return readConfig({ data: directory }, { VAST_API_KEY: VAST_KEY });
  };
  // biome-ignore lint/suspicious/noTemplateCurlyInString: the configuration reads it from the environment.
  const config = read('{ backend: vast, api_key: "${VAST_API_KEY}" }');
  const { image, api_key: key, ...rest } = config.compute.provider_three as VastSettings;
  assert.match(image, /:/);
  assert.deepEqual(rest, {
    backend: 'vast',
    base_url: 'https://console.vast.ai',
    markup_percent: 0,
    runtype: 'ssh_direct',
    provision_seconds: 900,
  });
  assert.equal(key.reveal(), VAST_KEY);
  assert.ok(!JSON.stringify(printable(config)).includes(VAST_KEY));
  for (const [settings, fault] of [
    ['{ backend: vast }', /api_key: is required/],
    ['{ backend: vast, api_key: canary-0123, markup_percent: 0.123 }', /markup_percent: has more than two decimals/],
    ['{ backend: vast, api_key: canary-0123, base_url: "ftp://x" }', /base_url: not an http/],
    ['{ backend: vast, api_key: canary-0123, offers: [] }', /offers: unknown setting/],
    ['{ backend: fast, api_key: canary-0123 }', /backend/],
  ] as const)
    assert.throws(
      () => read(settings),
      (error: Error) => fault.test(error.message) && !error.message.includes('canary'),
      settings,
    );
});

test('a whole lease at Vast, from its offer to the destroyed rental', async (t) => {
  const purser = await openVastServer(t);
  if (!purser) return;
  const { token } = await purser.openWallet(LONG);
  const { offers } = (await purser.ask('GET', '/v1/compute/offers', { token })).body;
  assert.deepEqual(
    offers.map((it: any) => [it.provider, it.offer_id, it.price_hourly_usd, it.supports_extension]),
    [['provider_three', String(purser.offer), '0.36', true]],
  );
  const made = await purser.lease(token, 'k');
  assert.deepEqual([made.status, made.body.status, made.body.charged_usd], [200, 'running', PRICE], made.text);
  const { id } = made.body;
  const said = await purser.ask('POST', '/v1/compute/exec', { token, body: { id, command: 'echo hi; exit 3' } });
  assert.deepEqual([said.body.exit_code, said.body.stdout], [3, 'hi\n'], said.text);
  const extended = await purser.ask('POST', '/v1/compute/extend', {
    token,
    key: 'e',
    body: { id, additional_seconds: 300 },
  });
  assert.deepEqual([extended.status, extended.body.expires_at - made.body.expires_at], [200, 300], extended.text);
  const stopped = await purser.ask('POST', '/v1/compute/stop', { token, body: { id } });
  assert.deepEqual([stopped.body.status, stopped.body.charged_usd], ['stopped', '0.09'], stopped.text);
  assert.equal(purser.vast.instances.size, 0);
  assert.deepEqual(purser.problems(), []);
  assert.ok(!purser.log.join('').includes(VAST_KEY) && !inspect(purser.app.config, { depth: 9 }).includes(VAST_KEY));
});

test('an offer that is gone is a 404, and a provider that is down a 503, with nothing held', async (t) => {
  const purser = await openVastServer(t);
  if (!purser) return;
  const { token } = await purser.openWallet(LONG);
  assert.equal((await purser.lease(token, 'k', { offer_id: '999' })).body.error.code, 'offer_not_found');
  purser.vast.faults.createSays = [[404, '{"error":"no_such_ask"}']];
  assert.equal((await purser.lease(token, 'k')).body.error.code, 'capacity_unavailable');
  await purser.vast.close();
  const down = await purser.lease(token, 'k');
  assert.deepEqual([down.status, down.body.error.code], [503, 'provider_unavailable']);
  assert.equal((await purser.budget(token)).held_usd, '0.00');
});

for (const then of ['500', 'reset'] as const) {
  test(`create, then ${then}: uncertain with its hold; the same key adopts by label and buys nothing twice`, async (t) => {
    const purser = await openVastServer(t);
    if (!purser) return;
    const { vast } = purser;
    const { token } = await purser.openWallet(LONG);
    vast.faults.createThen = [then];
    const lost = await purser.lease(token, 'k');
    assert.deepEqual([lost.status, lost.body.error.code], [503, 'operation_uncertain']);
    const found = await until('it is adopted and runs', async () => {
      await purser.app.reaper.runOnce();
      purser.clock.advance(2);
      const again = await purser.lease(token, 'k');
      return again.body.status === 'running' && again;
    });
    assert.equal(found.body.charged_usd, PRICE);
    assert.deepEqual([vast.count('create'), vast.instances.size], [1, 1]);
    assert.deepEqual(purser.problems(), []);
  });
}

test('list lag: no second create before two empty lists a minute apart, and what turns up later is swept', async (t) => {
  const purser = await openVastServer(t);
  if (!purser) return;
  const { vast } = purser;
  const { token } = await purser.openWallet(LONG);
  Object.assign(vast.faults, {
    createThen: ['500'],
    listLagMilliseconds: 600_000,
    stuck: { actual_status: 'loading' },
  });
  assert.equal((await purser.lease(token, 'k')).status, 503);
  for (let i = 0; i < 3; i++) {
    assert.equal(
      (await purser.lease(token, 'k')).body.error.code,
      'operation_uncertain',
      'one list is no proof, however often it is read',
    );
    purser.clock.advance(10);
    await purser.app.reaper.runOnce();
  }
  assert.equal(vast.count('create'), 1);
  assert.equal((await purser.budget(token)).held_usd, PRICE);
  purser.clock.advance(60);
  await purser.app.reaper.runOnce();
  assert.equal((await purser.budget(token)).held_usd, '0.00');
  vast.faults.listLagMilliseconds = 0;
  vast.faults.stuck = undefined;
  purser.clock.advance(301);
  await purser.app.reaper.runOnce();
  assert.equal(vast.instances.size, 0, 'the late one was destroyed');
  assert.deepEqual(purser.problems(), []);
});

test('a create that left nothing is released by that proof, and its key buys one machine', async (t) => {
  const purser = await openVastServer(t);
  if (!purser) return;
  const { vast } = purser;
  const { token } = await purser.openWallet(LONG);
  vast.faults.createSays = [[502, 'bad gateway']];
  assert.equal((await purser.lease(token, 'k')).status, 503);
  await purser.app.reaper.runOnce();
  purser.clock.advance(60);
  await purser.app.reaper.runOnce();
  assert.equal((await purser.budget(token)).held_usd, '0.00');
  const made = await purser.lease(token, 'k');
  assert.deepEqual([made.body.status, vast.count('create'), vast.instances.size], ['running', 2, 1]);
  assert.deepEqual(purser.problems(), []);
});

test('several instances with one label: one is kept, the rest destroyed', async (t) => {
  const purser = await openVastServer(t);
  if (!purser) return;
  const { vast } = purser;
  const { token } = await purser.openWallet(LONG);
  Object.assign(vast.faults, { createThen: ['500'], copies: 3 });
  assert.equal((await purser.lease(token, 'k')).status, 503);
  const found = await until('one runs', async () => {
    const again = await purser.lease(token, 'k');
    purser.clock.advance(2);
    await purser.app.reaper.runOnce();
    return again.body.status === 'running' && again;
  });
  assert.deepEqual([...vast.instances.keys()].map(String), [found.body.provider_id]);
  assert.deepEqual(purser.problems(), []);
});

test('two creates race for one offer: one gets it, the other hears so and is charged nothing', async (t) => {
  const purser = await openVastServer(t);
  if (!purser) return;
  const { vast } = purser;
  const { promise: held, resolve: release } = Promise.withResolvers<void>();
  Object.assign(vast.faults, { sellTwice: true, createHeld: held });
  const wallets = await Promise.all([purser.openWallet(LONG), purser.openWallet(LONG)]);
  const leases = wallets.map(({ token }) => purser.lease(token));
  await Promise.race(leases); // The create of the first waits until the second is refused.
  release();
  const answers = await Promise.all(leases);
  assert.deepEqual(answers.map((it) => it.status).sort(), [200, 503], answers.map((it) => it.text).join('\n'));
  const refused = answers.find((it) => it.status === 503);
  assert.equal(refused?.body.error.code, 'capacity_unavailable', refused?.text);
  assert.deepEqual([vast.count('create'), vast.instances.size], [1, 1]);
  const used = await Promise.all(wallets.map(async ({ token }) => (await purser.budget(token)).used_usd));
  assert.deepEqual(used.sort(), ['0.00', PRICE]);
  assert.deepEqual(purser.problems(), []);
});

test('a machine that never becomes happy is destroyed when its time is over, and released', async (t) => {
  const purser = await openVastServer(t);
  if (!purser) return;
  const { vast } = purser;
  const { token } = await purser.openWallet(LONG);
  vast.faults.stuck = { actual_status: 'created', status_msg: 'OCI runtime create failed: no gpu' };
  const failed = await purser.lease(token, 'k');
  assert.deepEqual([failed.status, failed.body.error.code], [503, 'provider_unavailable'], failed.text);
  assert.equal(vast.instances.size, 0);
  assert.equal((await purser.budget(token)).held_usd, '0.00');
  assert.deepEqual(purser.problems(), []);
});

test('the use of the GPUs of a machine is in its status, without another call of Vast', async (t) => {
  const purser = await openVastServer(t);
  if (!purser) return;
  const { token } = await purser.openWallet(LONG);
  const made = await purser.lease(token, 'k');
  assert.equal(made.status, 200, made.text);
  const { id } = made.body;
  const tool = `printf '#!/bin/sh\\necho "87, 1024"\\n' > /usr/local/bin/nvidia-smi; chmod 755 /usr/local/bin/nvidia-smi`;
  const command = `mount -t tmpfs none /usr/local/bin; ${tool}`;
  const put = await purser.ask('POST', '/v1/compute/exec', { token, body: { id, command } });
  assert.deepEqual([put.body.exit_code, put.body.stderr], [0, '']);
  const called = purser.vast.calls.length;
  const usage = await until('it was read', async () => {
    const status = await purser.ask('POST', '/v1/compute/status', { token, body: { id } });
    return status.body.usage;
  });
  assert.deepEqual(usage.gpus, [{ utilization_percent: 87, memory_bytes: 1024 ** 3 }]);
  assert.ok(usage.cpu_seconds >= 0, JSON.stringify(usage));
  assert.equal(purser.vast.calls.length, called);
  assert.deepEqual(purser.problems(), []);
});
