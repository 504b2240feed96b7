// biome-ignore-all lint/suspicious/noTemplateCurlyInString: a variable of the configuration is written like this
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { stringify } from 'yaml';
import { isSame, redactedTexts, secretsIn } from '../../src/base/secret.ts';
import { type Config, printable, printedText, readConfig } from '../../src/config/config.ts';
import { SETTING_NAMES, Settings } from '../../src/config/schema.ts';
import { temporaryDirectory } from '../ledger/books.ts';

const KEY = 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ0';
const RELEASE_KEY = 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE+XLkeabJNKgeTMXr7eelWe+qy6AGS9vPueYYoW24xg';
const rates = {
  prompt: '0.000003',
  completion: '0.0000150001',
  input_cache_read: '0.0000003',
  input_cache_write: '0.00000375',
  input_cache_write_1h: '0.000006',
  internal_reasoning: '0.00002',
};
const perToken = { ...rates, request: '0.01', image: '0.002', tiers: [{ above_tokens: 200_000, ...rates }] };
const inMillions = Object.fromEntries(Object.keys(rates).map((name, i) => [name, `${i}.5`]));
const perMillion = { ...inMillions, request: '0.01', image: '0.002', tiers: [{ above_tokens: 5, ...inMillions }] };
const route = {
  upstream: 'one',
  upstream_model: 'org/model',
  output_limit: 'max_completion_tokens',
  tokens_per_byte: 2,
  prompt_overhead_tokens: 7,
};

const prices = { cpu_hourly_usd: '0.02', memory_gib_hourly_usd: '0.005', gpu_hourly_usd: { h100: '2', l4: '0.35' } };
const limits = { cpus: 4, memory_gib: 16.5, gpus: 2, disk_gb: 30, max_seconds: 7200 };
const offer = (id: string, more: object) => ({
  ...{ id, cpus: 0.5, memory_gib: 2, max_disk_gb: 10, price_hourly_usd: '0.125' },
  ...more,
});
const container = (name: string, more: object) => ({
  ...{ name, backend: 'container', image: 'debian', pull: 'missing', network: 'leases', pids: 100, shm_gib: 0.5 },
  ...{ runtime: 'runsc', provision_seconds: 30, snapshot_gib_day_usd: '0.002' },
  ...more,
});
const walled = { network: 'none', egress: ['pypi.org', '*.debian.org', '10.0.5.0/24:443'] };
const engines = (more: (id: string) => object) => [
  container('tls', { socket: 'tcp://10.0.0.1:2376', tls: { ca: '/ca', cert: '/cert', key: '/key' }, ...more('a') }),
  container('open', { socket: 'tcp://10.0.0.2:2375', insecure: true, ...walled, ...more('b') }),
  container('far', { socket: 'ssh://root@10.0.0.3', host_key: KEY, identity_file: '/id', ...more('c') }),
];
const lxd = {
  ...{ backend: 'lxd', socket: 'https://10.0.0.4:8443', tls: { server: '/server', cert: '/cert', key: '/key' } },
  ...{ project: 'leases', pool: 'fast', image: 'ubuntu/24.04', user: 1001, directory: '/home/it', pids: 99 },
  ...{ type: 'container', egress: ['a.test'], provision_seconds: 31 },
};
const kubernetes = {
  ...{ backend: 'kubernetes', kubeconfig: '/kube', context: 'here', namespace: 'leases', image: 'debian' },
  ...{ pull: 'always', image_pull_secrets: ['pull'], runtime_class: 'gvisor', user: 1002, group: 1003 },
  ...{ network: 'internet', node_selector: { 'example.com/pool': 'a' }, gpu_resource: 'amd.com/gpu', shm_gib: 1 },
  ...{ tolerations: [{ key: 'gpu', value: 'yes', effect: 'NoSchedule' }], provision_seconds: 32 },
};
const walledKubernetes = { ...kubernetes, ...walled, namespace: 'walled' };
const ssh = {
  backend: 'ssh',
  hosts: [
    {
      ...{ chip: 'a100', gpus: 8, address: '10.0.0.5', port: 2222, user: 'root', host_key: KEY, identity_file: '/id' },
      ...{ state_directory: '/var/lib/pool', price_hourly_usd: '12.5' },
    },
  ],
  limits: { max_seconds: 3600 },
  provision_seconds: 33,
};
const slurm = (name: string, more: object) => ({
  ...{ name, backend: 'slurm', exclusive_user: true, partition: 'gpu', slurm_conf: '/slurm.conf' },
  chips: { [name]: { gres: 'gpu:h100:1', cpus: 8, memory_gib: 64.5, price_hourly_usd: '3.333333333' } },
  ...{ limits: { max_seconds: 3601 }, provision_seconds: 34 },
  ...more,
});
const vast = {
  ...{ backend: 'vast', api_key: '${VAST}', base_url: 'https://vast.example/', markup_percent: 12.5, image: 'cuda' },
  ...{ runtype: 'ssh_proxy', provision_seconds: 600 },
};

