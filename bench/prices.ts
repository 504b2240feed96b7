// `npm run prices`: the bounds of ordinary requests, beside their real cost by a real tokenizer (docs/prices.md has the
// table). It makes no calls, and writes nothing.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { getEncoding } from 'js-tiktoken';
import * as v from 'valibot';
import { formatUsd, Nanos } from '../src/base/money.ts';
import { Router } from '../src/config/router.ts';
import { boundChat, boundEmbeddings } from '../src/router/bound.ts';
import { createCatalogue, type Model } from '../src/router/catalogue.ts';
import { costOf, holdOf } from '../src/router/price.ts';

/** Prices and limits in the class of GPT-4o, and of Sonnet for agents: USD per million tokens. */
const catalogue = createCatalogue({
  router: v.parse(Router, {
    upstreams: [{ name: 'local', base_url: 'http://127.0.0.1:1/v1' }],
    models: [
      {
        id: 'chat',
        upstream: 'local',
        context_length: 128_000,
        max_output_tokens: 16_384,
        image_tokens: 1500,
        pricing_per_million: { prompt: '2.5', completion: '10', image: '0' },
      },
      {
        id: 'agent',
        upstream: 'local',
        context_length: 200_000,
        max_output_tokens: 32_000,
        pricing_per_million: { prompt: '3', completion: '15', input_cache_read: '0.3', input_cache_write: '3.75' },
      },
      {
        id: 'embeddings',
        kind: 'embeddings',
        upstream: 'local',
        context_length: 8192,
        pricing_per_million: { prompt: '0.02' },
      },
    ],
  }),
});
const WALLET = 1_000_000_000n; // one dollar
/** OpenAI's count for an image of 1024 × 1024 in high detail. */
const IMAGE_TOKENS = 765;
/** OpenAI's count for the frame of a message and for the opening of the answer. */
const [MESSAGE_TOKENS, OPENING_TOKENS] = [4, 3];

const encoding = getEncoding('o200k_base');
const count = (text: string) => encoding.encode(text, 'all').length;

const read = (...names: string[]) =>
  names.map((name) => readFileSync(join(import.meta.dirname, '..', name), 'utf8')).join('\n');
