import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { promisify } from 'node:util';
import { parse } from 'yaml';
import { installation } from '../helper/executable.ts';
import { costOf, nanosOf, openModelServer } from '../helper/model-server.ts';
import { openUpstream } from '../helper/upstream.ts';

// `purser wallet env`: what it prints is all that a stock client is given.

const ROOT = join(import.meta.dirname, '../..');
const PRICES = { prompt: '0.000001', completion: '0.000002' };
const chatModel = { upstream: 'local', context_length: 32_768, max_output_tokens: 4096, pricing: PRICES };
const MODELS = [
  { id: 'bge-m3', kind: 'embeddings', upstream: 'local', context_length: 8192, pricing: { prompt: '0.000001' } },
  { id: 'qwen3-8b', ...chatModel },
  { id: 'it\'s "odd" $(id) `id` \\', ...chatModel },
];
const ODD = MODELS[2]?.id as string;

async function openPurser(t: TestContext, settings: Record<string, unknown> = {}, models: unknown[] = MODELS) {
  const upstream = await openUpstream(t);
  const server = openModelServer();
  upstream.handle = server.handle;
  const router = { upstreams: [{ name: 'local', base_url: upstream.url }], models };
  const purser = installation(t, { settings: { router, ...settings } });
  const serving = await purser.serve();
  await purser.operate('account.credit', { id: 'default', cents: 1000 });
  const open = (name: string) => purser.operate('wallet.create', { account: 'default', name: name, budget_cents: 100 });
  return { purser, serving, upstream, server, open };
}

/** A program of each package that takes base URL, key and model from its environment alone. */
const PROGRAMS = {
  openai: `import OpenAI from 'openai';
    const messages = [{ role: 'user', content: 'hi' }];
    const { choices } = await new OpenAI().chat.completions.create({ model: process.env.OPENAI_MODEL, messages });
    console.log(choices[0].message.content);`,
  anthropic: `import Anthropic from '@anthropic-ai/sdk';
    const messages = [{ role: 'user', content: 'hi' }];
    const order = { model: process.env.ANTHROPIC_MODEL, max_tokens: 100, messages };
    console.log((await new Anthropic().messages.create(order)).content[0].text);`,
  langchain: `import { ChatOpenAI } from '@langchain/openai';
    console.log((await new ChatOpenAI({ model: process.env.OPENAI_MODEL }).invoke('hi')).content);`,
  'ai-sdk': `import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
    import { generateText } from 'ai';
    const { OPENAI_BASE_URL: baseURL, OPENAI_API_KEY: apiKey, OPENAI_MODEL: model } = process.env;
    const purser = createOpenAICompatible({ name: 'purser', baseURL, apiKey });
    console.log((await generateText({ model: purser(model), prompt: 'hi' })).text);`,
};

for (const [modelId, programs] of [
  ['qwen3-8b', { openai: PROGRAMS.openai }], // What a model's name does to a block, the odd one shows.
  [ODD, PROGRAMS],
] as const)
  test(`the stock clients spend with what is printed and nothing else, by the model ${JSON.stringify(modelId)}`, async (t) => {
    const { purser, serving, upstream, server, open } = await openPurser(t);
    const { agent_token: token } = await open('agent');
    for (const [client, program] of Object.entries(programs)) {
      const model = modelId === 'qwen3-8b' ? [] : ['--model', modelId]; // Without it, the first one for chats.
      const { stdout: block } = await purser.cli('wallet', 'env', 'agent', '--for', client, ...model);
      const script = 'eval "$1"; exec "$2" --input-type=module --eval "$3"';
      // A key of Anthropic's, which its client would send as well.
      const env = { PATH: process.env.PATH ?? '', ANTHROPIC_API_KEY: 'sk-of-another' };
      const args = ['-c', script, 'sh', block, process.execPath, program];
      const { stdout } = await promisify(execFile)('sh', args, { env, cwd: ROOT });
      assert.equal(stdout, 'You said: hi\n', client);
    }
    assert.deepEqual(
      upstream.calls.map(({ body }) => body.model),
      Object.keys(programs).map(() => modelId),
    );
    const cost = server.counted.reduce((sum, it) => sum + costOf(it, PRICES), 0n);
    assert(cost > 0n);
    assert.equal(nanosOf((await serving.ask('GET', '/v1/budget', { token })).body.used_usd), cost);
  });

