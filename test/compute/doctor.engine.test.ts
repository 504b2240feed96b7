import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { stringify } from 'yaml';
import { type Backend, type CheckFinding, tagPrefix } from '../../src/compute/backend.ts';
import { selfTest } from '../../src/compute/self-test.ts';
import { readConfig } from '../../src/config/config.ts';
import { examine } from '../../src/doctor/doctor.ts';
import { openTestServer, type TestServer } from '../helper/server.ts';
import { until } from '../helper/waiting.ts';
import { openFakeVast, VAST_KEY } from './engines/fake-vast.ts';
import { openSshd, type Sshd } from './engines/sshd.ts';

/** A pool of these hosts as purser.yaml has it. */
function poolOf(hosts: Sshd[], over: Partial<Sshd['host']> = {}) {
  const settings = hosts.map(({ host }) => ({ ...host, price_hourly_usd: '0.36', ...over }));
  return { provider_two: { backend: 'ssh', hosts: settings } };
}

/** What `purser doctor` finds of the backends of a server, by name. */
async function findingsOf(directory: string): Promise<Map<string, CheckFinding>> {
  const config = readConfig({ data: directory }, {});
  const checks = await examine(config);
  assert.equal(new Set(checks.map((it) => it.name)).size, checks.length, 'every name is there once');
  return new Map(checks.filter((it) => it.name.startsWith('provider_')).map((it) => [it.name, it]));
}

const lease = (purser: TestServer, token: string) =>
  purser.ask('POST', '/v1/compute/create', {
    token,
    key: randomUUID(),
    body: { provider: 'provider_two', spec: { chip: 'test-chip', max_seconds: 600 } },
  });

const rewrite = (purser: TestServer, compute: object) => {
  const file = join(purser.directory, 'purser.yaml');
  writeFileSync(file, `${readFileSync(file, 'utf8').replace(/^compute:\n(?: .*\n)*/m, '')}${stringify({ compute })}`);
};

async function pool(t: TestContext, count: number): Promise<Sshd[] | undefined> {
  const hosts = await Promise.all(Array.from({ length: count }, () => openSshd(t)));
  return hosts.every((it) => it !== undefined) ? hosts : undefined;
}

test('beside a running server doctor makes, finds, uses and destroys one machine, and leaves a leased host alone', async (t) => {
  const hosts = await pool(t, 2);
  if (!hosts) return;
  const purser = await openTestServer(t, { settings: { compute: poolOf(hosts) } });
  const { token } = await purser.openWallet({ budget_cents: 500, expires_in_seconds: 7200 });
  const { id, provider_id: ref } = (await lease(purser, token)).body;
  const [taken, free] = ref.startsWith(`127.0.0.1:${hosts[0]?.host.port}/`) ? hosts : [...hosts].reverse();
  assert.ok(taken && free);
  const tenant = readFileSync(join(taken.pool, 'tenant/user'), 'utf8');

  const found = await findingsOf(purser.directory);
  const detail = (name: string) => {
    const it = found.get(`provider_two ssh: ${name}`);
    assert.equal(it?.ok, true, JSON.stringify(it));
    return it?.detail ?? '';
  };
  assert.match(
    detail(`host 127.0.0.1:${free.host.port}`),
    /^free; the host key is the pinned one, this is root there; 0 GPUs/,
  );
  assert.match(
    detail(`host 127.0.0.1:${taken.host.port}`),
    new RegExp(`^leased to ${tagPrefix(purser.app.installationId)}res-\\w+ until 20.*Z, and not touched`),
  );
  assert.match(detail('trial'), /was found by its tag and ran a command; it was destroyed and is gone$/);
  assert.equal(readFileSync(join(free.pool, 'last'), 'utf8').trim().split(' ')[1], 'clean', 'there was a tenant');
  assert.equal(existsSync(join(free.pool, 'tenant')), false);

  assert.equal(readFileSync(join(taken.pool, 'tenant/user'), 'utf8'), tenant);
  assert.equal((await lease(purser, token)).status, 200);
  const full = await findingsOf(purser.directory);
  assert.match(
    full.get('provider_two ssh: trial')?.detail ?? '',
    /what is leased is not touched: no machine was made$/,
  );
  assert.deepEqual(
    [...full.values()].map((it) => it.ok),
    [true, true, true, true],
  );

  purser.clock.advance(400);
  assert.equal((await purser.app.reaper.runOnce()).orphans, 0);
  const still = await purser.ask('POST', '/v1/compute/exec', { token, body: { id, command: 'echo here' } });
  assert.equal(still.body.stdout, 'here\n', still.text);
  assert.deepEqual(purser.problems(), []);
});

