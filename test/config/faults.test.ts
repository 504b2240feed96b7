// biome-ignore-all lint/suspicious/noTemplateCurlyInString: a variable of the configuration is written like this
import assert from 'node:assert/strict';
import test from 'node:test';
import { model, write } from './written.ts';

test('every fault of the file and of the environment is told at once, with its line', (t) => {
  const yaml = `listen: here
drain_seconds: 3601
close_wait_secs: 5
trusted_proxies: [10.0.0.0/8, nonsense]
router:
  upstreams:
    - { name: a, base_url: ftp://x }
    - name: a
      base_url: http://x
      timeout_seconds: 0
  models:
    - id: one
      upstream: a
      context_length: 100
  uncertain: { policy: maybe }
limits:
  wallet_requests_per_minute: -1
`;
  const { faults } = write(t, yaml);
  const found = faults({ PURSER_LOG_LEVEL: 'loud', PURSER_MASTER_KEY: 'a', PURSER_MASTER_KEY_FILE: 'b' });
  for (const expected of [
    'yaml:1: listen:',
    'yaml:2: drain_seconds:',
    'yaml:3: close_wait_secs: unknown setting',
    'yaml:4: trusted_proxies.1:',
    'yaml:7: router.upstreams.0.base_url:',
    'yaml:8: router.upstreams.1.name: a second upstream is named "a"',
    'yaml:10: router.upstreams.1.timeout_seconds:',
    'yaml:12: router.models.0.max_output_tokens: is required for a chat model',
    'yaml:15: router.uncertain.policy:',
    'yaml:17: limits.wallet_requests_per_minute:',
    'environment: PURSER_LOG_LEVEL:',
    'environment: give PURSER_MASTER_KEY or PURSER_MASTER_KEY_FILE, not both',
  ])
    assert(
      found.some((it) => it.startsWith(expected)),
      `${expected}\nis not in\n${found.join('\n')}`,
    );
  assert.equal(found.length, 12);
});

for (const [where, yaml, said] of [
  ['at the top', 'lisen: 127.0.0.1:1\n', 'yaml:1: lisen: unknown setting. Did you mean listen?'],
  ['in a section', 'limits:\n  per_minute: 5\n', 'yaml:2: limits.per_minute: unknown setting'],
  [
    'in an upstream',
    'router:\n  upstreams:\n    - { name: a, base_url: http://x, key: 5 }\n',
    'yaml:3: router.upstreams.0.key: unknown setting',
  ],
  ['in a model', model('price: "5"'), 'yaml:9: router.models.0.price: unknown setting'],
  [
    'in a price',
    model('pricing: { request: "1", prmpt: "1" }'),
    'yaml:9: router.models.0.pricing.prmpt: unknown setting. Did you mean prompt?',
  ],
] as const)
  test(`an unknown setting ${where} is a fault at its own line`, (t) => {
    assert.deepEqual(write(t, yaml).faults(), [said]);
  });

for (const [backend, settings, said] of [
  ['provider_two', 'backend: slurm', /job is in the network of its node/],
  ['provider_two', 'backend: ssh', /tenant is in the network of its host/],
  ['provider_three', 'backend: vast', /machine is in the network of Vast’s host/],
] as const)
  test(`${settings} says why it takes no egress`, (t) => {
    for (const egress of ['public', 'none', '[pypi.org]']) {
      const found = write(t, `compute:\n  ${backend}:\n    ${settings}\n    egress: ${egress}\n`).faults();
      const fault = found.find((it) =>
        it.startsWith(`yaml:4: compute.${backend}.egress: cannot be set for this backend: `),
      );
      assert.match(fault ?? found.join('\n'), said);
    }
  });

