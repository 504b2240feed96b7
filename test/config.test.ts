// biome-ignore-all lint/suspicious/noTemplateCurlyInString: a variable of the configuration is written like this
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join, relative, resolve } from 'node:path';
import test, { type TestContext } from 'node:test';
import { secretsIn } from '../src/base/secret.ts';
import { dataDirectoryOf, type Flags, printable, readConfig } from '../src/config/config.ts';
import { ConfigurationFault } from '../src/config/fault.ts';
import { isLive } from '../src/config/services.ts';
import { examineSettings } from '../src/doctor/settings.ts';
import { parseAddress, urlOf } from '../src/net/listen.ts';
import { temporaryDirectory } from './ledger/books.ts';

type Environment = Record<string, string>;

/** Creates a data directory, with `yaml` as its purser.yaml if that is given. */
function write(t: TestContext, yaml?: string) {
  const directory = temporaryDirectory(t);
  const file = join(directory, 'purser.yaml');
  if (yaml !== undefined) writeFileSync(file, yaml);
  const read = (env: Environment = {}, flags: Flags = {}) => readConfig({ data: directory, ...flags }, env);
  /** Returns every fault, without the file's name. */
  function faults(env: Environment = {}): string[] {
    try {
      read(env);
    } catch (error) {
      assert(error instanceof ConfigurationFault, String(error));
      return error.faults.map((it) => it.replace(`${file}:`, 'yaml:'));
    }
    return [];
  }
  return { directory, file, read, faults };
}

/** One upstream and one model, of which `lines` are part. */
const model = (...lines: string[]) => `router:
  upstreams:
    - { name: purser, base_url: http://127.0.0.1:8000/v1, api_key: sk-purser }
  models:
    - id: chat
      upstream: purser
      context_length: 100
      max_output_tokens: 10
${lines.map((line) => `      ${line}\n`).join('')}`;
const priceOf = (t: TestContext, ...lines: string[]) => {
  const [it] = write(t, model(...lines)).read().router.models;
  return it?.pricing ?? it?.pricing_per_million;
};

test('without a file and without environment everything has its default', (t) => {
  const { directory, read } = write(t);
  const config = read();
  assert.deepEqual(config, {
    dataDirectory: directory,
    file: undefined,
    masterKey: { from: 'data directory', text: undefined, path: join(directory, 'master.key') },
    listen: { host: '127.0.0.1', port: 7420 },
    public_url: undefined,
    log_level: 'info',
    ui: true,
    upgrade: { trusted_keys: [] },
    trusted_proxies: [],
    close_wait_seconds: 10,
    child_wallets: { depth: 4, open: 1000 },
    keep: { cpu_percent: 5 },
    storage: { stall_seconds: 10 },
    drain_seconds: 10,
    router: {
      upstreams: [],
      models: [],
      uncertain: { after_seconds: 900, policy: 'charge' },
      on_cancel: 'stop',
      cancel_grace_seconds: 3,
    },
    ssh: { listen: { host: '127.0.0.1', port: 7422 } },
    ports: {},
    compute: {},
    events: { receivers: [] },
    limits: {
      wallet_requests_per_minute: 0,
      account_requests_per_minute: 0,
      failed_auth_per_minute: 600,
      funds_wait_seconds: 30,
      download_bytes: 1024 ** 3,
      released_per_minute: 60,
    },
  });
  assert(Object.isFrozen(config));
});

for (const yaml of ['', '# nothing but a remark\n', '---\n', '{}\n', 'router: {}\n'])
  test(`a file that says nothing (${JSON.stringify(yaml)}) is the defaults`, (t) => {
    assert.equal(write(t, yaml).read().listen.port, 7420);
  });

test('unless it is set, a stop waits as long as the longest answer of an upstream may take', (t) => {
  const upstreams = (...seconds: number[]) =>
    seconds.map((it, i) => `{ name: u${i}, base_url: http://127.0.0.1:1/v1, timeout_seconds: ${it} }`).join();
  const drainOf = (yaml: string) => write(t, yaml).read().drain_seconds;
  assert.equal(drainOf('router: { upstreams: [{ name: u, base_url: http://127.0.0.1:1/v1 }] }'), 300);
  assert.equal(drainOf(`router: { upstreams: [${upstreams(20, 700, 1)}] }`), 700);
  assert.equal(drainOf(`router: { upstreams: [${upstreams(2)}] }`), 10);
  assert.equal(drainOf(`drain_seconds: 0\nrouter: { upstreams: [${upstreams(700)}] }`), 0);
});