test('a block names the public address, the model and its context; --json has it with its file and its start', async (t) => {
  const { purser, open } = await openPurser(t, { public_url: 'https://purser.example.org/base/' });
  const { id } = await open('agent');
  const said = await purser.cli('wallet', 'env', 'agent', '--for', 'continue', '--model', ODD);
  assert.deepEqual([said.code, said.stderr], [0, 'This is ~/.continue/config.yaml. Then run: cn\n']);
  const [model] = parse(said.stdout).models;
  assert.deepEqual(
    [model.model, model.apiBase, model.defaultCompletionOptions.contextLength],
    [ODD, 'https://purser.example.org/base/v1/router', 32_768],
  );
  assert.match(model.apiKey, /^svc_router_\w+$/);
  const { block, ...settings } = await purser.json('wallet', 'env', id, '--for', 'pi', '--model', ODD);
  assert.deepEqual(settings, {
    client: 'pi',
    file: '~/.pi/agent/models.json',
    start: `pi --provider purser --model 'it'\\''s "odd" $(id) \`id\` \\'`,
  });
  // The same key each time.
  assert.equal(JSON.parse(block).providers.purser.apiKey, model.apiKey);
});

test('what cannot be printed is refused, and opens no key', async (t) => {
  const { purser, open } = await openPurser(t);
  const { id } = await open("it's $(id); --for");
  const refused = async (code: number, text: RegExp, ...args: string[]) => {
    const said = await purser.cli('wallet', 'env', ...args);
    assert.deepEqual([said.code, said.stdout], [code, ''], said.stderr);
    assert.match(said.stderr, text);
  };
  await refused(2, /Allowed choices are openai, anthropic/, id, '--for', 'netscape');
  await refused(2, /required option '--for <client>'/, id);
  await refused(3, /not on offer/, id, '--for', 'openai', '--model', 'nope');
  await refused(3, /offered for embeddings only/, id, '--for', 'openai', '--model', 'bge-m3');
  await refused(3, /There is no wallet nobody\./, 'nobody', '--for', 'openai');
  const keys = () => purser.json('key', 'list', '--wallet', id);
  assert.deepEqual((await keys()).keys, []);
  // A name that a shell would read is a name.
  assert.equal((await purser.cli('wallet', 'env', "it's $(id); --for", '--for', 'openai')).code, 0);
  assert.equal((await keys()).keys.length, 1);
  await purser.json('wallet', 'close', id, '--yes');
  await refused(4, /closed/, id, '--for', 'openai');
});

test('without a model for chats there is no block, and a program runs all the same', async (t) => {
  const { purser, open } = await openPurser(t, {}, MODELS.slice(0, 1));
  await open('agent');
  const said = await purser.cli('wallet', 'env', 'agent', '--for', 'openai');
  assert.deepEqual([said.code, said.stdout], [3, '']);
  assert.match(said.stderr, /No model for chats is configured/);
  const ran = await purser.cli('run', '--budget', '1.00', '--', 'env');
  assert.match(ran.stdout, /^OPENAI_BASE_URL=http:\S+\/v1\/router$/m);
  assert.doesNotMatch(ran.stdout, /^(OPENAI|ANTHROPIC|COPILOT)_MODEL=/m);
});

test('a program that `purser run` starts is given the variables of every block, by the first model or the named one', async (t) => {
  const { purser } = await openPurser(t);
  for (const [model, args] of [
    ['qwen3-8b', []],
    [ODD, ['--model', ODD]],
  ] as const) {
    const { code, stdout, stderr } = await purser.cli('run', '--budget', '1.00', ...args, '--', 'env');
    assert.equal(code, 0, stderr);
    const lines = stdout.split('\n');
    for (const name of ['OPENAI_MODEL', 'ANTHROPIC_MODEL', 'COPILOT_MODEL'])
      assert(lines.includes(`${name}=${model}`), stdout);
    assert(lines.includes('CLAUDE_CODE_MAX_CONTEXT_TOKENS=32768'));
  }
  const refused = await purser.cli('run', '--budget', '1.00', '--model', 'nope', '--', 'env');
  assert.deepEqual([refused.code, refused.stdout], [3, '']);
  const { wallets } = await purser.json('wallet', 'list');
  assert.deepEqual(new Set(wallets.map(({ status }: { status: string }) => status)), new Set(['closed']));
});