for (const [yaml, said] of [
  ['listen: 127.0.0.1\n', /listen: not an address/],
  ['listen: 127.0.0.1:65536\n', /listen: not an address/],
  ['listen: ::1:80\n', /listen: not an address/],
  ['listen: 7420\n', /listen: /],
  ['public_url: purser.example\n', /public_url: not an http/],
  ['public_url: file:///etc\n', /public_url: not an http/],
  ['public_url: http://a b\n', /public_url: not an http/],
  ['close_wait_seconds: 301\n', /close_wait_seconds: /],
  ['close_wait_seconds: -1\n', /close_wait_seconds: /],
  ['close_wait_seconds: 1.5\n', /close_wait_seconds: /],
  ['close_wait_seconds: "5"\n', /close_wait_seconds: /],
  ['close_wait_seconds: null\n', /close_wait_seconds: /],
  ['log_level: loud\n', /log_level: /],
  ['trusted_proxies: [10.0.0.0/33]\n', /trusted_proxies\.0: not an IP address/],
  ['trusted_proxies: [::1/129]\n', /trusted_proxies\.0: not an IP address/],
  ['trusted_proxies: [10.0.0.1/8/8]\n', /trusted_proxies\.0: not an IP address/],
  ['trusted_proxies: 10.0.0.1\n', /trusted_proxies: /],
  ['metrics: {}\n', /metrics\.listen: is required$/m],
  ['router: { uncertain: { after_seconds: 2592001 } }\n', /after_seconds: /],
  ['router: { on_cancel: kill }\n', /router\.on_cancel: .*"stop"/],
  ['router: { cancel_grace_seconds: 601 }\n', /router\.cancel_grace_seconds: /],
  ['router: { cancel_grace_seconds: 1.5 }\n', /router\.cancel_grace_seconds: /],
  [
    'router: { upstreams: [{ name: a, base_url: "http://a", on_cancel: never }] }\n',
    /router\.upstreams\.0\.on_cancel: /,
  ],
  ['- listen\n', /not a map of settings/],
  ['just words\n', /not a map of settings/],
  [
    'transfer: { endpoint: https://s3.lan/agents, bucket: agents, access_key_id: a, secret_access_key: b }\n',
    /transfer.endpoint: must be scheme, host and port alone/,
  ],
  ['compute: { provider_four: {} }\n', /compute\.provider_four: unknown setting/],
  ['compute: { provider_one: { backend: local } }\n', /provider_one\.backend: local is for `purser demo` only/],
  ['compute: { provider_two: { backend: local } }\n', /provider_two\.backend: local is for `purser demo` only/],
  ['compute: { provider_three: { backend: local } }\n', /provider_three\.backend: local is for `purser demo` only/],
  [
    'compute: { provider_one: { backend: docker } }\n',
    /provider_one\.backend: Invalid type: Expected \("container" \| "kubernetes" \| "lxd"\)$/,
  ],
  ['compute: { provider_one: {} }\n', /provider_one\.backend: is required: "container" \| "kubernetes" \| "lxd"$/m],
  ['billing: {}\n', /billing\.stripe: is required/],
  ['billing: { stripe: { secret_key: sk_test_1 } }\n', /billing\.stripe\.success_url: is required/],
  [
    'billing: { stripe: { secret_key: pk_live_1, success_url: https://a.example } }\n',
    /billing\.stripe\.secret_key: must begin with sk_live_/,
  ],
  [
    'billing: { stripe: { secret_key: sk_test_1, success_url: a.example } }\n',
    /billing\.stripe\.success_url: not an http:\/\/ or https:\/\/ address/,
  ],
  [
    'billing: { stripe: { secret_key: rk_live_1, success_url: "http://a.example" } }\n',
    /billing\.stripe\.success_url: must be https:\/\/ in live mode/,
  ],
  [
    'billing: { stripe: { secret_key: sk_test_1, success_url: https://a.example, webhook_secrets: [short] } }\n',
    /billing\.stripe\.webhook_secrets\.0: /,
  ],
  [
    'billing: { stripe: { secret_key: sk_test_1, success_url: https://a.example, api_base: https://a.example/v1 } }\n',
    /billing\.stripe\.api_base: must be scheme, host and port alone/,
  ],
] as const)
  test(`${JSON.stringify(yaml)} is one fault`, (t) => {
    const faults = write(t, yaml).faults();
    assert.equal(faults.length, 1, faults.join('\n'));
    assert.match(faults[0] as string, /^yaml:1: /);
    assert.match(faults[0] as string, said);
  });