test('the environment beats the file, and the file the default', (t) => {
  const { read } = write(t, 'listen: 0.0.0.0:1\npublic_url: http://file\nlog_level: warn\n');
  const fromFile = read();
  assert.deepEqual(
    [fromFile.listen, fromFile.public_url, fromFile.log_level],
    [{ host: '0.0.0.0', port: 1 }, 'http://file', 'warn'],
  );
  const env = { PURSER_LISTEN: '[::1]:2', PURSER_PUBLIC_URL: 'https://env/', PURSER_LOG_LEVEL: 'debug' };
  const fromEnv = read(env);
  assert.deepEqual(
    [fromEnv.listen, fromEnv.public_url, fromEnv.log_level],
    [{ host: '::1', port: 2 }, 'https://env', 'debug'],
  );
});

test('an environment variable that is empty is not set', (t) => {
  const { read } = write(t, 'listen: 0.0.0.0:1\n');
  const env = {
    PURSER_LISTEN: '',
    PURSER_PUBLIC_URL: '',
    PURSER_LOG_LEVEL: '',
    PURSER_CONFIG: '',
    PURSER_MASTER_KEY: '',
  };
  assert.equal(read(env).listen.port, 1);
});

test('the flag for the data directory beats the environment, and that the default', () => {
  assert.equal(dataDirectoryOf({ data: '/flag' }, { PURSER_DATA: '/env' }), '/flag');
  assert.equal(dataDirectoryOf({}, { PURSER_DATA: '/env' }), '/env');
  assert.equal(dataDirectoryOf({}, { PURSER_DATA: '' }), resolve('purser-data'));
});

test('the flag for the file beats the environment, and that the file in the data directory', (t) => {
  const { directory, read } = write(t, 'drain_seconds: 1\n');
  const [env, flag] = [join(directory, 'env.yaml'), join(directory, 'flag.yaml')];
  writeFileSync(env, 'drain_seconds: 2\n');
  writeFileSync(flag, 'drain_seconds: 3\n');
  assert.equal(read().drain_seconds, 1);
  assert.equal(read({ PURSER_CONFIG: env }).drain_seconds, 2);
  assert.equal(read({ PURSER_CONFIG: env }, { config: flag }).drain_seconds, 3);
});

test('a file that was asked for and is not there is a fault, and no default', (t) => {
  const { directory, read } = write(t);
  assert.throws(() => read({}, { config: join(directory, 'none.yaml') }), /none\.yaml: cannot be read \(ENOENT\)/);
  mkdirSync(join(directory, 'folder'));
  assert.throws(() => read({ PURSER_CONFIG: join(directory, 'folder') }), /folder: cannot be read \(EISDIR\)/);
});

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
  ['metrics: {}\n', /metrics\.listen: is required/],
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
  [
    'compute: { provider_one: {} }\n',
    /provider_one\.backend: is required \(\("container" \| "kubernetes" \| "lxd"\)\)/,
  ],
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

test('a variable is read from the environment, wherever in the file it stands', (t) => {
  const yaml = `listen: \${HOST}:\${PORT}
public_url: "https://\${HOST}/a"
router:
  upstreams:
    - { name: one, base_url: http://\${HOST}, api_key: \${ONE_KEY} }
    - name: two
      base_url: 'http://\${HOST}:\${PORT}'
      api_key: Bearer-\${TWO_KEY}-end
`;
  const config = write(t, yaml).read({ HOST: '10.0.0.1', PORT: '99', ONE_KEY: 'k-1', TWO_KEY: 'k-2' });
  assert.deepEqual(config.listen, { host: '10.0.0.1', port: 99 });
  assert.equal(config.public_url, 'https://10.0.0.1/a');
  assert.deepEqual(
    config.router.upstreams.map((it) => it.base_url),
    ['http://10.0.0.1', 'http://10.0.0.1:99'],
  );
  assert.deepEqual(
    config.router.upstreams.map((it) => it.api_key?.reveal()),
    ['k-1', 'Bearer-k-2-end'],
  );
});