/** Every setting, each with another value than its default. */
const EVERY = {
  listen: '[::1]:7000',
  public_url: 'https://purser.example/',
  tls: { cert: '/etc/purser/tls.crt', key: '/etc/purser/tls.key' },
  upgrade: { trusted_keys: [RELEASE_KEY] },
  trusted_proxies: ['10.0.0.0/8', '::1'],
  close_wait_seconds: 11,
  drain_seconds: 12,
  child_wallets: { depth: 3, open: 500 },
  log_level: 'debug',
  log_format: 'text',
  keep: { cpu_percent: 20 },
  backup: { every: '90m', keep: 9, directory: '/backups' },
  storage: { stall_seconds: 20 },
  metrics: { listen: '127.0.0.1:9000' },
  opentelemetry: {
    endpoint: 'http://127.0.0.1:4318/',
    headers: { authorization: 'Bearer ${COLLECTOR}', 'x-team': '${TEAM}' },
    service_name: 'it',
    timeout_seconds: 39,
  },
  ui: false,
  router: {
    upstreams: [
      {
        ...{ name: 'one', base_url: 'http://10.0.0.6/v1/', api_key: '${UPSTREAM}', timeout_seconds: 100 },
        ...{ first_byte_timeout_seconds: 50, connect_timeout_seconds: 35, max_concurrent: 20, on_cancel: 'finish' },
        ...{ forward: ['top_k'], wires: ['messages'], uncertain: { after_seconds: 60, policy: 'release' } },
      },
    ],
    models: [
      {
        ...{ id: 'a', kind: 'chat', ...route, context_length: 1000, max_output_tokens: 500, pricing: perToken },
        ...{ default_output_tokens: 50, image_tokens: 60, image_urls: true },
        fallbacks: [
          { ...route, context_length: 900, pricing: perToken },
          { ...route, pricing_per_million: perMillion },
        ],
      },
      {
        ...{
          id: 'pool',
          upstreams: ['one', { ...route, context_length: 900, pricing: perToken }],
          balance: 'least_busy',
        },
        ...{ context_length: 1000, max_output_tokens: 500, pricing: perToken },
      },
      { id: 'b', upstream: 'one', context_length: 10, max_output_tokens: 5, pricing_per_million: perMillion },
      { id: 'c', kind: 'embeddings', upstream: 'one', context_length: 10, pricing: { request: '0.5' } },
    ],
    uncertain: { after_seconds: 600, policy: 'release' },
    on_cancel: 'finish',
    cancel_grace_seconds: 4,
  },
  ssh: { listen: '0.0.0.0:2022', public_host: 'ssh.example', public_port: 22 },
  ports: { host: '*.Ports.example:8443' },
  compute: {
    templates: {
      base: { provider: 'provider_one', spec: { gpu: 'h100', gpus: 1, cpus: 8, memory_gib: 64 }, start: 'true' },
      two: { provider: 'provider_two', spec: { chip: 'h100' }, start: 'true' },
      'code-interpreter-v1': {
        ...{ provider: 'provider_three', spec: { offer_id: 'small', disk_gb: 10 } },
        start: 'jupyter server',
      },
    },
    provider_one: {
      fill: 'most_free',
      backends: [
        ...engines((id) => ({
          ...(id === 'b' ? { warm: [{ count: 3, cpus: 2, memory_gib: 4 }] } : {}),
          ...{ prices, limits, capacity: { cpus: 64, memory_gib: 256 }, gpu_mode: 'cdi' },
          gpu_devices: { h100: [0, 'GPU-1'], l4: [1] },
        })),
        {
          ...{ name: 'lxd', ...lxd, snapshot_gib_day_usd: '0.002' },
          ...{ prices: { ...prices, gpu_hourly_usd: {} }, limits: { ...limits, gpus: 0 } },
          capacity: { cpus: 64, memory_gib: 256 },
        },
        ...[kubernetes, walledKubernetes].map((it, i) => ({
          ...{ name: `k8s-${i}`, ...it, prices, limits },
          gpu_nodes: { h100: { 'example.com/gpu': 'h100' }, l4: {} },
        })),
      ],
    },
    provider_two: {
      fill: 'in_order',
      backends: [
        { name: 'pool', ...ssh },
        slurm('one', { job_user: 'leases' }),
        slurm('many', { job_users: ['lease1', 'lease2'] }),
        ...[kubernetes, walledKubernetes].map((it, i) => ({
          ...{ name: `k8s-${i}`, ...it, limits: { max_seconds: 3602 } },
          chips: {
            b200: {
              ...{ gpus: 4, node_selector: { gpu: 'b200' }, cpus: 16, memory_gib: 128, disk_gb: 40 },
              ...{ runtime_class: 'kata', price_hourly_usd: '8' },
            },
          },
        })),
      ],
    },
    provider_three: {
      fill: 'most_free',
      backends: [
        ...engines((id) => ({
          limits: { max_seconds: 3603 },
          offers: [
            offer(id, { count: 3, image: 'python', shm_gib: 2, runtime: 'kata', env: { MODE: 'fast' } }),
            ...(id === 'b' ? [offer('f', { egress: 'public', warm: 1 })] : []),
          ],
        })),
        {
          name: 'lxd',
          ...lxd,
          limits: { max_seconds: 3604 },
          snapshot_gib_day_usd: '0.002',
          offers: [
            offer('d', { count: 2, image: 'debian/12', cpus: 1, type: 'virtual-machine', egress: 'none' }),
            offer('h', { type: 'container' }),
          ],
        },
        {
          ...{ name: 'k8s-0', ...kubernetes, limits: { max_seconds: 3605 } },
          offers: [offer('e', { gpus: 1, node_selector: { gpu: 'l4' }, runtime_class: 'kata' })],
        },
        {
          ...{ name: 'k8s-1', ...walledKubernetes, limits: { max_seconds: 3605 } },
          offers: [offer('g', { egress: 'public' })],
        },
        { name: 'rented', ...vast },
      ],
    },
  },
  identity: {
    ...{ issuer: 'https://id.example/', audience: 'purser', token_type: 'at+jwt', client_ids: ['a', 'b'] },
    ...{ client_id: 'page', client_secret: '${CLIENT}', require_verified_email: true, welcome_credit_cents: 100 },
    required_claim: { name: 'groups', value: 'agents' },
    operators: { claim: 'groups', value: 'admins' },
  },
  billing: {
    stripe: {
      ...{
        secret_key: '${STRIPE}',
        webhook_secrets: ['${HOOK_1}', '${HOOK_2}'],
        success_url: 'https://a.example/paid',
      },
      ...{ cancel_url: 'https://a.example/not', api_base: 'http://127.0.0.1:1' },
    },
  },
  transfer: {
    ...{ endpoint: 'https://s3.lan', region: 'garage', bucket: 'agents', path_style: false },
    ...{ access_key_id: '${S3_ID}', secret_access_key: '${S3_SECRET}' },
  },
  events: {
    account_low_cents: 500,
    receivers: [
      {
        ...{ url: 'https://hooks.example/${RECEIVER}', secret: '${SIGNING}', name: 'ops', types: ['wallet.closed'] },
        ...{ format: 'slack', timeout_seconds: 35 },
      },
      { url: 'http://[::1]:8080/${RECEIVER}', format: 'text' },
    ],
  },
  limits: {
    ...{ wallet_requests_per_minute: 1, account_requests_per_minute: 2, failed_auth_per_minute: 3 },
    ...{ released_per_minute: 4, funds_wait_seconds: 5, download_bytes: 6 },
  },
  accounts: {
    'a team': { secrets: [{ name: 'API_TOKEN', host: 'api.test:8443', header: 'authorization', value: '${TOKEN}' }] },
  },
};
const canary = (name: string) => `canary-${name}-0123456789`;
const NAMES = ['VAST', 'COLLECTOR', 'TEAM', 'UPSTREAM', 'CLIENT', 'S3_ID', 'S3_SECRET', 'RECEIVER', 'SIGNING', 'TOKEN'];
const ENV = {
  ...Object.fromEntries(NAMES.map((name) => [name, canary(name)])),
  ...{ STRIPE: 'sk_test_canary0123456789', HOOK_1: canary('HOOK_1'), HOOK_2: canary('HOOK_2') },
};

