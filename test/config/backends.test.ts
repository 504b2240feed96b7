import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { stringify } from 'yaml';
import { secretsIn } from '../../src/base/secret.ts';
import { findUnenforced, listBackends } from '../../src/compute/settings.ts';
import { changeOf } from '../../src/config/change.ts';
import { printable, readConfig } from '../../src/config/config.ts';
import { ConfigurationFault } from '../../src/config/fault.ts';

const CANARIES = ['vast-canary-0123456789', 'vast-canary-9876543210'] as const;
const container = (more: object = {}) => ({
  backend: 'container',
  image: 'debian:12',
  prices: { cpu_hourly_usd: '0.04', memory_gib_hourly_usd: '0.005', gpu_hourly_usd: { h100: '2' } },
  limits: { cpus: 2, memory_gib: 1, gpus: 1 },
  ...more,
});
const SMALL = { id: 'small', cpus: 1, memory_gib: 1, max_disk_gb: 5, price_hourly_usd: '0.1' };
const offers = (small: object = {}, more: object = {}) => ({
  backend: 'container',
  image: 'debian:12',
  offers: [{ ...SMALL, ...small }],
  ...more,
});
const slurm = (price: string, more: object = {}) => ({
  backend: 'slurm',
  job_user: 'nobody',
  chips: { h100: { cpus: 8, memory_gib: 64, price_hourly_usd: price } },
  ...more,
});
const host = (price: string) => ({
  chip: 'h100',
  address: '10.0.0.7',
  host_key: 'ssh-ed25519 AAAA',
  identity_file: '/id',
  price_hourly_usd: price,
});

function read(t: TestContext, compute: object) {
  const directory = mkdtempSync(join(tmpdir(), 'purser-config-'));
  t.after(() => rmSync(directory, { recursive: true }));
  writeFileSync(join(directory, 'purser.yaml'), stringify({ compute }));
  return readConfig({ data: directory }, {});
}
function faultsOf(t: TestContext, compute: object): string[] {
  try {
    read(t, compute);
    return [];
  } catch (error) {
    assert.ok(error instanceof ConfigurationFault);
    return error.message.split('\n').flatMap((it) => /yaml:\d+: (.*)$/.exec(it)?.[1] ?? []);
  }
}

test('backends of a slot are named, by default by their kind, and a slot with one is as it was', (t) => {
  const config = read(t, {
    provider_one: { fill: 'most_free', backends: [container(), container({ name: 'gpu-2' })] },
    provider_two: slurm('2'),
    provider_three: { backends: [offers(), offers({ count: 3 }, { name: 'b' })] },
  });
  assert.deepEqual(
    listBackends(config.compute).map(({ slot, name, slotPath: place }) => [slot, name, place]),
    [
      ['provider_one', 'container', 'provider_one container'],
      ['provider_one', 'gpu-2', 'provider_one gpu-2'],
      ['provider_two', 'slurm', 'provider_two'],
      ['provider_three', 'container', 'provider_three container'],
      ['provider_three', 'b', 'provider_three b'],
    ],
  );
  assert.ok(findUnenforced(config.compute).some((it) => it.name === 'compute.provider_one gpu-2'));
  assert.equal((config.compute.provider_three as { fill?: string }).fill, 'in_order');
});