for (const [what, yaml, line] of [
  ['a bracket that is not closed', 'drain_seconds: 1\ntrusted_proxies: [\n', 3],
  ['a quote that is not closed', 'drain_seconds: 1\nlisten: "abc\n', 3],
  ['a setting that is given twice', 'drain_seconds: 1\ndrain_seconds: 2\n', 2],
  ['a tab for indentation', 'router:\n\tmodels: []\n', 2],
  ['an alias that leads nowhere', 'drain_seconds: 1\nlisten: *here\n', 2],
  ['a file of more than 1 MiB', `drain_seconds: 1\n# ${'x'.repeat(1024 * 1024)}`, 2],
  ['aliases without end', `a: &a 1\nb: [${'*a,'.repeat(200_000)}]\n`, 2],
  ['brackets without end', `drain_seconds: 1\nlisten: ${'['.repeat(20_000)}\n`, 2],
  ['lists in lists without end', `drain_seconds: 1\nlisten:\n  ${'- '.repeat(20_000)}x\n`, 3],
  [
    'a bomb of aliases',
    'a: &a [x,x,x,x,x,x,x,x,x]\n'.concat(
      ...['ab', 'bc', 'cd', 'de', 'ef'].map(([of, it]) => `${it}: &${it} [${Array(9).fill(`*${of}`)}]\n`),
    ),
    6,
  ],
] as const)
  test(`${what} is a fault at its line`, (t) => {
    const faults = write(t, yaml).faults();
    assert(faults.length >= 1);
    assert.match(faults[0] as string, new RegExp(`^yaml:${line}: `), faults.join('\n'));
  });

test('metrics have an address of their own, and the public address no query', (t) => {
  const yaml = 'listen: 127.0.0.1:7000\nmetrics: { listen: 127.0.0.1:7000 }\n';
  assert.deepEqual(write(t, yaml).faults(), [
    'metrics.listen: 127.0.0.1:7000 is the address of `listen`: give it one of its own',
  ]);
  assert.match(write(t, 'public_url: http://a.example/?x=1\n').faults().join(), /public_url: must not have a query/);
  assert.match(
    write(t, '').faults({ PURSER_PUBLIC_URL: 'http://a.example/x#y' }).join(),
    /PURSER_PUBLIC_URL: must not have a query/,
  );
});

test('two models of one id, two upstreams of one name and an upstream that is not there are faults at their lines', (t) => {
  const yaml = `router:
  upstreams:
    - { name: a, base_url: http://x }
    - { name: b, base_url: http://x }
    - { name: a, base_url: http://y }
  models:
    - { id: m, upstream: a, context_length: 1, max_output_tokens: 1 }
    - { id: m, upstream: b, context_length: 1, max_output_tokens: 1 }
    - { id: n, upstream: c, context_length: 1, max_output_tokens: 1 }
`;
  assert.deepEqual(write(t, yaml).faults(), [
    'yaml:5: router.upstreams.2.name: a second upstream is named "a"',
    'yaml:8: router.models.1.id: a second model has the id "m"',
    'yaml:9: router.models.2.upstream: no upstream is named "c"',
  ]);
});