test('what a variable holds is a value, and neither YAML nor another variable', (t) => {
  const yaml = 'router:\n  upstreams:\n    - { name: one, base_url: http://x, api_key: "${KEY}" }\n';
  const KEY = '${HOME}: [a, b] # {c} "d" \\n';
  assert.equal(write(t, yaml).read({ KEY, HOME: '/root' }).router.upstreams[0]?.api_key?.reveal(), KEY);
});

test('a variable that is not set is a fault at its line, and every one of them is told', (t) => {
  const yaml =
    'public_url: http://${NOWHERE}/\nrouter:\n  upstreams:\n    - name: one\n      base_url: http://x\n      api_key: ${NO_KEY}\n';
  const faults = write(t, yaml).faults();
  assert(faults.includes('yaml:1: ${NOWHERE} is not set in the environment'), faults.join('\n'));
  assert(faults.includes('yaml:6: ${NO_KEY} is not set in the environment'));
});

test('what only looks like a variable is left as it is', (t) => {
  const yaml =
    'router:\n  upstreams:\n    - { name: one, base_url: http://x, api_key: "$KEY $(KEY) ${1} $ {KEY}" } # ${NOT_READ}\n';
  assert.equal(write(t, yaml).read().router.upstreams[0]?.api_key?.reveal(), '$KEY $(KEY) ${1} $ {KEY}');
});

test('a price is exact, quoted or not: it never goes by way of a binary fraction', (t) => {
  for (const [text, expected] of [
    ['0.0000001', 100_000_000n],
    ['0.000000000000001', 1n],
    ['0.000000300000000', 300_000_000n],
    ['0.001000000000001', 1_000_000_000_001n],
    ['0', 0n],
    ['0.01', 10_000_000_000_000n],
  ] as const)
    for (const written of [text, `"${text}"`, `'${text}'`]) {
      const price = priceOf(t, `pricing: { prompt: ${written}, completion: ${written}, request: 0.000000001 }`);
      assert.deepEqual(price, { prompt: expected, completion: expected, request: 1n, tiers: [] });
    }
});

test('a price per million tokens is the same price as a millionth of it per token', (t) => {
  const perMillion = priceOf(t, 'pricing_per_million: { prompt: 0.10, completion: 0.40 }');
  const perToken = priceOf(t, 'pricing: { prompt: 0.0000001, completion: "0.0000004" }');
  assert.deepEqual(perMillion, perToken);
  assert.deepEqual(perToken, { prompt: 100_000_000n, completion: 400_000_000n, tiers: [] });
});

for (const text of [
  '1e-7',
  '"1e-7"',
  '.5',
  '-0.1',
  '+1',
  '0x10',
  '0o7',
  '.inf',
  '.nan',
  '1_000',
  '"1,5"',
  '"$1"',
  '"free"',
  '0.0000000000000001',
])
  test(`a price of ${text} is not exact, and refused at its line`, (t) => {
    const [fault = '', ...more] = write(
      t,
      model('pricing:', '  request: 0', `  prompt: ${text}`, '  completion: 0'),
    ).faults();
    assert.match(fault, /^yaml:11: router\.models\.0\.pricing\.prompt: not an exact price/);
    assert.deepEqual(more, []);
  });

test('a price beyond belief is refused: somebody has slipped with the decimal point', (t) => {
  assert.match(
    write(t, model('pricing: { prompt: 0.0100001, completion: 0 }')).faults().join(),
    /not a believable price/,
  );
  assert.match(write(t, model('pricing: { request: 10000.01 }')).faults().join(), /not a believable price/);
});

