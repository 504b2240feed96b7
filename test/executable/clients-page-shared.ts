import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { fileURLToPath } from 'node:url';
import { installation } from '../helper/executable.ts';
import { costOf, nanosOf, openModelServer, type Prices } from '../helper/model-server.ts';
import type { Answer } from '../helper/server.ts';
import { openUpstream } from '../helper/upstream.ts';
import { openWire } from '../helper/wire.ts';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));

/** Several clients at once on a busy machine, each with its repetitions. */
export const PATIENCE_MILLISECONDS = 180_000;

export const PERSON = "{ name: 'Ada', born: 1815 }\n";

/** Every block of the page in its order: under which heading, in which language, and what it prints when it is answered. */
type Language = 'sh' | 'js' | 'python';

export const BLOCKS: [heading: string, language: Language, prints: string | RegExp][] = [
  ['A key', 'sh', /^\{"api_key":"svc_router_\w+","base_url":"http:.*\/v1\/router","expires_at":\d+\}$/],
  ['A key', 'sh', /"content":"You said: Who are you\?"/],
  ['openai', 'js', 'You said: Say hello.\n'],
  ['openai', 'python', 'You said: Say hello.\n'],
  ['openai', 'js', 'You said: Count to three.'],
  ['openai', 'js', 'You said: Sunny in Ada.\n'],
  ['openai', 'js', PERSON],
  ['openai', 'js', '[ 8, 7 ]\n'],
  ['anthropic', 'python', 'You said: Say hello.\n'],
  ['AI SDK', 'js', 'You said: Say good morning.\n'],
  ['AI SDK', 'js', 'You said: Count to four.'],
  ['LangChain', 'js', 'You said: Say good night.\n'],
  ['LangChain', 'python', 'You said: Say good night.\n'],
  ['LangChain', 'js', 'You said: Count to five.'],
  ['Idempotency-Key', 'js', 'You said: Name a colour.\n'],
];

export type Block = { index: number; heading: string; language: Language; code: string; prints: string | RegExp };

/** The blocks of the page for programs; they are the ones above, so none is printed that is not run. */
export function readBlocks(): Block[] {
  let heading = '';
  const blocks: Pick<Block, 'heading' | 'language' | 'code'>[] = [];
  for (const [, title, language, code] of readFileSync(join(ROOT, 'docs/clients.md'), 'utf8').matchAll(
    /^## (.+)$|^```(\w*)\n([\s\S]*?)^```$/gm,
  ))
    if (title) heading = title;
    else blocks.push({ heading, language: language as 'js', code: code as string });
  assert.deepEqual(
    blocks.map((it) => [it.heading, it.language]),
    BLOCKS.map(([it, language]) => [it, language]),
  );
  return blocks.map((it, index) => ({ ...it, index, prints: BLOCKS[index]?.[2] as string }));
}

/** What the page says in a sentence. */
const SAID: [heading: string, prints: string, code: string][] = [
  [
    'LangChain',
    PERSON,
    `import { ChatOpenAI } from '@langchain/openai';
const properties = { name: { type: 'string' }, born: { type: 'integer' } };
const schema = { type: 'object', properties, required: ['name', 'born'], additionalProperties: false };
const model = new ChatOpenAI({ model: 'qwen3-8b', maxRetries: 2 }).withStructuredOutput(schema);
console.log(await model.invoke('Who broke the Enigma?'));`,
  ],
  [
    'Idempotency-Key',
    'You said: Name a river.\n',
    `import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateText } from 'ai';
const { OPENAI_BASE_URL: baseURL, OPENAI_API_KEY: apiKey } = process.env;
const purser = createOpenAICompatible({ name: 'purser', baseURL, apiKey });
const headers = { 'Idempotency-Key': process.env.STEP };
console.log((await generateText({ model: purser('qwen3-8b'), prompt: 'Name a river.', headers })).text);`,
  ],
  [
    'Idempotency-Key',
    'You said: Name a city.\n',
    `import { ChatOpenAI } from '@langchain/openai';
const defaultHeaders = { 'Idempotency-Key': process.env.STEP };
const model = new ChatOpenAI({ model: 'qwen3-8b', configuration: { defaultHeaders } });
console.log((await model.invoke('Name a city.')).content);`,
  ],
];

export const ALL = [
  ...readBlocks(),
  ...SAID.map(([heading, prints, code], i): Block => ({ index: 100 + i, heading, language: 'js', prints, code })),
];

export type Printed = { code: number; stdout: string; stderr: string };

const PROGRAM_OF: Record<Language, [extension: string, program: string]> = {
  sh: ['sh', 'sh'],
  js: ['mjs', process.execPath],
  python: ['py', process.env.PURSER_TEST_PYTHON ?? 'python3'],
};

/** Runs a block as it is printed, where its packages are found. */
export async function run(
  t: TestContext,
  block: Block,
  env: Record<string, string>,
  signal?: AbortSignal,
): Promise<Printed> {
  const directory = mkdtempSync(join(tmpdir(), 'purser-client-'));
  t.after(() => rmSync(directory, { recursive: true, force: true }));
  symlinkSync(join(ROOT, 'node_modules'), join(directory, 'node_modules'));
  const [extension, program] = PROGRAM_OF[block.language];
  const file = join(directory, `client.${extension}`);
  writeFileSync(file, block.code);
  return new Promise((resolve) => {
    const limits = { timeout: PATIENCE_MILLISECONDS, ...(signal ? { signal } : {}) };
    const all = { PATH: process.env.PATH ?? '', STEP: randomUUID(), ...env };
    execFile(program, [file], { env: all, ...limits }, (error, stdout, stderr) =>
      resolve({ code: error ? Number(error.code ?? -1) : 0, stdout, stderr }),
    );
  });
}

