import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import test from 'node:test';
import { parse } from 'yaml';
import { CLIENT_NAMES, clientEnvironment, clientSettings } from '../../src/wire/client-settings.ts';

// The block of each client is text of another language: what it names comes out of that language as it went in.

const BASE_URL = 'https://purser.example.org:8443/v1/router';
const KEY = 'svc_router_abcDEF123';
const modelOf = (id: string) => ({ id, contextLength: 32_768, maxOutputTokens: 32_768 });
const gatewayOf = (id: string, apiKey: string | undefined = KEY) => ({ baseUrl: BASE_URL, apiKey, model: modelOf(id) });

const DOLLAR = '$';

/** Ids that mean something else where they are not quoted. */
const IDS = [
  'qwen3-8b',
  'org/model:free@1',
  "it's",
  '"quoted"',
  '$(touch pwned) `touch pwned` $HOME ${HOME',
  'a\\b\\"c\\',
  '; touch pwned #',
  '!event !!',
  '-rf',
  '~/x',
  '*',
  ' spaces  inside ',
  'yes',
  'null',
  '- a: b # c',
  '{a: [b]} &c *d %e',
  '\u{1f600} é 模型',
  "'''",
  '"""\\',
  'a=b\u00a0c',
];
const IN_FILES = IDS.filter((id) => !id.includes('${'));

/** Runs shell commands that print variables, each ended by NUL. */
function printed(script: string, names: readonly string[]): string[] {
  const all = `${script}\nprintf '%s\\0' ${names.map((it) => `"\${${it}-unset}"`).join(' ')}`;
  const env = { PATH: process.env.PATH ?? '', ANTHROPIC_API_KEY: 'of-another' };
  return execFileSync('sh', ['-c', all], { encoding: 'utf8', env }).split('\0').slice(0, -1);
}

test('a shell gets every variable of a block as it is, whatever the model is called', () => {
  const blocks = IDS.map((id) => [
    clientSettings('claude', gatewayOf(id)).block,
    clientSettings('langchain', gatewayOf(id)).block,
    clientSettings('copilot', gatewayOf(id)).block,
  ]);
  const names = ['ANTHROPIC_MODEL', 'OPENAI_MODEL', 'COPILOT_MODEL', 'ANTHROPIC_AUTH_TOKEN', 'OPENAI_API_BASE'];
  const seen = printed(
    blocks
      .map((it) => `${it.join('\n')}\n${`printf '%s\\0' ${names.map((name) => `"$${name}"`).join(' ')}`}`)
      .join('\n'),
    ['ANTHROPIC_API_KEY', 'CLAUDE_CODE_MAX_CONTEXT_TOKENS', 'COPILOT_PROVIDER_API_KEY'],
  );
  assert.deepEqual(seen, [...IDS.flatMap((id) => [id, id, id, KEY, BASE_URL]), 'unset', '32768', KEY]);
});

test('the command that starts pi, and the one that stores the settings of Cline, pass the model as one word', () => {
  for (const id of IN_FILES) {
    const start = clientSettings('pi', gatewayOf(id)).start as string;
    const { block } = clientSettings('cline', gatewayOf(id));
    const shown = `pi() { printf '%s\\0' "$@"; }; cline() { printf '%s\\0' "$@"; }\n${start}\n${block}`;
    assert.deepEqual(printed(shown, ['HOME']), [
      ...['--provider', 'purser', '--model', id],
      ...['auth', '--provider', 'openai-native', '--apikey', KEY, '--baseurl', BASE_URL, '--modelid', id],
      'unset',
    ]);
  }
});

test('JSON and YAML read the id, the address and the key that went in', () => {
  for (const id of IN_FILES) {
    const json = (client: 'opencode' | 'kilo' | 'pi' | 'openclaw') =>
      JSON.parse(clientSettings(client, gatewayOf(id)).block);
    for (const client of ['opencode', 'kilo'] as const) {
      const { model, provider } = json(client);
      assert.equal(model, `purser/${id}`);
      assert.deepEqual(provider.purser.options, { baseURL: BASE_URL, apiKey: KEY });
      assert.deepEqual(provider.purser.models, { [id]: { limit: { context: 32_768, output: 8192 } } });
    }
    assert.deepEqual(json('pi').providers.purser, {
      baseUrl: BASE_URL,
      apiKey: KEY,
      api: 'openai-completions',
      models: [{ id, contextWindow: 32_768, maxTokens: 8192 }],
    });
    assert.equal(json('openclaw').models.providers.purser.models[0].id, id);
    const [model] = parse(clientSettings('continue', gatewayOf(id)).block).models;
    assert.deepEqual(
      [model.name, model.model, model.apiBase, model.apiKey, model.defaultCompletionOptions],
      [id, id, BASE_URL, KEY, { contextLength: 32_768 }],
    );
  }
});

