// biome-ignore-all lint/suspicious/noTemplateCurlyInString: a variable of the configuration is written like this
import assert from 'node:assert/strict';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import test from 'node:test';
import { dataDirectoryOf } from '../../src/config/config.ts';
import { parseAddress, urlOf } from '../../src/net/listen.ts';
import { write } from './written.ts';

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
    accounts: {},
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
