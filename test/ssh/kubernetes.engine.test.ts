import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { createHash, randomBytes } from 'node:crypto';
import { mkdirSync, writeFileSync } from 'node:fs';
import test from 'node:test';
import { findResource } from '../../src/ledger/resource.ts';
import { settingsOn, sharedKubernetes } from '../compute/engines/kubernetes-subject.ts';
import { hasComponent } from '../helper/component.ts';
import { openTestServer } from '../helper/server.ts';
import { reachLease } from './lease.ts';

const MIB = 1024 * 1024;

test('plain ssh, scp and an extension of a lease on Kubernetes', async (t) => {
  if (!hasComponent(t, 'openssh-client')) return;
  const shared = await sharedKubernetes(t);
  if (!shared) return;
  const { prices: _, limits: __, ...common } = settingsOn(shared.cluster, shared.kubeconfig);
  const chips = { small: { gpus: 0, cpus: 0.25, memory_gib: 0.25, disk_gb: 1, price_hourly_usd: '0.10' } };
  const purser = await openTestServer(t, { settings: { compute: { provider_two: { ...common, chips } } } });
  const wallet = await purser.openWallet({ budget_cents: 500, expires_in_seconds: 7200 });
  const order = { provider: 'provider_two', spec: { chip: 'small', max_seconds: 600 } };
  const it = await reachLease(t, purser, wallet, order);

  const content = randomBytes(5 * MIB);
  mkdirSync(it.at('tree/inner'), { recursive: true });
  writeFileSync(it.at('tree/a file'), content);
  writeFileSync(it.at("tree/inner/it's\nanother"), 'another', { mode: 0o400 });
  const began = performance.now();
  await it.good('scp', '-rp', 'tree', `${it.target}:`);
  t.diagnostic(`${Math.round(performance.now() - began)} ms for a tree of 5 MiB`);
  const sum = createHash('sha256').update(content).digest('hex');
  assert.equal((await it.ssh([], "sha256sum 'tree/a file'")).stdout.slice(0, 64), sum);
  await it.good('scp', '-rp', `${it.target}:tree`, 'back');
  execFileSync('diff', ['-r', it.at('tree'), it.at('back')]);
  const ended = await it.ssh([], 'cat >&2; exit 9');
  assert.deepEqual([ended.code, ended.stdout, ended.stderr], [9, '', '']);

  const body = { id: it.id, additional_seconds: 600 };
  const before = (await purser.ask('POST', '/v1/compute/status', { token: wallet.token, body: { id: it.id } })).body;
  const extended = await purser.ask('POST', '/v1/compute/extend', { token: wallet.token, key: 'longer', body });
  assert.equal(extended.status, 200, extended.text);
  const [backend] = purser.app.slots.list.map((slot) => slot.backend);
  // Other tests have machines on this cluster.
  const machine = await backend?.inspect(findResource(purser.app.ledger.read, it.id)?.ref as string);
  assert.ok((machine?.deadline ?? 0) >= before.expires_at + 600, `${JSON.stringify(machine)} has ${before.expires_at}`);
});
