import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { gpuDevices } from '../../src/compute/backends/container/gpus.ts';
import type { SizedSettings } from '../../src/compute/backends/container/settings.ts';
import { readConfig } from '../../src/config/config.ts';
import { ConfigurationFault } from '../../src/config/fault.ts';

/** The settings of provider_one, or its faults without the file's name. */
function read(t: TestContext, lines: string): SizedSettings | string[] {
  const data = mkdtempSync(join(tmpdir(), 'purser-config-'));
  t.after(() => rmSync(data, { recursive: true }));
  const file = join(data, 'purser.yaml');
  writeFileSync(
    file,
    `compute:\n  provider_one:\n    backend: container\n    image: debian:12\n${lines.replace(/^/gm, '    ')}`,
  );
  try {
    return readConfig({ data }, {}).config.compute.provider_one as SizedSettings;
  } catch (error) {
    assert.ok(error instanceof ConfigurationFault);
    return error.faults.map((it) => it.slice(`${file}:`.length));
  }
}

const PRICES = 'prices: { cpu_hourly_usd: "1", memory_gib_hourly_usd: "1", gpu_hourly_usd: { h100: "2", l4: "1" } }';
const ONE_PRICE = 'prices: { cpu_hourly_usd: "1", memory_gib_hourly_usd: "1", gpu_hourly_usd: { h100: "2" } }';
const LIMITS = 'limits: { cpus: 8, memory_gib: 32, gpus: 2 }';

for (const [what, lines, said] of [
  ['several GPU types without their devices', [PRICES, LIMITS], /^5: compute\.provider_one\.prices: several GPU types/],
  [
    'devices of other types than are priced',
    [PRICES, LIMITS, 'gpu_devices: { h100: ["0"] }'],
    /^7: compute\.provider_one\.gpu_devices: does not name the same GPU types/,
  ],
  [
    'a device twice',
    [PRICES, LIMITS, 'gpu_devices: { h100: ["0", "1"], l4: ["1"] }'],
    /^7: compute\.provider_one\.gpu_devices: has a device twice/,
  ],
  ['a type without a device', [ONE_PRICE, LIMITS, 'gpu_devices: { h100: [] }'], /gpu_devices\.h100: has no device/],
  [
    'a device that is none',
    [ONE_PRICE, LIMITS, 'gpu_devices: { h100: ["0,1"] }'],
    /gpu_devices\.h100\.0: must be an index or a UUID/,
  ],
  [
    'devices that nobody can lease',
    [ONE_PRICE, 'limits: { cpus: 8, memory_gib: 32 }', 'gpu_devices: { h100: ["0"] }'],
    /^7: compute\.provider_one\.gpu_devices: limits\.gpus is 0/,
  ],
  [
    'less capacity than one lease may have',
    [ONE_PRICE, LIMITS, 'capacity: { cpus: 4, memory_gib: 64 }'],
    /^7: compute\.provider_one\.capacity: one lease may be larger/,
  ],
  ['the network of the host', [ONE_PRICE, LIMITS, 'network: host'], /^7: compute\.provider_one\.network: must be none/],
  ['the network of a container', [ONE_PRICE, LIMITS, 'network: "container:x"'], /network: must be none/],
] as const)
  test(`${what}: one fault, where it stands`, (t) => {
    const faults = read(t, lines.join('\n'));
    assert.ok(
      Array.isArray(faults) && faults.length === 1,
      JSON.stringify(faults, (_, it) => String(it)),
    );
    assert.match(faults[0] as string, said);
  });

test('devices are those that are named, or the first indexes of the only type', (t) => {
  const devices = (...lines: string[]) => {
    const settings = read(t, lines.join('\n'));
    assert.ok(!Array.isArray(settings), String(settings));
    return gpuDevices(settings);
  };
  assert.deepEqual(devices(ONE_PRICE, LIMITS), { h100: ['0', '1'] });
  assert.deepEqual(devices(ONE_PRICE, LIMITS, 'gpu_devices: { h100: [2, 3] }'), { h100: ['2', '3'] });
  const named = { h100: ['GPU-8d2f', '3'], l4: ['MIG-1'] };
  assert.deepEqual(devices(PRICES, LIMITS, `gpu_devices: ${JSON.stringify(named)}`), named);
});