for (const text of [
  '{ prompt: 0.1 }',
  '{ completion: 0.1 }',
  '{ prompt: 0, request: 0.1 }',
  '{ completion: 0, request: 0.1 }',
  '{}',
])
  test(`half a price, ${text}, is refused: what is left out would be free`, (t) => {
    const faults = write(t, model(`pricing_per_million: ${text}`)).faults();
    assert.equal(faults.length, 1);
    assert.match(faults[0] as string, /^yaml:9: .*a price that is left out would be a price of 0/);
  });

test('a price per request may stand alone, and a model may have no price at all', (t) => {
  assert.deepEqual(priceOf(t, 'pricing: { request: 0.01 }'), { request: 10_000_000n, tiers: [] });
  assert.equal(priceOf(t), undefined);
});

test('a tier begins above a whole number of tokens, in ascending order, and has both prices', (t) => {
  const tiers = (text: string) => `pricing_per_million: { prompt: 1, completion: 2, tiers: ${text} }`;
  const tier = (above: string, rest = 'prompt: 3, completion: 4') => `{ above_tokens: ${above}, ${rest} }`;
  assert.deepEqual(priceOf(t, tiers(`[${tier('200000')}, ${tier('400000', 'prompt: 5, completion: 6')}]`)), {
    prompt: 10n ** 9n,
    completion: 2n * 10n ** 9n,
    tiers: [
      { above_tokens: 200_000, prompt: 3n * 10n ** 9n, completion: 4n * 10n ** 9n },
      { above_tokens: 400_000, prompt: 5n * 10n ** 9n, completion: 6n * 10n ** 9n },
    ],
  });
  for (const [text, fault] of [
    [`[${tier('0')}]`, /above_tokens/],
    [`[${tier('1.5')}]`, /above_tokens: must be a whole number/],
    [`[${tier('1e5')}]`, /above_tokens: must be a whole number/],
    [`[${tier('100000001')}]`, /above_tokens/],
    [`[${tier('5')}, ${tier('5')}]`, /ascending order/],
    [`[${tier('5')}, ${tier('4')}]`, /ascending order/],
    [`[${tier('5', 'prompt: 3')}]`, /a tier needs prompt and completion/],
    [`[${tier('5', 'completion: 3')}]`, /a tier needs prompt and completion/],
  ] as const)
    assert.match(
      write(t, model(tiers(text)))
        .faults()
        .join(),
      fault,
      text,
    );
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

test('two prices for one model are refused', (t) => {
  const faults = write(t, model('pricing: { request: 1 }', 'pricing_per_million: { request: 1 }')).faults();
  assert.match(faults.join(), /give pricing or pricing_per_million, not both/);
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

const SECRET = 'canary-7f3a9';
const MASTER_KEY = `${SECRET}-master`.padEnd(43, '0'); // Base64.

test('the secret of the page’s client is printed as set, and needs the client', (t) => {
  const yaml = 'identity: { issuer: https://id.example, audience: a, client_id: page, client_secret: "${KEY}" }\n';
  const config = write(t, yaml).read({ KEY: SECRET });
  assert.equal(config.identity?.client_secret?.reveal(), SECRET);
  const { client_id, client_secret } = printable(config).settings.identity as Record<string, unknown>;
  assert.deepEqual([client_id, client_secret], ['page', '[set]']);
  assert.throws(
    () => write(t, 'identity: { issuer: https://id.example, audience: a, client_secret: x }\n').read(),
    /identity\.client_secret: needs client_id/,
  );
});

test('operators need the page’s client, and a claim that users cannot write themselves', (t) => {
  const read = (claim: string, client = ', client_id: page') =>
    write(
      t,
      `identity: { issuer: https://id.example, audience: a${client}, operators: { claim: ${claim}, value: x } }\n`,
    ).read();
  assert.deepEqual(read('groups').identity?.operators, { claim: 'groups', value: 'x' });
  assert.throws(() => read('groups', ''), /identity\.operators: needs client_id/);
  const names = ['preferred_username', 'nickname', 'name', 'address', 'address.locality', 'scope', 'scp', 'aud'];
  const metadata = ['user_metadata.role', 'raw_user_meta_data.role', 'unsafe_metadata.role', 'unsafeMetadata'];
  for (const claim of [...names, ...metadata, 'acr', 'amr', 'iss', 'typ'])
    assert.throws(() => read(claim), /operators\.claim: must be a claim that users cannot set themselves/, claim);
});

test('what is printed of a configuration has no secret in it', (t) => {
  const yaml =
    'router:\n  upstreams:\n    - { name: a, base_url: http://x, api_key: "${KEY}" }\n    - { name: b, base_url: http://x }\n';
  const config = write(t, yaml).read({ KEY: SECRET, PURSER_MASTER_KEY: MASTER_KEY });
  assert.equal(config.router.upstreams[0]?.api_key?.reveal(), SECRET);
  assert.equal(config.masterKey.text?.reveal(), MASTER_KEY);
  const printed = printable(config);
  assert.doesNotMatch(
    JSON.stringify([printed, config], (_, it) => (typeof it === 'bigint' ? String(it) : it)),
    /canary/,
  );
  assert.equal(printed.master_key, 'environment');
  const [a, b] = (printed.settings.router as { upstreams: Record<string, unknown>[] }).upstreams;
  assert.deepEqual([a?.api_key, b?.api_key], ['[set]', undefined]);
});

test('the keys of the payment provider and of the object storage are printed as set', (t) => {
  const yaml = `billing:
  stripe:
    secret_key: sk_live_canary
    webhook_secrets: [whsec_canary1, whsec_canary2]
    success_url: https://agents.example/paid
transfer: { endpoint: "https://s3.lan", bucket: agents, access_key_id: canary-id, secret_access_key: canary-secret }
`;
  const config = write(t, yaml).read();
  assert.deepEqual(
    secretsIn([config.billing, config.transfer]).map((it) => it.reveal()),
    ['sk_live_canary', 'whsec_canary1', 'whsec_canary2', 'canary-id', 'canary-secret'],
  );
  assert.equal(config.billing && isLive(config.billing.stripe), true);
  const printed = printable(config);
  assert.doesNotMatch(JSON.stringify([printed, config]), /canary/);
  assert.deepEqual((printed.settings.billing as { stripe: object }).stripe, {
    success_url: 'https://agents.example/paid',
    api_base: 'https://api.stripe.com',
    secret_key: '[set]',
    webhook_secrets: ['[set]', '[set]'],
  });
});

test('an address with a password in it is refused, for addresses are printed', (t) => {
  const yaml = (url: string) => `router: { upstreams: [{ name: a, base_url: "${url}" }] }\n`;
  for (const url of [`http://user:${SECRET}@host/v1`, `https://${SECRET}@host`, `http://user:${SECRET}@host:80`]) {
    const faults = write(t, yaml(url)).faults();
    assert.equal(faults.length, 1);
    assert.match(faults[0] as string, /holds a user name or a password/);
    assert.doesNotMatch(faults[0] as string, /canary/);
  }
  assert.deepEqual(write(t, yaml('http://host/path@v1')).faults(), []);
});

test('a secret in the wrong place is a fault that does not repeat it', (t) => {
  const places = [
    'listen: ${S}', 'public_url: ${S}', 'log_level: ${S}', 'drain_seconds: ${S}', 'trusted_proxies: ["${S}"]', 'trusted_proxies: ${S}',
    'metrics: { listen: "${S}" }', 'metrics: ${S}', 'router: ${S}', 'router: { uncertain: { policy: "${S}" } }',
    'router: { upstreams: ["${S}"] }', 'router: { upstreams: [{ name: a, base_url: "${S}" }] }', 'unknown: ${S}', 'compute: ${S}',
    'router: { upstreams: [{ name: a, base_url: http://x, api_key: ["${S}"] }] }',
    'router: { upstreams: [{ name: a, base_url: http://x, timeout_seconds: "${S}" }] }',
    model('pricing: { request: "${S}" }'), model('context_length: "${S}"').replace('context_length: 100\n', '\n'),
    model('output_limit: ${S}'), model('tokens_per_byte: ${S}'),
    'billing: ${S}', 'billing: { stripe: "${S}" }', 'billing: { stripe: { secret_key: "${S}" } }',
    'billing: { stripe: { secret_key: sk_test_1, success_url: "${S}" } }',
    'billing: { stripe: { secret_key: sk_test_1, success_url: https://a.example, webhook_secrets: "${S}" } }',
    'billing: { stripe: { secret_key: sk_test_1, success_url: https://a.example, webhook_secrets: [["${S}"]] } }',
    'transfer: "${S}"', 'transfer: { endpoint: https://a.example, bucket: abc, access_key_id: a, secret_access_key: ["${S}"] }',
    'transfer: { endpoint: "https://${S}@a.example", bucket: abc, access_key_id: a, secret_access_key: b }',
    'transfer: { endpoint: https://a.example, bucket: "${S}/", access_key_id: a, secret_access_key: b }',
    'identity: { issuer: "${S}", audience: a }',
  ]; // biome-ignore format: one list
  for (const yaml of places) {
    const faults = write(t, `${yaml}\n`).faults({ S: SECRET });
    assert(faults.length >= 1, yaml);
    assert.doesNotMatch(faults.join('\n'), /canary/, yaml);
  }
});

test('the master key comes from the environment, from a file that is named there, or from the data directory', (t) => {
  const { directory, read, faults } = write(t);
  const { from, text, path } = read({ PURSER_MASTER_KEY: MASTER_KEY }).masterKey;
  assert.deepEqual([from, text?.reveal(), path], ['environment', MASTER_KEY, undefined]);
  const key = join(directory, 'k');
  writeFileSync(key, `${MASTER_KEY}\n`);
  assert.deepEqual(read({ PURSER_MASTER_KEY_FILE: relative('.', key) }).masterKey, {
    from: 'file',
    text: undefined,
    path: key,
  });
  assert.equal(read().masterKey.path, join(directory, 'master.key'));
  assert.equal(faults({ PURSER_MASTER_KEY: 'a', PURSER_MASTER_KEY_FILE: 'b' }).length, 1);
});

test('a master key that is malformed or cannot be read is a fault beside the others, and is not repeated', (t) => {
  const { directory, read, faults } = write(t, 'listen: here\n');
  const file = join(directory, 'k');
  const faultOf = (env: Environment) => {
    const [listen, key, ...more] = faults(env);
    assert.match(listen ?? '', /^yaml:1: listen:/);
    assert.deepEqual(more, []);
    assert(!key?.includes(SECRET), key);
    return key;
  };
  const rule = 'must be 32 bytes, as 64 hex digits or in base64';
  assert.equal(faultOf({ PURSER_MASTER_KEY: SECRET }), `environment: PURSER_MASTER_KEY: ${rule}`);
  const inFile = { PURSER_MASTER_KEY_FILE: file };
  assert.match(faultOf(inFile) ?? '', /^environment: PURSER_MASTER_KEY_FILE: there is no file \S+\/k\. Put your copy/);
  assert.match(faultOf({ PURSER_MASTER_KEY_FILE: directory }) ?? '', /_FILE: \S+ cannot be read \(EISDIR\)$/);
  writeFileSync(file, SECRET);
  assert.equal(faultOf(inFile), `environment: PURSER_MASTER_KEY_FILE: what is in ${file} ${rule}`);
  writeFileSync(join(directory, 'purser.yaml'), '');
  assert.equal(read(inFile, { withoutKey: true }).masterKey.path, file);
  const pipe = join(directory, 'pipe');
  execFileSync('mkfifo', [pipe]); // It can be read only once, which is left to the reader of the key.
  assert.equal(faults({ PURSER_MASTER_KEY_FILE: pipe }).length, 0);
});

test('an address is a host and a port, and an IPv6 host stands in brackets', () => {
  for (const text of ['127.0.0.1:7420', '[::1]:80', 'localhost:0']) {
    const parsed = parseAddress(text) ?? assert.fail(text);
    assert.equal(urlOf(parsed), `http://${text}`);
  }
  for (const text of [
    '',
    ':80',
    'host',
    'host:',
    'host:65536',
    'host:-1',
    'host:8o',
    '[::1]',
    '::1:80',
    'a:b:80',
    'host:80/',
  ])
    assert.equal(parseAddress(text), undefined, text);
});

const RECEIVER_SECRET = 'a-signing-secret-canary';
const withReceivers = (...receivers: string[]) => `events: { receivers: [${receivers.join(', ')}] }\n`;

test('the addresses and the secrets of receivers of events are secrets', async (t) => {
  const { read } = write(
    t,
    withReceivers(
      `{ url: "https://hooks.example/services/\${HOOK}?a=b", secret: "\${KEY}", types: [disk.low] }`,
      '{ url: "http://10.0.0.9:8080", name: pager, format: text, timeout_seconds: 3 }',
    ),
  );
  const config = read({ HOOK: 'path-canary', KEY: RECEIVER_SECRET });
  assert.deepEqual(
    config.events.receivers.map(({ url, secret, ...it }) => [url.reveal(), secret?.reveal(), it]),
    [
      [
        'https://hooks.example/services/path-canary?a=b',
        RECEIVER_SECRET,
        { name: 'hooks.example', types: ['disk.low'], format: 'json', timeout_seconds: 10 },
      ],
      ['http://10.0.0.9:8080', undefined, { name: 'pager', format: 'text', timeout_seconds: 3 }],
    ],
  );
  const printed = JSON.stringify(printable(config));
  for (const canary of ['path-canary', RECEIVER_SECRET]) assert.ok(!printed.includes(canary), canary);
  assert.match(printed, /"url":"\[set\]","name":"hooks.example","secret":"\[set\]"/);
  const findings = (await examineSettings(config)).filter(({ name }) => name.startsWith('events'));
  assert.deepEqual(
    findings.map(({ name, detail }) => `${name}: ${detail}`),
    ['events.receivers: Warning: over http:// the events for pager can be read on the network path.'],
  );
});

for (const [receiver, fault] of [
  ['{ url: "https://a.example" }', /secret: is required/],
  ['{ url: "https://a.example", secret: short }', /secret: must stand for 16 bytes or more/],
  ['{ url: "https://a.example", secret: whsec_a*b }', /secret: is no base64 after whsec_/],
  ['{ url: "https://user:pw@a.example", format: text }', /url: holds a user name or a password/],
  ['{ url: "ftp://a.example", format: text }', /url: not an http:\/\/ or https:\/\/ address/],
  ['{ url: "https://a.example", format: text, types: [wallet.opened] }', /types\.0: /],
  ['{ url: "https://a.example", format: text, types: [] }', /types: must name at least one type/],
  [
    '{ url: "https://a.example/1", format: text }, { url: "https://a.example/2", format: text }',
    /receivers: two .* same name/,
  ],
] as const)
  test(`a receiver of events is refused: ${receiver}`, (t) => {
    assert.throws(
      () => write(t, withReceivers(receiver)).read(),
      (error: Error) => {
        assert.match(error.message, fault);
        assert.doesNotMatch(error.message, /user:pw|a\*b/);
        return true;
      },
    );
  });

test('the headers for the collector of spans are secrets, and never printed', (t) => {
  const { read, faults } = write(
    t,
    "opentelemetry: { endpoint: 'http://127.0.0.1:4318/', headers: { authorization: 'Bearer ${KEY}' } }\n",
  );
  const config = read({ KEY: 'collector-canary' });
  const { headers, ...rest } = config.opentelemetry ?? assert.fail();
  assert.deepEqual(rest, { endpoint: 'http://127.0.0.1:4318', service_name: 'purser', timeout_seconds: 10 });
  assert.equal(headers.authorization?.reveal(), 'Bearer collector-canary');
  const printed = JSON.stringify(printable(config));
  assert(printed.includes('"headers":{"authorization":"[set]"}') && !printed.includes('canary'), printed);
  assert.deepEqual(faults({ KEY: '\n' }), [
    'yaml:1: opentelemetry.headers.authorization: must be 1 to 4096 printable ASCII characters',
  ]);
  assert.deepEqual(write(t, 'opentelemetry: { endpoint: "http://host/?key=x", header: 1 }').faults(), [
    'yaml:1: opentelemetry.endpoint: holds a query or a fragment: give a key in headers',
    'yaml:1: opentelemetry.header: unknown setting. Did you mean headers?',
  ]);
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
