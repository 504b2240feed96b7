import assert from 'node:assert/strict';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { plainLine } from '../../cli/findings.ts';
import { type Config, readConfig } from '../../src/config/config.ts';
import type { ConfigurationFault } from '../../src/config/fault.ts';
import { examineStart } from '../../src/doctor/settings.ts';
import { reachableUrl } from '../../src/net/listen.ts';
import { temporaryDirectory } from '../ledger/books.ts';

function settings(t: TestContext, text: string, others: Record<string, string> = {}) {
  const parent = temporaryDirectory(t);
  const data = join(parent, 'data');
  mkdirSync(data);
  if (text) writeFileSync(join(data, 'purser.yaml'), text);
  for (const [name, content] of Object.entries(others)) writeFileSync(join(parent, name), content);
  return { parent, data, advice: () => linesOf(readConfig({ data }, {})) };
}
const linesOf = (config: Config) => examineStart(config).map(plainLine);
const priced = (price: string) => `router:
  upstreams: [{ name: u, base_url: http://127.0.0.1:1/v1 }]
  models: [{ id: m, upstream: u, context_length: 1000, max_output_tokens: 100, ${price} }]
`;

test('settings under a wrong name or in a wrong place are noticed; files of other programs are not', (t) => {
  const { parent, data, advice } = settings(t, '', {
    'data/purser.yml': 'listen: 127.0.0.1:1',
    'purser.yaml': '',
    'config.yaml': 'router: {}',
    'settings.yml': 'colour: blue',
    'compose.yaml': 'services: {}',
  });
  const move = `Settings are read from ${data}/purser.yaml: move it there, or name it with --config.`;
  assert.deepEqual(advice(), [
    `configuration: ${data}/purser.yml is not read. ${move}`,
    `configuration: ${parent}/config.yaml is not read. ${move}`,
    `configuration: ${parent}/purser.yaml is not read. ${move}`,
  ]);
  writeFileSync(join(data, 'purser.yaml'), '');
  assert.deepEqual(
    advice()[0],
    `configuration: ${data}/purser.yml is not read: the settings are those of ${data}/purser.yaml.`,
  );
  const named = readConfig({ data, config: join(parent, 'purser.yaml') }, {});
  assert.ok(!linesOf(named).some((it) => it.startsWith(`configuration: ${parent}/purser.yaml`)), 'this one is read');
});

test('an address that stands for all is no address for agents', (t) => {
  const open = settings(t, 'listen: 0.0.0.0:7420').advice();
  const given = reachableUrl({ host: '0.0.0.0', port: 7420 });
  assert.match(given, /^http:\/\/(?!0\.)\d+\.\d+\.\d+\.\d+:7420$/);
  assert.equal(reachableUrl({ host: '::', port: 7420 }), given);
  assert.equal(reachableUrl({ host: '127.0.0.2', port: 1 }), 'http://127.0.0.2:1');
  assert.equal(reachableUrl({ host: '::1', port: 1 }), 'http://[::1]:1');
  assert.equal(open.length, 2);
  assert.ok(open[0]?.includes(`agents are given ${given}. Set public_url`), open[0]);
  assert.match(open[1] ?? '', /over http:\/\/ tokens can be read/);
  assert.equal(settings(t, 'listen: 10.0.0.1:7420').advice().length, 1);
  assert.deepEqual(settings(t, 'listen: "[::1]:7420"').advice(), []);
  assert.deepEqual(settings(t, 'listen: 0.0.0.0:7420\npublic_url: https://purser.example').advice(), []);
  const tls = 'tls: { cert: /a, key: /b }';
  assert.deepEqual(settings(t, `listen: 10.0.0.1:7420\n${tls}`).advice(), []);
  assert.match(
    settings(t, `listen: 0.0.0.0:7420\n${tls}`).advice().join(),
    /agents are given https:\/\/[\d.]+:7420\. Set public_url/,
  );
  assert.match(
    settings(t, `public_url: http://purser.example\n${tls}`).advice().join(),
    /^public_url: begins with http:\/\/, but/,
  );
});

test('a price that looks like that of another unit is explained', (t) => {
  const faults = (price: string) => {
    try {
      settings(t, priced(price)).advice();
    } catch (error) {
      return (error as ConfigurationFault).faults.join('\n');
    }
    return '';
  };
  assert.match(
    faults('pricing: { prompt: "0.10", completion: "0.40" }'),
    /prompt: not a believable price: more than USD 10,000: 0\.10 USD per token are 100000\.00 USD per million tokens\. Did you mean pricing_per_million\?/,
  );
  assert.match(
    faults('pricing_per_million: { prompt: "0.0000000035", completion: "1" }'),
    /at most 9 decimals\. A price of one token belongs under pricing$/,
  );
  assert.deepEqual(settings(t, priced('pricing: { prompt: "0.005", completion: "0.0001" }')).advice(), [
    'router.models m: prompt costs 5000.00 USD per million tokens. If the price is meant for a million tokens, it belongs under pricing_per_million.',
  ]);
  assert.deepEqual(settings(t, priced('pricing_per_million: { prompt: "0.0000001", completion: "1" }')).advice(), [
    'router.models m: prompt costs 0.0000001 USD per million tokens. If the price is meant for one token, it belongs under pricing.',
  ]);
  assert.deepEqual(settings(t, priced('pricing: { prompt: "0.0000001", completion: "0.0006" }')).advice(), []);
  assert.deepEqual(settings(t, priced('pricing_per_million: { prompt: "0", completion: "600" }')).advice(), []);
});

test('a fault says what is meant: the name that is near, the kind of value, the form', (t) => {
  const faults = (text: string) => {
    try {
      settings(t, text).advice();
    } catch (error) {
      return (error as ConfigurationFault).faults.map((it) => it.replace(/^\S+purser\.yaml:/, ''));
    }
    return [];
  };
  for (const [text, said] of [
    ['lisen: 127.0.0.1:1', ['1: lisen: unknown setting. Did you mean listen?']],
    ['colour: blue', ['1: colour: unknown setting']],
    ['router: { modells: [] }', ['1: router.modells: unknown setting. Did you mean models?']],
    ['listen: 127.0.0.1', ['1: listen: not an address of the form host:port, as 127.0.0.1:7420']],
    ['close_wait_seconds: soon', ['1: close_wait_seconds: must be a number']],
    ['trusted_proxies: 10.0.0.1', ['1: trusted_proxies: must be a list']],
    ['- listen: 127.0.0.1:1', ['1: not a map of settings, as `listen: 127.0.0.1:7420`']],
    ['listen', ['1: not a map of settings, as `listen: 127.0.0.1:7420`']],
    [`identity: { issuer: "https://id/\${REALM:-a}", audience: a }`, [`1: only \${NAME} is known, without a default`]],
    [
      `router:\n  upstreams:\n    - { name: a, api_key: \${KEY:-x, y}, base_url: "http://a/v1" }\n  models: []`,
      [`3: only \${NAME} is known, without a default`],
    ],
    [
      'router:\n\tupstreams: []\n\tmodels: []',
      ['2: Tabs are not allowed as indentation', '3: Tabs are not allowed as indentation'],
    ],
  ] as const)
    assert.deepEqual(faults(text), said, text);
});

test('what a command of a trial printed looks like no finding of its own', () => {
  const finding = { name: 'provider_one', ok: false, detail: 'it runs, but it said a\n\n ok   provider_one: fine\r\n' };
  assert.equal(plainLine(finding), 'provider_one: it runs, but it said a; ok   provider_one: fine');
});