function read(t: TestContext, text: string, env: Record<string, string>): Config {
  const data = temporaryDirectory(t);
  writeFileSync(join(data, 'purser.yaml'), text);
  return readConfig({ data }, env);
}

/** Reads what was printed, each `[set]` of it replaced by a variable. */
function readBack(t: TestContext, config: Config, printed: string): Config {
  const secrets = secretsIn(SETTING_NAMES.map((name) => config[name])).map((it) => it.reveal());
  let count = 0;
  const text = printed.replace(/\[set\]/g, () => `\${S${count++}}`);
  assert.equal(count, secrets.length, printed);
  return read(t, text, Object.fromEntries(secrets.map((it, i) => [`S${i}`, it])));
}

function assertSame(a: Config, b: Config): void {
  assert.deepEqual(printable(b).settings, printable(a).settings);
  for (const name of SETTING_NAMES) assert(isSame(a[name], b[name]), name);
}

const ONE_BACKEND = {
  provider_one: {
    ...engines(() => ({ prices: { ...prices, gpu_hourly_usd: {} }, limits: { ...limits, gpus: 0 } }))[0],
  },
  provider_two: ssh,
  provider_three: vast,
};
for (const it of Object.values(ONE_BACKEND)) delete (it as { name?: string }).name;

for (const [what, settings] of Object.entries({
  'every setting': EVERY,
  'each slot with one backend': { compute: ONE_BACKEND },
  'no setting': {},
}))
  test(`${what}: what is printed gives the same settings, as a file and as JSON`, (t) => {
    const config = read(t, stringify(settings), ENV);
    const [text, json] = [printedText(config), JSON.stringify(printable(config).settings)];
    assert(!/canary/.test(text + json));
    assertSame(config, readBack(t, config, text));
    assertSame(config, readBack(t, config, json));
  });