export function assertPrints(block: Block, { code, stdout, stderr }: Printed): void {
  const said = `${block.code}\n${stdout}\n${stderr}`;
  assert.equal(code, 0, said);
  if (typeof block.prints === 'string') assert.equal(stdout, block.prints, said);
  else assert.match(stdout, block.prints, said);
}

// The prompt's has a fraction of a nano-dollar, so that what is charged is rounded.
export const PRICES: Record<string, Prices> = {
  'qwen3-8b': { prompt: '0.0000001003', input_cache_read: '0.0000000251', completion: '0.0000004' },
  'bge-m3': { prompt: '0.0005', completion: '0' },
  filler: { prompt: '0', completion: '0.00101' },
  flat: { prompt: '0', completion: '0', request: '0.99995' },
};

export const chatModel = { upstream: 'local', context_length: 65_536 };

export const MODELS = [
  { id: 'qwen3-8b', ...chatModel, max_output_tokens: 32_768, pricing: PRICES['qwen3-8b'] },
  { id: 'bge-m3', kind: 'embeddings', upstream: 'local', context_length: 8192, pricing: PRICES['bge-m3'] },
  // Of a wallet of one dollar each leaves less than any program of the page needs, though its answer had only 256 tokens:
  // one while it runs, the other for good.
  { id: 'filler', ...chatModel, max_output_tokens: 990, pricing: PRICES.filler },
  { id: 'flat', ...chatModel, max_output_tokens: 1, pricing: PRICES.flat },
];

/** The executable, a model server behind it, and the wire before it. */
export async function openGateway(t: TestContext) {
  const upstream = await openUpstream(t);
  const models = openModelServer();
  upstream.handle = models.handle;
  const router = { upstreams: [{ name: 'local', base_url: upstream.url, timeout_seconds: 300 }], models: MODELS };
  const purser = installation(t, { settings: { router } });
  const serving = await purser.serve();
  await purser.operate('account.credit', { id: 'default', cents: 10_000 });
  const { key } = await purser.operate('key.create', { account: 'default', name: 'test' });
  const wire = await openWire(t, `${serving.url}/v1/router`);
  const tokens: string[] = [];

  return {
    upstream,
    models,
    serving,
    wire,
    /** A wallet's token, and what a sandbox gets of it. */
    async openWallet(): Promise<{ token: string; env: Record<string, string> }> {
      const body = { name: 'client', budget_cents: 100, expires_in_seconds: 3600 };
      const opened = await serving.ask('POST', '/v1/wallets', { token: key, key: randomUUID(), body });
      assert.equal(opened.status, 201, opened.text);
      tokens.push(opened.body.agent_token);
      return { token: opened.body.agent_token, env: opened.body.env };
    },
    /** What a block of the page needs to pay from this wallet; by the wire, if it has a name there. */
    async clientEnv(token: string, line?: string, options = {}): Promise<Record<string, string>> {
      const { body } = await serving.ask('POST', '/v1/router/key', { token, body: options });
      const url = line ? wire.line(line) : body.base_url;
      return {
        OPENAI_API_KEY: body.api_key,
        OPENAI_BASE_URL: url,
        ANTHROPIC_AUTH_TOKEN: body.api_key,
        ANTHROPIC_BASE_URL: url,
      };
    },
    /** Asks one of the models that take nearly all there is. */
    drain(token: string, model: 'filler' | 'flat', content = 'hi'): Promise<Answer> {
      const body = { model, messages: [{ role: 'user', content }] };
      return serving.ask('POST', '/v1/chat/completions', { token, key: randomUUID(), body });
    },
    statuses: (line: string) => wire.answers(line).map(({ status }) => status),
    /** Every wallet together has paid what the model server counted, to the nano-dollar, and holds nothing. */
    async assertBooks() {
      const budgets = await Promise.all(tokens.map((token) => serving.ask('GET', '/v1/budget', { token })));
      const used = budgets.reduce((sum, { body }) => sum + nanosOf(body.used_usd), 0n);
      const counted = models.counted.reduce((sum, it) => sum + costOf(it, PRICES[it.model] as Prices), 0n);
      assert(counted > 0n);
      assert.equal(used, counted);
      for (const { body } of budgets) assert.deepEqual([body.held_usd, body.holds], ['0.00', []]);
      assert.deepEqual((await purser.json('ledger', 'verify')).problems, []);
    },
  };
}

export const PROGRAMS_AT_ONCE = 4;

/** Does it for each block, a few at a time; each has a line of its own on the wire. */
export async function together(blocks: Block[], act: (block: Block, line: string) => Promise<void>): Promise<void> {
  const left = blocks.values();
  const work = async () => {
    for (const block of left) await act(block, String(block.index));
  };
  await Promise.all(Array.from({ length: PROGRAMS_AT_ONCE }, work));
}

export const PROGRAMS = ALL.filter(({ language }) => language === 'js');

/** One for each client. */
export const KEYED = PROGRAMS.filter(({ heading }) => heading === 'Idempotency-Key');

/** `streamText` tells of a refusal through its `onError` and goes on. */
export const throwsNothing = ({ code }: Block) => code.includes('streamText');

/** A loop of tools makes two requests. */
export const requestCount = ({ code }: Block) => (code.includes('runTools') ? 2 : 1);
