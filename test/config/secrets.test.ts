// biome-ignore-all lint/suspicious/noTemplateCurlyInString: a variable of the configuration is written like this
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { join, relative } from 'node:path';
import test from 'node:test';
import { secretsIn } from '../../src/base/secret.ts';
import { printable } from '../../src/config/config.ts';
import { isLive } from '../../src/config/services.ts';
import { examineSettings } from '../../src/doctor/settings.ts';
import { type Environment, model, write } from './written.ts';

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

test('a secret of an account names a variable, one host and a header that carries it', (t) => {
  const CANARY = 'canary-0123456789';
  const sound = { name: 'API_TOKEN', host: 'api.example.com', header: 'Authorization', value: CANARY };
  const read = (secrets: object[]) => write(t, JSON.stringify({ accounts: { team: { secrets } } }));
  const [parsed] = read([sound]).read().accounts.team?.secrets ?? [];
  assert.deepEqual([parsed?.header, parsed?.value.reveal(), String(parsed?.value)], ['authorization', CANARY, '[set]']);
  read([{ ...sound, host: 'api.example.com:8443' }]).read();
  const faults: Record<string, unknown[]> = {
    name: [
      'A-B',
      '1A',
      'PATH',
      'LD_PRELOAD',
      'PURSER_X',
      'HTTPS_PROXY',
      'https_proxy',
      'SSL_CERT_FILE',
      'PYTHONPATH',
      'NODE_OPTIONS',
      1,
    ],
    host: ['*.example.com', '1.2.3.4', '[::1]', 'https://a.test', 'a.test/', 'a.test:0', 'a.test:1:2', 'a b', ''],
    header: [
      'host',
      'Content-Length',
      'transfer-encoding',
      'Connection',
      'Proxy-Authorization',
      'upgrade',
      'expect',
      'a b',
      'a:',
      '',
    ],
    value: ['short', `${CANARY}\r\nX: y`, `${CANARY} `, `${CANARY}ü`, 'x'.repeat(4097)],
  };
  for (const [member, values] of Object.entries(faults))
    for (const value of values) {
      const found = read([{ ...sound, [member]: value }]).faults();
      assert(found.length >= 1, `${member}: ${value}`);
      for (const it of found) {
        assert(it.includes(`accounts.team.secrets.0.${member}: `), it);
        assert(!it.includes(CANARY), it);
      }
    }
  assert.match(read([sound, sound]).faults().join(), /accounts\.team\.secrets: has two secrets of one name/);
  const many = Array.from({ length: 33 }, (_, i) => ({ ...sound, name: `T${i}` }));
  assert.match(read(many).faults().join(), /has more than 32 secrets/);
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