test('what is wrong with a host of the pool is said, with what to do about it', async (t) => {
  const hosts = await pool(t, 3);
  if (!hosts) return;
  const [one, two, three] = hosts as [Sshd, Sshd, Sshd];
  const purser = await openTestServer(t, { settings: { compute: poolOf(hosts) } });
  const name = ({ host }: Sshd) => `provider_two ssh: host ${host.address}:${host.port}`;
  const hear = async (compute: object, of: Sshd, what: RegExp) => {
    rewrite(purser, compute);
    const found = (await findingsOf(purser.directory)).get(name(of));
    assert.equal(found?.ok, false, JSON.stringify(found));
    assert.match(found?.detail ?? '', what);
  };
  writeFileSync(join(two.pool, 'quarantine'), 'not clean after purser-x: /tmp/y\n');
  await three.halt();
  const found = await (async () => {
    rewrite(purser, poolOf(hosts));
    return findingsOf(purser.directory);
  })();
  assert.deepEqual(
    [...found.values()].map((it) => it.ok),
    [true, false, false, true],
    `the others are looked at, and one is tried: ${JSON.stringify([...found])}`,
  );
  assert.match(
    found.get(name(two))?.detail ?? '',
    /^It is quarantined.*not clean after purser-x.*remove the file quarantine/,
  );
  assert.match(found.get(name(three))?.detail ?? '', /cannot be used: .*ECONNREFUSED.*\. Is it running/);
  rmSync(join(two.pool, 'quarantine'));

  await hear(
    poolOf([one], { host_key: two.host.host_key }),
    one,
    /another host key than the one that is pinned.*set host_key/,
  );
  await hear(poolOf([one], { identity_file: '/nowhere/id' }), one, /ENOENT.*Correct identity_file/);
  await hear(poolOf([one], { identity_file: two.host.identity_file }), one, /authentication.*authorized_keys/);
  await hear(poolOf([one], { gpus: 2 }), one, /It is not leased: nvidia-smi shows 0 GPUs/);
});

test('without a database doctor looks at the backends and makes no machine', async (t) => {
  const [host] = (await pool(t, 1)) ?? [];
  if (!host) return;
  const directory = mkdtempSync(join(tmpdir(), 'purser-empty-'));
  t.after(() => rmSync(directory, { recursive: true, force: true }));
  writeFileSync(join(directory, 'purser.yaml'), stringify({ compute: poolOf([host]) }));
  const found = await findingsOf(directory);
  assert.deepEqual(
    [...found.values()].map((it) => it.ok),
    [true, true, true],
  );
  assert.match(found.get('provider_two ssh: trial')?.detail ?? '', /No machine was made: that needs the database/);
  assert.equal(existsSync(join(host.pool, 'last')), false);
  assert.deepEqual(readdirSync(directory), ['purser.yaml'], 'it leaves no trace');
});

test('where a machine costs money none is made', async (t) => {
  const vast = await openFakeVast(t);
  if (!vast) return;
  vast.offer();
  const compute = { provider_three: { backend: 'vast', api_key: VAST_KEY, base_url: vast.url } };
  const purser = await openTestServer(t, { settings: { compute } });
  const found = await findingsOf(purser.directory);
  assert.deepEqual(
    [...found.values()].map((it) => [it.name, it.ok]),
    ['key', 'credit', 'labels', 'offers', 'identity', 'trial'].map((it) => [`provider_three vast: ${it}`, true]),
  );
  assert.equal(vast.count('create'), 0);
  assert.ok(!JSON.stringify([...found]).includes(VAST_KEY));
});

test('a backend that cannot be opened is one fault, and hides no other slot', async (t) => {
  const [host] = (await pool(t, 1)) ?? [];
  if (!host) return;
  const purser = await openTestServer(t, { settings: { compute: poolOf([host]) } });
  rewrite(purser, {
    ...poolOf([host]),
    provider_three: { backend: 'vast', api_key: VAST_KEY, base_url: 'http://127.0.0.1:9' },
  });
  const found = await findingsOf(purser.directory);
  const key = found.get('provider_three vast: key');
  assert.deepEqual([key?.ok, found.get('provider_two ssh: trial')?.ok], [false, true]);
  assert.match(key?.detail ?? '', /vast cannot be reached \(ECONNREFUSED\)\. Check base_url/);
});

test('a trial whose doctor died half-way is an orphan, and the server takes it away after the grace', async (t) => {
  const [host] = (await pool(t, 1)) ?? [];
  if (!host) return;
  const purser = await openTestServer(t, { settings: { compute: poolOf([host]) } });
  await purser.app.reaper.stop();
  const [configured] = purser.app.slots.list;
  assert.ok(configured);
  const died = Promise.withResolvers<void>();
  const never = Promise.withResolvers<never>();
  const backend: Backend = {
    ...configured.backend,
    guest: {
      ...configured.backend.guest,
      exec: () => {
        died.resolve();
        return never.promise;
      },
    },
  };
  const now = () => Math.floor(Date.now() / 1000);
  const trial = selfTest({ ...configured, backend }, purser.app.installationId, now);
  await died.promise;
  assert.equal((await purser.app.reaper.runOnce()).orphans, 0, 'a trial that is under way is spared');
  assert.ok(existsSync(join(host.pool, 'tenant')));
  purser.clock.advance(300);
  await until('it is taken away', async () => {
    purser.clock.advance(61); // A pass does not wait for a sweep that takes long, nor begin another.
    await purser.app.reaper.runOnce();
    return !existsSync(join(host.pool, 'tenant'));
  });
  never.reject(new Error('it is dead'));
  await trial;
});