test('settings are printed in the units of the file', (t) => {
  const config = read(t, stringify(EVERY), { ...ENV, PURSER_LISTEN: '0.0.0.0:1' });
  const text = printedText(config);
  assert.match(
    text,
    /^# file: \/.+\/purser\.yaml\n# data directory: \/.+\n# master key: from the data directory\nlisten: /,
  );
  for (const line of [
    'listen: 0.0.0.0:1',
    '  every: 90m',
    '  host: "*.ports.example:8443"',
    '          cpu_hourly_usd: "0.02"',
    '        prompt: "0.000003"',
    '      api_key: "[set]"',
  ])
    assert(text.includes(`\n${line}\n`), `${line}\n${text}`);
});

test('every secret of the settings is found, so the log redacts it', (t) => {
  const found = redactedTexts(read(t, stringify(EVERY), ENV));
  for (const [name, value] of Object.entries(ENV))
    assert(
      found.some((it) => it.includes(value)),
      name,
    );
  for (const it of [ENV.STRIPE, canary('COLLECTOR')]) assert(found.includes(it as string), it);
});

type Schema = {
  type: string;
  wrapped?: Schema;
  item?: Schema;
  key?: Schema | string;
  value?: Schema;
  entries?: Record<string, Schema & { literal?: unknown }>;
  options?: Schema[];
};

/** The settings of `schema` that none of the values has. */
function* faultsOf(schema: Schema, values: unknown[], path: string): Generator<string> {
  const { type, wrapped, item, value, entries, options, key } = schema;
  const given = values.filter((it) => it !== undefined) as Record<string, unknown>[];
  if (wrapped?.type === 'never') return; // It is always a fault, which has words of its own.
  if (!given.length) yield `${path} is not in this test`;
  else if (wrapped) yield* faultsOf(wrapped, given, path);
  // A slot: what one backend may say, each of a list may.
  // A server of a pool is a name or a route like a fallback, which is looked at there.
  else if (type === 'lazy' && !options) return;
  else if (type === 'lazy') yield* faultsOf(options?.[1] as Schema, given, path);
  else if (item) yield* faultsOf(item, given.flat(), `${path}[]`);
  else if (type === 'record' && (key as Schema).type !== 'never')
    yield* faultsOf(value as Schema, given.flatMap(Object.values), `${path}.*`);
  else if (type === 'variant')
    for (const option of options as Schema[]) {
      const kind = option.entries?.[key as string]?.literal;
      yield* faultsOf(
        option,
        given.filter((it) => it[key as string] === kind),
        `${path}(${kind})`,
      );
    }
  else
    for (const [name, member] of Object.entries(entries ?? {}))
      yield* faultsOf(
        member,
        given.map((it) => it[name]),
        `${path}.${name}`,
      );
}

test('no setting is missing here: a new one is added above', () => {
  assert.deepEqual([...faultsOf(Settings as unknown as Schema, [EVERY], 'settings')], []);
});

/** Names that sound like a secret, and are a path, a public key or a name. */
const NO_SECRETS = /(^|\.)(tls\.key|host_key|trusted_keys|image_pull_secrets|tolerations\.key)$/;

test('what is named like a secret is one', (t) => {
  const faults: string[] = [];
  function walk(value: unknown, path: string): void {
    if (typeof value === 'string' && /(key|secret|token|password)s?$|key_id$/.test(path) && !NO_SECRETS.test(path))
      faults.push(path);
    if (secretsIn(value)[0] === value || typeof value !== 'object' || value === null) return;
    for (const [name, it] of Object.entries(value)) walk(it, Array.isArray(value) ? path : `${path}.${name}`);
  }
  const config = read(t, stringify(EVERY), ENV);
  for (const name of SETTING_NAMES) walk(config[name], name);
  assert.deepEqual(faults, []);
});
