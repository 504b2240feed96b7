import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { parseEngineAddress } from '../../src/compute/engines/container/address.ts';
import { openEngine } from '../../src/compute/engines/container/engine.ts';
import { notes, type SizedSettings } from '../../src/compute/engines/container/settings.ts';
import { gpuDevices } from '../../src/compute/kit/gpus.ts';
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
    return readConfig({ data }, {}).compute.provider_one as SizedSettings;
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
  [
    'warm machines in the networks of wallets',
    [ONE_PRICE, LIMITS, 'network: bridge', 'warm: [{ count: 1, cpus: 1, memory_gib: 1 }]'],
    /compute\.provider_one: has both network and warm/,
  ],
  [
    'warm machines of a size that nobody can lease',
    [ONE_PRICE, LIMITS, 'warm: [{ count: 1, cpus: 9, memory_gib: 1 }]'],
    /^7: compute\.provider_one\.warm: is larger than limits/,
  ],
  [
    'a size of warm machines twice',
    [ONE_PRICE, LIMITS, 'warm: [{ count: 1, cpus: 1, memory_gib: 1 }, { count: 2, cpus: 1, memory_gib: 1 }]'],
    /^7: compute\.provider_one\.warm: has a size twice/,
  ],
  [
    'an engine that nobody reaches',
    [ONE_PRICE, LIMITS, 'socket: http://10.0.0.7:2375'],
    /^7: compute\.provider_one\.socket: must be unix:/,
  ],
  [
    'a password in the address of an engine',
    [ONE_PRICE, LIMITS, 'socket: ssh://root:secret@10.0.0.7'],
    /^7: compute\.provider_one\.socket: must be unix:(?!.*secret)/,
  ],
  [
    'plain TCP to another machine',
    [ONE_PRICE, LIMITS, 'socket: tcp://10.0.0.7:2375'],
    /^7: compute\.provider_one\.socket: is plain TCP to another machine/,
  ],
  [
    'TLS without a key',
    [ONE_PRICE, LIMITS, 'socket: tcp://10.0.0.7:2376', 'tls: { ca: /a, cert: /b }'],
    /^8: compute\.provider_one\.tls\.key: is required/,
  ],
  [
    'TLS that is insecure',
    [ONE_PRICE, LIMITS, 'socket: tcp://10.0.0.7:2376', 'tls: { ca: /a, cert: /b, key: /c }', 'insecure: true'],
    /^9: compute\.provider_one\.insecure: has no use beside tls/,
  ],
  [
    'TLS to a file',
    [ONE_PRICE, LIMITS, 'tls: { ca: /a, cert: /b, key: /c }'],
    /^7: compute\.provider_one\.tls: is for a tcp:\/\/ socket/,
  ],
  [
    'SSH to a host that is not known',
    [ONE_PRICE, LIMITS, 'socket: ssh://root@10.0.0.7', 'identity_file: /id'],
    /provider_one\.host_key: is required for an ssh:\/\/ socket/,
  ],
  [
    'a key that nobody asks for',
    [ONE_PRICE, LIMITS, 'identity_file: /id'],
    /^7: compute\.provider_one\.identity_file: is for an ssh:\/\/ socket/,
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

test('an engine may be a socket, a port or a host, and plain TCP is accepted from this machine or on demand', (t) => {
  const SSH = ['host_key: ssh-ed25519 AAAA', 'identity_file: /id'];
  for (const [lines, at] of [
    [[], { kind: 'unix', path: '/var/run/docker.sock' }],
    [['socket: unix:///run/podman/podman.sock'], { kind: 'unix', path: '/run/podman/podman.sock' }],
    [['socket: tcp://127.0.0.1:2375'], { kind: 'tcp', host: '127.0.0.1', port: 2375 }],
    [['socket: "tcp://[::1]:2375"'], { kind: 'tcp', host: '::1', port: 2375 }],
    [['socket: tcp://10.0.0.7:2375', 'insecure: true'], { kind: 'tcp', host: '10.0.0.7', port: 2375 }],
    [
      ['socket: tcp://engine.lan:2376', 'tls: { ca: /a, cert: /b, key: /c }'],
      { kind: 'tcp', host: 'engine.lan', port: 2376 },
    ],
    [
      ['socket: ssh://root@10.0.0.7', ...SSH],
      { kind: 'ssh', user: 'root', host: '10.0.0.7', port: 22, path: '/var/run/docker.sock' },
    ],
    [
      ['socket: "ssh://p.user@[fd00::7]:2222/run/user/1000/podman/podman.sock"', ...SSH],
      { kind: 'ssh', user: 'p.user', host: 'fd00::7', port: 2222, path: '/run/user/1000/podman/podman.sock' },
    ],
  ] as const) {
    const settings = read(t, [ONE_PRICE, LIMITS, ...lines].join('\n'));
    assert.ok(!Array.isArray(settings), String(settings));
    assert.deepEqual(parseEngineAddress(settings.socket), at);
    const isPlain = at.kind === 'tcp' && !settings.tls;
    assert.equal(
      notes(settings).some((it) => /is plain TCP: whoever can connect/.test(it)),
      isPlain,
    );
  }
});

test('where an engine is, the configuration alone says: DOCKER_HOST and its companions change nothing', async (t) => {
  const server = createServer((_, response) => response.end('{"Version":"1","Arch":"amd64"}'));
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => server.close());
  const before = { ...process.env };
  t.after(() => {
    process.env = before;
  });
  Object.assign(process.env, {
    DOCKER_HOST: 'tcp://192.0.2.1:2376',
    DOCKER_TLS_VERIFY: '1',
    DOCKER_CLIENT_TIMEOUT: '1',
  });
  const engine = openEngine({ socket: `tcp://127.0.0.1:${(server.address() as AddressInfo).port}` });
  assert.equal(await engine.architecture(), 'amd64');
  engine.close();
});