/** Returns text of `bytes` bytes. The pages and sources of this project are nearly all ASCII. */
function ofBytes(text: string, bytes: number): string {
  const whole = Buffer.from(text.repeat(Math.ceil(bytes / Buffer.byteLength(text))));
  return whole.subarray(0, bytes).toString('utf8');
}
const pages = read('docs/recovery.md', 'docs/security.md', 'docs/sign-in.md', 'docs/backends.md', 'docs/clients.md');
/** The pages without Markdown marks and tables. */
const prose = pages
  .replace(/```[\s\S]*?```/g, '')
  .replace(/^\|.*$/gm, '')
  .replace(/[`*#|]/g, '')
  .replace(/\n+/g, '\n');
const code = read('src/main/app.ts', 'src/ledger/operation.ts');
const chinese =
  '所有人生而自由，在尊严和权利上一律平等。他们有理性和良心，请以兄弟关系的精神相对待。人人有资格享有这些权利和自由，不分种族、肤色、性别、语言、宗教、政见、国籍或社会出身、财产、出生或其他身份等任何区别。人人有权享有生命、自由和人身安全。';

const user = (content: unknown) => ({ role: 'user', content });
const tools = Array.from({ length: 12 }, (_, i) => ({
  type: 'function',
  function: {
    name: `project_tool_${i}`,
    description: 'Reads a part of a file of the project, and says where it ends. Use it before you change a file.',
    parameters: {
      type: 'object',
      properties: {
        path: { type: 'string', description: 'The file, relative to the root of the project.' },
        first_line: { type: 'integer', minimum: 1, description: 'The line to begin at.' },
        last_line: { type: 'integer', minimum: 1, description: 'The line to end at, itself included.' },
        encoding: { type: 'string', enum: ['utf-8', 'latin-1', 'base64'] },
      },
      required: ['path'],
    },
  },
}));
const call = (i: number) => ({
  id: `call_${i}`,
  type: 'function',
  function: {
    name: `project_tool_${i}`,
    arguments: JSON.stringify({ path: `src/part-${i}.ts`, first_line: 1, last_line: 80 }),
  },
});
const agentTurn = [
  { role: 'system', content: ofBytes(prose, 2000) },
  user('Find out why the test of the ledger fails, and mend it.'),
  ...[1, 2, 3].flatMap((i) => [
    { role: 'assistant', content: 'I look at the next part.', tool_calls: [call(i)] },
    { role: 'tool', tool_call_id: `call_${i}`, content: ofBytes(code.slice(i * 4000), 3000) },
  ]),
];

/** A coding agent in the middle of its work: twenty tools with long descriptions, a long system prompt, files that it has read. */
const agentTools = Array.from({ length: 20 }, (_, i) => ({
  type: 'function',
  function: {
    name: `agent_tool_${i}`,
    description: ofBytes(prose.slice(i * 1500), 500),
    parameters: tools[0]?.function.parameters,
  },
}));
const agentMessages = [
  { role: 'system', content: ofBytes(prose, 12_000) },
  user('Find out why the test of the ledger fails, and mend it.'),
  ...[1, 2, 3, 4, 5, 6].flatMap((i) => [
    { role: 'assistant', content: 'I look at the next part.', tool_calls: [call(i)] },
    { role: 'tool', tool_call_id: `call_${i}`, content: ofBytes(code.slice(i * 4000), 4000) },
  ]),
];
const agent = { model: 'agent', messages: agentMessages, tools: agentTools };
/** The share of an agent's prompt that a provider's cache holds: all but its last turn. */
const CACHED = 0.9;

type Row = {
  what: string;
  request: Record<string, unknown>;
  outputTokens: number;
  images?: number;
  /** The part of the prompt that is read from the server's cache. */
  cached?: number;
};
const image = `data:image/png;base64,${'A'.repeat(400_000)}`;
/** The requests, each with the usual length of its output. Limits are such as a caller would set. */
const ROWS: Row[] = [
  { what: 'hello', request: { messages: [user('Hello!')] }, outputTokens: 10 },
  { what: 'hello, max_tokens 100', request: { messages: [user('Hello!')], max_tokens: 100 }, outputTokens: 10 },
  { what: '10 kB of prose', request: { messages: [user(`Summarise.\n${ofBytes(prose, 10_000)}`)] }, outputTokens: 300 },
  {
    what: '10 kB of prose, max_tokens 500',
    request: { messages: [user(`Summarise.\n${ofBytes(prose, 10_000)}`)], max_tokens: 500 },
    outputTokens: 300,
  },
  {
    what: '20 kB of code, max_tokens 1000',
    request: { messages: [user(`Review.\n${ofBytes(code, 20_000)}`)], max_tokens: 1000 },
    outputTokens: 800,
  },
  {
    what: '100 kB of prose, max_tokens 500',
    request: { messages: [user(`Summarise.\n${ofBytes(prose, 100_000)}`)], max_tokens: 500 },
    outputTokens: 400,
  },
  {
    what: 'agent turn, 12 tools, max_tokens 1000',
    request: { messages: agentTurn, tools, max_tokens: 1000 },
    outputTokens: 150,
  },
  {
    what: 'Claude Code, 90 % cached, max_tokens 32000',
    request: { ...agent, max_tokens: 32_000 },
    outputTokens: 150,
    cached: CACHED,
  },
  { what: 'Codex, 90 % cached, no limit', request: { ...agent, stream: true }, outputTokens: 150, cached: CACHED },
  {
    what: 'chat with 20 tools, 90 % cached, max_tokens 8192',
    request: { ...agent, max_tokens: 8192 },
    outputTokens: 150,
    cached: CACHED,
  },
  {
    what: '6 kB of Chinese, max_tokens 500',
    request: { messages: [user(ofBytes(chinese, 6000))], max_tokens: 500 },
    outputTokens: 300,
  },
  {
    what: 'n = 4, max_tokens 200',
    request: { messages: [user('A name for a cat?')], n: 4, max_tokens: 200 },
    outputTokens: 80,
  },
  {
    what: 'image of 300 kB, max_tokens 300',
    request: {
      messages: [
        user([
          { type: 'text', text: 'What is this?' },
          { type: 'image_url', image_url: { url: image } },
        ]),
      ],
      max_tokens: 300,
    },
    outputTokens: 150,
    images: 1,
  },
  { what: 'embedding of 2 kB', request: { input: ofBytes(prose, 2000) }, outputTokens: 0 },
  {
    what: 'stream, 1 kB, no limit',
    request: { messages: [user(ofBytes(prose, 1000))], stream: true },
    outputTokens: 500,
  },
];

/** Counts the tokens of a prompt as its provider does: texts, tools in compact form, and the frame. */
function countPrompt({ messages, tools: given, input }: Record<string, any>): number {
  if (input !== undefined) return count(input);
  let tokens = OPENING_TOKENS + (given ? count(JSON.stringify(given)) : 0);
  for (const { content, tool_calls: calls } of messages) {
    const text = Array.isArray(content) ? content.map((part) => part.text ?? '').join('\n') : content;
    tokens += MESSAGE_TOKENS + count(text) + (calls ? count(JSON.stringify(calls.map((it: any) => it.function))) : 0);
  }
  return tokens;
}

function measure({ what, request, outputTokens, images = 0, cached = 0 }: Row): string[] {
  const { stream = false, model: id = 'input' in request ? 'embeddings' : 'chat', ...body } = request;
  const model = catalogue.find(String(id)) as Model;
  const [route] = model.routes;
  const bounded =
    model.kind === 'chat'
      ? boundChat(model, { model: model.id, ...body } as never, stream === true)
      : boundEmbeddings(model, { model: model.id, ...body });
  const bound = bounded.maxUsage(route);
  const promptTokens = countPrompt(body) + images * IMAGE_TOKENS;
  const usage = {
    promptTokens,
    completionTokens: outputTokens,
    cacheReadTokens: Math.floor(promptTokens * cached),
    cacheWriteTokens: 0,
    reasoningTokens: 0,
  };
  const real = Nanos(costOf(route.price, usage, images));
  const hold = holdOf(route.price, bound);
  return [
    what,
    `${promptTokens} + ${outputTokens}`,
    `${bound.promptTokens} + ${bound.completionTokens}`,
    formatUsd(real),
    formatUsd(hold),
    (Number(hold) / Number(real)).toFixed(1),
    (bound.promptTokens / promptTokens).toFixed(1),
    String(WALLET / hold),
  ];
}

const HEAD = [
  'request',
  'tokens, really',
  'tokens, at most',
  'real USD',
  'hold USD',
  'hold / real',
  'prompt alone',
  'at once in 1 USD',
];
const line = (cells: readonly string[]) => `| ${cells.join(' | ')} |`;
console.log(line(HEAD));
console.log(line(HEAD.map((_, i) => (i === 0 ? '---' : '---:'))));
for (const row of ROWS) console.log(line(measure(row)));
