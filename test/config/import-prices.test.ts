import assert from 'node:assert/strict';
import test from 'node:test';
import { checkSettings } from '../../src/config/config.ts';
import { importPrices } from '../../src/config/import-prices.ts';
import { exactDecimal, readPriceList } from '../../src/config/price-list.ts';

const LITELLM = JSON.stringify({
  sample_spec: { mode: 'one of: chat, embedding', input_cost_per_token: 0, output_cost_per_token: 0 },
  'openai/gpt-small': {
    litellm_provider: 'openai',
    mode: 'chat',
    input_cost_per_token: 1.5e-7,
    output_cost_per_token: 6e-7,
    cache_read_input_token_cost: 7.5e-8,
    output_cost_per_reasoning_token: 0,
    max_input_tokens: 128_000,
    max_output_tokens: 16_384,
  },
  'azure/gpt-small': {
    litellm_provider: 'azure',
    mode: 'chat',
    input_cost_per_token: 2e-7,
    output_cost_per_token: 8e-7,
  },
  long: {
    mode: 'chat',
    input_cost_per_token: 1.25e-6,
    output_cost_per_token: 1e-5,
    input_cost_per_token_above_200k_tokens: 2.5e-6,
  },
  picture: { mode: 'image_generation', input_cost_per_token: 1e-6 },
  vectors: { mode: 'embedding', input_cost_per_token: 2e-8, output_cost_per_token: 0, max_input_tokens: 8191 },
});
const OPENROUTER = JSON.stringify({
  data: [
    {
      id: 'qwen/qwen3-8b',
      context_length: 40_960,
      top_provider: { context_length: 32_768, max_completion_tokens: 8192 },
      pricing: { prompt: '0.000000035', completion: '0.000000138', request: '0', image: '0', internal_reasoning: '0' },
    },
    { id: 'openrouter/auto', context_length: 2_000_000, pricing: { prompt: '-1', completion: '-1' } },
  ],
});

const SETTINGS = `# Mine.
listen: 127.0.0.1:7420   # not the default
router:
  upstreams:
    - { name: hosted, base_url: https://api.example.com/v1, api_key: \${HOSTED_KEY} } # the key is in the environment
  models:
    # Cheap and good.
    - id: small
      upstream: hosted
      upstream_model: gpt-small
      context_length: 128000
      max_output_tokens: 16384
      pricing: { prompt: "0.0000002", completion: 0.0000006 } # since June
    - id: qwen/qwen3-8b
      upstream: hosted
      context_length: 32768
      max_output_tokens: 8192
      pricing_per_million:
        prompt: 0.05 # dear
        completion: 0.138
`;
const order = (text: string, more: { names?: [string, string][]; add?: string[]; upstream?: string } = {}) => ({
  list: readPriceList(text),
  names: new Map(more.names ?? []),
  add: { names: more.add ?? [], upstream: more.upstream },
});

test('a number of JSON is written as the exact decimal that it is, rounded up beyond fifteen decimals', () => {
  for (const [value, text] of [
    [1.5e-7, '0.00000015'],
    ['0.000000035', '0.000000035'],
    [3e-6, '0.000003'],
    [1e-15, '0.000000000000001'],
    ['1.9999999999999998e-07', '0.0000002'],
    ['1e-16', '0.000000000000001'],
    [2, '2'],
    [0, '0'],
    ['-1', undefined],
    ['7'.repeat(41), undefined],
    [`0.${'7'.repeat(1_000_000)}`, undefined],
    ['dear', undefined],
    [null, undefined],
    [{}, undefined],
  ] as const)
    assert.equal(exactDecimal(value), text, String(value));
});

test('only models that are sold by the token come out of a list; a special rate of 0 is none', () => {
  const litellm = readPriceList(LITELLM);
  assert.deepEqual([...litellm.keys()], ['openai/gpt-small', 'azure/gpt-small', 'long', 'vectors']);
  assert.deepEqual(litellm.get('openai/gpt-small'), {
    upstreamModel: 'gpt-small',
    kind: 'chat',
    prices: { prompt: '0.00000015', completion: '0.0000006', input_cache_read: '0.000000075' },
    hasTiers: false,
    contextLength: 128_000,
    maxOutputTokens: 16_384,
  });
  assert.deepEqual(litellm.get('vectors')?.prices, { prompt: '0.00000002' });
  const openrouter = readPriceList(OPENROUTER);
  assert.deepEqual([...openrouter.keys()], ['qwen/qwen3-8b']);
  assert.deepEqual(openrouter.get('qwen/qwen3-8b')?.prices, { prompt: '0.000000035', completion: '0.000000138' });
  for (const other of ['[]', '{}', '{"a":{"price":1}}', 'prices'])
    assert.throws(() => readPriceList(other), /JSON|no prices in the shape/);
});

test('prices that differ are told in USD per million tokens and written; every comment and variable stays', () => {
  const { text, changes, unmatched } = importPrices('f.yaml', SETTINGS, order(OPENROUTER));
  assert.deepEqual(changes, [
    { model: 'qwen/qwen3-8b', upstream: 'hosted', price: 'prompt', before_usd: '0.05', after_usd: '0.035' },
  ]);
  assert.deepEqual(unmatched, [{ model: 'small', upstream: 'hosted', candidates: [] }]);
  assert.equal(text, SETTINGS.replace('prompt: 0.05', 'prompt: "0.035"'));
  checkSettings('f.yaml', text, { HOSTED_KEY: 'k' });
});