for (const [what, compute, said] of [
  [
    'backend and backends',
    { provider_one: { ...container(), backends: [container()] } },
    /^compute\.provider_one: give either backend or backends$/,
  ],
  ['no backend', { provider_one: { backends: [] } }, /^compute\.provider_one\.backends: names no backend$/],
  [
    'two of one name',
    { provider_one: { backends: [container(), container()] } },
    /^compute\.provider_one\.backends: two backends have the same name: /,
  ],
  [
    'the name of another kind, whose leases may be there',
    { provider_one: { backends: [container({ name: 'slurm' }), container()] } },
    /^compute\.provider_one\.backends: a backend has the name of another kind: /,
  ],
  [
    'a name that is none',
    { provider_one: { backends: [container({ name: '../x' })] } },
    /^compute\.provider_one\.backends\.0\.name: must be letters/,
  ],
  [
    'a setting that is misspelt',
    { provider_one: { backends: [container({ networc: 'none' })] } },
    /^compute\.provider_one\.backends\.0\.networc: unknown setting\. Did you mean network\?$/,
  ],
  [
    'a backend of another slot',
    { provider_one: { backends: [slurm('1')] } },
    /^compute\.provider_one\.backends\.0\.backend: Invalid type: Expected \("container" \| "kubernetes" \| "lxd"\)$/,
  ],
  ['local', { provider_one: { backends: [{ backend: 'local' }] } }, /backends\.0\.backend: local is for `purser demo`/],
  ['another fill', { provider_one: { fill: 'random', backends: [container()] } }, /^compute\.provider_one\.fill: /],
  [
    'the check of one backend',
    { provider_two: { backends: [slurm('1', { job_user: undefined })] } },
    /give either job_user or job_users$/,
  ],
  [
    'another price of a CPU',
    {
      provider_one: {
        backends: [
          container(),
          container({ name: 'b', prices: { cpu_hourly_usd: '0.05', memory_gib_hourly_usd: '0.005' } }),
        ],
      },
    },
    /^compute\.provider_one\.backends: a CPU is 0\.04 USD an hour on container and 0\.05 USD an hour on b$/,
  ],
  [
    'another price of a chip',
    { provider_two: { backends: [slurm('2'), { backend: 'ssh', hosts: [host('2.5')] }] } },
    /the chip h100 is 2\.00 USD an hour on slurm and 2\.50 USD an hour on ssh$/,
  ],
  [
    'a job user of two backends',
    {
      provider_two: {
        backends: [
          slurm('2', { job_user: undefined, job_users: ['a', 'b'] }),
          slurm('2', { name: 'night', job_user: undefined, job_users: ['c', 'b'] }),
        ],
      },
    },
    /^compute\.provider_two\.backends: the job user b is given to slurm and to night, .*: give each backend job_users of its own$/,
  ],
  [
    'a job user of one lease at a time, and of all leases elsewhere',
    { provider_two: { backends: [slurm('2'), slurm('2', { name: 'b', job_user: undefined, job_users: ['nobody'] })] } },
    /the job user nobody is given to b and to slurm, /,
  ],
  [
    'an offer of another size',
    { provider_three: { backends: [offers(), offers({ cpus: 2 }, { name: 'b' })] } },
    /the offer small is 0\.10 USD an hour for 1 CPUs, 1 GiB and 5 GB of disk on container and .* for 2 CPUs, .* on b$/,
  ],
  [
    'a variable of Purser in an offer',
    { provider_three: offers({ env: { PURSER_EXEC: 'x' } }) },
    /offers\.0\.env: has a variable that Purser sets itself$/,
  ],
  ['a variable without a name', { provider_three: offers({ env: { 'A B': 'x' } }) }, /is no name of a variable$/],
] as const)
  test(`${what} is a fault`, (t) => {
    const faults = faultsOf(t, compute);
    assert.equal(faults.length, 1, faults.join('\n'));
    assert.match(faults[0] as string, said);
  });

test('keys of several backends are kept apart and never printed, and a new key needs a restart', (t) => {
  const vast = (name: string, key: string) => ({ name, backend: 'vast', api_key: key });
  const [one, two] = CANARIES;
  const config = read(t, { provider_three: { backends: [vast('x', one), vast('y', two), offers()] } });
  assert.deepEqual(
    listBackends(config.compute).map(({ name, settings }) => [name, secretsIn(settings).map((it) => it.reveal())]),
    [
      ['x', [one]],
      ['y', [two]],
      ['container', []],
    ],
  );
  const printed = JSON.stringify(printable(config));
  assert.ok(!printed.includes('canary') && printed.includes('"api_key":"[set]"'));
  assert.ok(!JSON.stringify(config, (_, it) => (typeof it === 'bigint' ? `${it}` : it)).includes('canary'));
  const other = read(t, { provider_three: { backends: [vast('x', one), vast('y', one), offers()] } });
  assert.throws(() => changeOf(config, other), /a change of compute needs a restart/);
});