test('each string of the TOML block is a basic string of TOML', () => {
  for (const id of IN_FILES) {
    const values = new Map(
      clientSettings('codex', gatewayOf(id))
        .block.split('\n')
        .flatMap((line) => {
          const [, name, value] = /^(\w+) = (.*)$/.exec(line) ?? [];
          return name === undefined ? [] : [[name, value as string] as const];
        }),
    );
    const text = values.get('model') as string;
    assert.match(text, /^"(?:[^"\\\p{Cc}]|\\["\\])*"$/u); // A subset of TOML's and JSON's, in which both read the same.
    assert.equal(JSON.parse(text), id);
    assert.deepEqual([values.get('model_context_window'), values.get('base_url')], ['32768', `"${BASE_URL}"`]);
  }
});

test('a name that a client would not read as it is gets no block', () => {
  for (const client of CLIENT_NAMES) {
    for (const id of ['a\nb', 'a\tb', 'a\u0000b', 'a\u001b[31mb', 'a\u202eb', 'a\u2028b', 'a\ud800b'])
      assert.throws(() => clientSettings(client, gatewayOf(id)), { code: 'invalid_request' }, `${client} ${id}`);
    const { file } = clientSettings(client, gatewayOf('qwen3-8b'));
    for (const id of [`${DOLLAR}{{ secrets.X }}`, '{env:HOME}', '{file:/etc/passwd}', `${DOLLAR}{HOME}`])
      if (file === null) assert.doesNotThrow(() => clientSettings(client, gatewayOf(id)));
      else assert.throws(() => clientSettings(client, gatewayOf(id)), { code: 'invalid_request' }, `${client} ${id}`);
  }
  assert.throws(() => clientEnvironment({}, { baseUrl: BASE_URL, apiKey: KEY }, modelOf('a\u0000b')), {
    code: 'invalid_request',
  });
});

test('an address is quoted like a name', () => {
  const baseUrl = "https://purser.example.org/it's/$(touch%20pwned)/`id`";
  const gateway = { ...gatewayOf('qwen3-8b'), baseUrl };
  assert.deepEqual(printed(clientSettings('openai', gateway).block, ['OPENAI_BASE_URL']), [baseUrl]);
  assert.equal(JSON.parse(clientSettings('pi', gateway).block).providers.purser.baseUrl, baseUrl);
  assert.equal(parse(clientSettings('continue', gateway).block).models[0].apiBase, baseUrl);
});

test('without a key each block leaves it to OPENAI_API_KEY', () => {
  for (const client of CLIENT_NAMES) {
    const { block } = clientSettings(client, { ...gatewayOf('qwen3-8b'), apiKey: undefined });
    assert(!block.includes('undefined') && !/export OPENAI_API_KEY/.test(block), block);
    if (!['openai', 'langchain', 'ai-sdk', 'qwen'].includes(client)) assert.match(block, /OPENAI_API_KEY/);
  }
});

test('an environment has the variables of every shell block, and nothing that would win over them', () => {
  const env = clientEnvironment(
    { ANTHROPIC_API_KEY: 'x', OPENAI_MODEL: 'y', HOME: '/home/a' },
    { baseUrl: BASE_URL, apiKey: KEY },
    modelOf('qwen3-8b'),
  );
  assert.deepEqual([env.ANTHROPIC_API_KEY, env.OPENAI_MODEL, env.HOME], [undefined, 'qwen3-8b', '/home/a']);
  for (const client of CLIENT_NAMES) {
    const { file, block } = clientSettings(client, gatewayOf('qwen3-8b'));
    if (file !== null) continue;
    for (const [, name, value] of block.matchAll(/^export (\w+)=(.*)$/gm)) assert.equal(env[name as string], value);
  }
  const without = clientEnvironment({}, { baseUrl: BASE_URL, apiKey: KEY }, undefined);
  assert.deepEqual(
    Object.keys(without).filter((it) => /MODEL|CONTEXT/.test(it)),
    [],
  );
});