test('what does not agree within the router is told beside every other fault of it, and nothing that follows from one', (t) => {
  const yaml = `router:
  upstreams:
    - { name: a, base_url: http://x, timeout_seconds: 5, first_byte_timeout_seconds: 6, key: x }
    - { name: a, base_url: http://y }
  models:
    - { id: m, upstream: c, max_output_tokens: 1, pricing: { prompt: 0.000001 } }
    - { id: m, upstream: a, pricing: { request: 1 }, pricing_per_million: { request: 1 }, max_output_tokens: 1 }
    - { id: n, upstream: a, context_length: 1, max_output_tokens: 1, fallbacks: [5, { upstream: d, pricing: { request: one } }] }
    - text
`;
  assert.deepEqual(
    write(t, yaml)
      .faults()
      .map((it) => it.replace(/ \(.*/, ''))
      .sort(),
    [
      'yaml:3: router.upstreams.0.key: unknown setting',
      'yaml:3: router.upstreams.0: first_byte_timeout_seconds is longer than timeout_seconds',
      'yaml:4: router.upstreams.1.name: a second upstream is named "a"',
      'yaml:6: router.models.0.context_length: is required',
      'yaml:6: router.models.0.pricing: give prompt and completion, or request alone: a price that is left out would be a price of 0',
      'yaml:6: router.models.0.upstream: no upstream is named "c"',
      'yaml:7: router.models.1.context_length: is required',
      'yaml:7: router.models.1.id: a second model has the id "m"',
      'yaml:7: router.models.1: give pricing or pricing_per_million, not both',
      'yaml:8: router.models.2.fallbacks.0: must be a map of settings',
      'yaml:8: router.models.2.fallbacks.1.pricing.request: not an exact price: a plain decimal number with at most 9 decimals',
      'yaml:8: router.models.2.fallbacks: no upstream is named "d"',
      'yaml:9: router.models.3: must be a map of settings',
    ],
  );
  const unnamed = write(
    t,
    'router:\n  upstreams: [{ base_url: http://x }]\n  models: [{ id: m, upstream: a }]\n',
  ).faults();
  assert(!unnamed.some((it) => it.includes('no upstream is named')), unnamed.join('\n'));
  assert.equal(write(t, 'router: { upstreams: 5, models: { upstream: a } }\n').faults().length, 2);
  assert.equal(write(t, 'router: 5\n').faults().length, 1);
});

test('a number has its bounds: the least and the most are taken, and what is beyond is refused with its path', (t) => {
  const inBackup = (it: string) => `backup: { directory: /b, every: 1h, ${it} }`;
  const rows: [
    path: string,
    yaml: (value: string) => string,
    least: [string, string],
    most: [string, string] | undefined,
  ][] = [
    ['close_wait_seconds', (it) => `close_wait_seconds: ${it}`, ['0', '-1'], ['300', '301']],
    ['drain_seconds', (it) => `drain_seconds: ${it}`, ['0', '-1'], ['3600', '3601']],
    ['child_wallets.depth', (it) => `child_wallets: { depth: ${it} }`, ['0', '-1'], ['16', '17']],
    ['child_wallets.open', (it) => `child_wallets: { open: ${it} }`, ['0', '-1'], ['100000', '100001']],
    ['keep.cpu_percent', (it) => `keep: { cpu_percent: ${it} }`, ['1', '0'], ['100', '101']],
    ['backup.every', (it) => `backup: { directory: /b, every: ${it} }`, ['60s', '59s'], undefined],
    ['backup.keep', (it) => inBackup(`keep: ${it}`), ['1', '0'], ['10000', '10001']],
    ['ssh.public_port', (it) => `ssh: { public_port: ${it} }`, ['1', '0'], ['65535', '65536']],
    ['router.cancel_grace_seconds', (it) => `router: { cancel_grace_seconds: ${it} }`, ['0', '-1'], ['600', '601']],
  ];
  for (const [path, yaml, ...ends] of rows)
    for (const [taken, refused] of ends.filter((it) => it !== undefined)) {
      assert.deepEqual(write(t, yaml(taken)).faults(), [], `${path}: ${taken}`);
      const [fault, ...more] = write(t, yaml(refused)).faults();
      assert.ok(fault?.includes(`${path}: `) && !more.length, `${path}: ${refused}: ${fault}`);
    }
});

test('a duration that is not one is told with examples, a bare number too', (t) => {
  for (const every of ['6', '6x', 'true', '"6"'])
    assert.deepEqual(
      write(t, `backup: { every: ${every}, directory: /mnt }\n`).faults(),
      ['yaml:1: backup.every: not a duration, as 30m, 6h or 1d'],
      every,
    );
});
