import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import * as v from 'valibot';
import { Compute } from '../../src/compute/settings.ts';
import { openTestServer } from '../helper/server.ts';
import { until } from '../helper/waiting.ts';
import { openSshd } from './engines/sshd.ts';

/** What openSshd leases a host as. */
const CHIP = 'test-chip';

test('settings: defaults, and what cannot be a pool', () => {
  const host = {
    chip: 'rtx4090',
    address: '10.0.0.7',
    host_key: 'ssh-ed25519 AAAAC3Nz',
    identity_file: '/etc/purser/id',
    price_hourly_usd: '0.40',
  };
  const parse = (hosts: object[]) => v.safeParse(Compute, { provider_two: { backend: 'ssh', hosts } });
  const { output } = parse([host]);
  assert.deepEqual(output, {
    provider_two: {
      backend: 'ssh',
      hosts: [
        {
          ...host,
          port: 22,
          user: 'root',
          gpus: 0,
          state_directory: '/var/lib/purser-pool',
          price_hourly_usd: 400_000_000n,
        },
      ],
      limits: { max_seconds: 86_400 },
      provision_seconds: 60,
    },
  });
  for (const [hosts, fault] of [
    [[host, host], /same address and port/],
    [[host, { ...host, port: 23, price_hourly_usd: '0.50' }], /different prices/],
    [[{ ...host, user: 'ubuntu' }], /must be root/],
    [[{ ...host, host_key: 'SHA256:abc' }], /must be a public key/],
    [[{ ...host, state_directory: '/a/../b' }], /plain absolute path/],
  ] as const)
    assert.match(
      parse([...hosts])
        .issues?.map((it) => it.message)
        .join() ?? '',
      fault,
    );
});