test('in a pool that is priced by server each server gets its price, and the model none', () => {
  const pricing = '{ prompt: 0.05, completion: 0.1 }';
  const settings = (servers: string, model = '') =>
    SETTINGS.slice(0, SETTINGS.indexOf('    # Cheap')).concat(`    - id: qwen/qwen3-8b
      upstreams: [${servers}]
      context_length: 32768
      max_output_tokens: 8192${model}
`);
  const priced = `{ upstream: hosted, pricing_per_million: ${pricing} }, { upstream: hosted, upstream_model: b, pricing_per_million: ${pricing} }`;
  const own = importPrices('f.yaml', settings(priced), order(OPENROUTER));
  assert.deepEqual(
    own.changes.map(({ upstream, price, after_usd }) => [upstream, price, after_usd]),
    [
      ['hosted', 'prompt', '0.035'],
      ['hosted', 'completion', '0.138'],
    ],
  );
  assert.deepEqual(
    own.unmatched,
    [{ model: 'qwen/qwen3-8b', upstream: 'hosted', candidates: [] }],
    'the list has no b',
  );
  checkSettings('f.yaml', own.text, { HOSTED_KEY: 'k' });
  assert.doesNotMatch(own.text, /^ {6}pricing/m);

  const shared = importPrices(
    'f.yaml',
    settings('hosted, { upstream: hosted, upstream_model: b }', `\n      pricing_per_million: ${pricing}`),
    order(OPENROUTER),
  );
  assert.deepEqual(
    shared.changes.map(({ upstream, price }) => [upstream, price]),
    [
      ['hosted, hosted', 'prompt'],
      ['hosted, hosted', 'completion'],
    ],
  );
});

test('a name with several prices is asked for, and --name chooses', () => {
  const asked = importPrices('f.yaml', SETTINGS, order(LITELLM));
  assert.deepEqual(asked.unmatched[0], {
    model: 'small',
    upstream: 'hosted',
    candidates: ['openai/gpt-small', 'azure/gpt-small'],
  });
  assert.deepEqual([asked.changes, asked.text], [[], SETTINGS]);
  const chosen = importPrices('f.yaml', SETTINGS, order(LITELLM, { names: [['small', 'openai/gpt-small']] }));
  assert.deepEqual(chosen.changes, [
    { model: 'small', upstream: 'hosted', price: 'prompt', before_usd: '0.20', after_usd: '0.15' },
    { model: 'small', upstream: 'hosted', price: 'input_cache_read', before_usd: null, after_usd: '0.075' },
  ]);
  assert.equal(
    chosen.text,
    SETTINGS.replace(
      '{ prompt: "0.0000002", completion: 0.0000006 }',
      '{ prompt: "0.00000015", completion: 0.0000006, input_cache_read: "0.000000075" }',
    ),
  );
});

test('a model of the list is added at an upstream, with its limits; what is missing is said', () => {
  const both = { add: ['vectors', 'openai/gpt-small'], upstream: 'hosted' };
  const added = importPrices('f.yaml', SETTINGS, order(LITELLM, both));
  checkSettings('f.yaml', added.text, { HOSTED_KEY: 'k' });
  const items = `    - { id: vectors, kind: embeddings, upstream: hosted, context_length: 8191, pricing_per_million: { prompt: "0.02" } }
    - { id: gpt-small, upstream: hosted, context_length: 128000, max_output_tokens: 16384, pricing_per_million: { prompt: "0.15", completion: "0.60", input_cache_read: "0.075" } }
`;
  assert.equal(added.text, SETTINGS + items);
  const head = SETTINGS.slice(0, SETTINGS.indexOf('  models:'));
  for (const [before, after] of [
    ['', `  models:\n${items}`],
    ['  models: [] # none\n', `  models:\n${items.trimEnd()} # none\n`],
    ['  models:\n# none\n', undefined],
  ] as const) {
    const { text } = importPrices('f.yaml', head + before, order(LITELLM, both));
    checkSettings('f.yaml', text, { HOSTED_KEY: 'k' });
    if (after) assert.equal(text, head + after);
  }
  for (const [more, what] of [
    [{ add: ['nothing'], upstream: 'hosted' }, /the list has no "nothing"/],
    [{ add: ['vectors'] }, /name the upstream to add vectors at with --upstream/],
    [{ add: ['vectors'], upstream: 'other' }, /no upstream "other"/],
    [{ add: ['long'], upstream: 'hosted' }, /does not say the context length/],
  ] as const)
    assert.throws(() => importPrices('f.yaml', SETTINGS, order(LITELLM, { ...more, add: [...more.add] })), what);
  const { tiered } = importPrices('f.yaml', SETTINGS.replace('gpt-small', 'long'), order(LITELLM));
  assert.deepEqual(tiered, ['small']);
});

test('a price that stands in a variable is told by its name', () => {
  const source = SETTINGS.replace('"0.0000002"', `"\${PROMPT_PRICE}"`).replace('0.0000006', `\${COMPLETION_PRICE}`);
  const { changes, text } = importPrices(
    'purser.yaml',
    source,
    order(LITELLM, { names: [['small', 'openai/gpt-small']] }),
  );
  assert.deepEqual(
    changes.filter(({ model, before_usd }) => model === 'small' && before_usd !== null).map((it) => it.before_usd),
    [`\${PROMPT_PRICE}`, `\${COMPLETION_PRICE}`],
  );
  assert.match(text, /api_key: \$\{HOSTED_KEY\} \} # the key is in the environment/);
});

test('a model whose name would be read as a variable is not added: its value would be shown to every client', () => {
  for (const name of [`\${HOSTED_KEY}`, '\ue000HOSTED_KEY\ue001']) {
    const list = JSON.stringify({ [name]: { input_cost_per_token: 1e-6, max_input_tokens: 100 } });
    assert.throws(
      () => importPrices('purser.yaml', SETTINGS, order(list, { add: [name], upstream: 'hosted' })),
      /would be read as a variable/,
    );
  }
});