test('a host that fails its proof is not paid for: no command runs as a tenant, or a tenant sees no GPU', async (t) => {
  for (const [prepare, gpus, fault] of [
    ['mount --bind /bin/false /usr/bin/setpriv', 0, /^it runs, but `true` ended with exit code 1 in it$/],
    [
      `printf '#!/bin/sh\\n[ "$1" = -L ] || exit 0\\n[ "$(id -u)" = 0 ] && echo "GPU 0: one" || echo "No devices were found" >&2\\n' > smi
       chmod 755 smi; mount -t tmpfs none /usr/local/bin; cp smi /usr/local/bin/nvidia-smi`,
      1,
      /^nvidia-smi -L shows 0 of 1 GPUs inside \(No devices were found\)$/,
    ],
  ] as const) {
    const sshd = await openSshd(t, { prepare });
    if (!sshd) return;
    const { price_hourly_usd: _, ...host } = sshd.host;
    const hosts = [{ ...host, gpus, price_hourly_usd: '0.36' }];
    const purser = await openTestServer(t, { settings: { compute: { provider_two: { backend: 'ssh', hosts } } } });
    await purser.app.reaper.stop();
    const { token } = await purser.openWallet({ budget_cents: 500, expires_in_seconds: 7200 });
    const spec = { chip: CHIP, max_seconds: 600 };
    const made = purser.ask('POST', '/v1/compute/create', {
      token,
      key: 'k',
      body: { provider: 'provider_two', spec },
    });
    const seen = await until('it was tried', async () => {
      const [resource] = (await purser.run('resource.list', {})).resources;
      return resource?.last_error ? resource : undefined;
    });
    assert.equal(seen.status, 'provisioning');
    assert.match(String(seen.last_error), fault);
    assert.equal((await purser.budget(token)).used_usd, '0.00');
    purser.clock.advance(61);
    const answer = await made;
    assert.deepEqual([answer.status, answer.body.error?.code], [503, 'provider_unavailable'], answer.text);
    const { held_usd: held, used_usd: used } = await purser.budget(token);
    assert.deepEqual([held, used], ['0.00', '0.00']);
    const [operation] = (await purser.run('operation.list', {})).operations;
    assert.match(operation?.reason ?? '', /the lease never became ready \(create_failed: (it runs|nvidia-smi)/);
  }
});

test('the use of the GPUs of a host is in the status of its lease, beside its processor time', async (t) => {
  const prepare = `printf '#!/bin/sh\\ncase $1 in -L) echo "GPU 0: one" ;; *=util*) echo "87, 1024" ;; esac\\n' > smi
    chmod 755 smi; mount -t tmpfs none /usr/local/bin; cp smi /usr/local/bin/nvidia-smi`;
  const sshd = await openSshd(t, { prepare });
  if (!sshd) return;
  const hosts = [{ ...sshd.host, gpus: 1, price_hourly_usd: '0.36' }];
  const purser = await openTestServer(t, { settings: { compute: { provider_two: { backend: 'ssh', hosts } } } });
  const { token } = await purser.openWallet({ budget_cents: 500, expires_in_seconds: 7200 });
  const body = { provider: 'provider_two', spec: { chip: CHIP, max_seconds: 600 } };
  const made = await purser.ask('POST', '/v1/compute/create', { token, key: 'k', body });
  assert.equal(made.status, 200, made.text);
  const { id } = made.body;
  const usage = await until('it was read', async () => {
    const status = await purser.ask('POST', '/v1/compute/status', { token, body: { id } });
    return status.body.usage;
  });
  assert.deepEqual(usage.gpus, [{ utilization_percent: 87, memory_bytes: 1024 ** 3 }]);
  assert.ok(usage.cpu_seconds >= 0, JSON.stringify(usage));
  assert.equal((await purser.ask('POST', '/v1/compute/stop', { token, body: { id } })).body.status, 'stopped');
  assert.deepEqual(purser.problems(), []);
});

test('a lease of provider_two through the API: made, used, extended, stopped, and the host is free again', async (t) => {
  const sshd = await openSshd(t);
  if (!sshd) return;
  const { price_hourly_usd: _, ...host } = sshd.host;
  const purser = await openTestServer(t, {
    settings: {
      close_wait_seconds: 20,
      compute: { provider_two: { backend: 'ssh', hosts: [{ ...host, price_hourly_usd: '0.36' }] } },
    },
  });
  const { token } = await purser.openWallet({ budget_cents: 500, expires_in_seconds: 7200 });
  // On a busy machine the host may not have answered within the two seconds that the first listing waits.
  const offer = await until('the host is free', async () => {
    const [listed] = (await purser.ask('GET', '/v1/compute/offers', { token })).body.offers;
    return listed.available && listed;
  });
  assert.deepEqual([offer.provider, offer.spec.chip], ['provider_two', CHIP]);
  const ask = (verb: string, body: object) =>
    purser.ask('POST', `/v1/compute/${verb}`, { token, key: randomBytes(8).toString('hex'), body });
  const made = await ask('create', { provider: 'provider_two', spec: { chip: CHIP, max_seconds: 600 } });
  assert.deepEqual([made.status, made.body.status, made.body.charged_usd], [200, 'running', '0.06'], made.text);
  const { id } = made.body;
  const full = await ask('create', { provider: 'provider_two', spec: { chip: CHIP, max_seconds: 600 } });
  assert.equal(full.body.error.code, 'capacity_unavailable');
  assert.equal((await ask('exec', { id, command: 'echo hi' })).body.stdout, 'hi\n');
  // As `base64` prints it, to a path from the home of the lease.
  const content = randomBytes(300);
  const wrapped = `${content.toString('base64').replace(/.{76}/g, '$&\r\n')}\n`;
  const uploaded = await ask('upload', { id, path: 'work/file', content_base64: wrapped });
  assert.deepEqual([uploaded.status, uploaded.body.bytes], [200, 300], uploaded.text);
  const hash = (await ask('exec', { id, command: 'sha256sum ~/work/file' })).body.stdout.split(' ')[0];
  assert.equal(hash, uploaded.body.sha256);
  const extended = await ask('extend', { id, additional_seconds: 600 });
  assert.deepEqual([extended.status, extended.body.charged_usd], [200, '0.12'], extended.text);
  assert.ok(Math.abs(Number(readFileSync(join(sshd.pool, 'tenant/deadline'), 'utf8')) - extended.body.expires_at) < 1);
  await until('it has stopped', async () => (await ask('stop', { id })).body.status === 'stopped');
  assert.equal(existsSync(join(sshd.pool, 'tenant')), false);
  assert.deepEqual(purser.problems(), []);
});
