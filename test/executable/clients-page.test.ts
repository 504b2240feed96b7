import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { fileURLToPath } from 'node:url';
import { AGENTS } from '../agents/agents.ts';
import { hasComponent, hasProgram } from '../helper/component.ts';
import { installation, within } from '../helper/executable.ts';
import { costOf, nanosOf, openModelServer, type Prices } from '../helper/model-server.ts';
import type { Answer } from '../helper/server.ts';
import { failure, gate, type Handler, openUpstream, reset } from '../helper/upstream.ts';
import { openWire } from '../helper/wire.ts';

// docs/clients.md is what is tested here: its blocks are run as they are printed, with an environment and nothing else. What it
// prints for agents is run by test/agents/agents.test.ts.

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
/** Several clients at once on a busy machine, each with its repetitions. */
const PATIENCE_MILLISECONDS = 180_000;

const PERSON = "{ name: 'Ada', born: 1815 }\n";
/** Every block of the page in its order: under which heading, in which language, and what it prints when it is answered. */
const BLOCKS: [heading: string, language: 'sh' | 'js', prints: string | RegExp][] = [
  ['A key', 'sh', /^\{"api_key":"svc_router_\w+","base_url":"http:.*\/v1\/router","expires_at":\d+\}$/],
  ['A key', 'sh', /"content":"You said: Who are you\?"/],
  ['openai', 'js', 'You said: Say hello.\n'],
  ['openai', 'js', 'You said: Count to three.'],
  ['openai', 'js', 'You said: Sunny in Ada.\n'],
  ['openai', 'js', PERSON],
  ['openai', 'js', '[ 8, 7 ]\n'],
  ['AI SDK', 'js', 'You said: Say good morning.\n'],
  ['AI SDK', 'js', 'You said: Count to four.'],
  ['LangChain', 'js', 'You said: Say good night.\n'],
  ['LangChain', 'js', 'You said: Count to five.'],
  ['LangChain', 'js', PERSON],
  ['Idempotency-Key', 'js', 'You said: Name a colour.\n'],
  ['Idempotency-Key', 'js', 'You said: Name a river.\n'],
  ['Idempotency-Key', 'js', 'You said: Name a city.\n'],
];

type Block = { index: number; heading: string; language: 'sh' | 'js'; code: string; prints: string | RegExp };

const AGENT_TITLES: ReadonlySet<string> = new Set(AGENTS.map(({ title }) => title));

/** The blocks of the page for programs; they are the ones above, so none is printed that is not run. */
function readBlocks(): Block[] {
  let heading = '';
  const blocks: Pick<Block, 'heading' | 'language' | 'code'>[] = [];
  for (const [, title, language, code] of readFileSync(join(ROOT, 'docs/clients.md'), 'utf8').matchAll(
    /^## (.+)$|^```(\w*)\n([\s\S]*?)^```$/gm,
  ))
    if (title) heading = title;
    else if (!AGENT_TITLES.has(heading)) blocks.push({ heading, language: language as 'js', code: code as string });
  assert.deepEqual(
    blocks.map((it) => [it.heading, it.language]),
    BLOCKS.map(([it, language]) => [it, language]),
  );
  return blocks.map((it, index) => ({ ...it, index, prints: BLOCKS[index]?.[2] as string }));
}
const ALL = readBlocks();
const PROGRAMS = ALL.filter(({ language }) => language === 'js');
/** One for each client. */
const KEYED = PROGRAMS.filter(({ heading }) => heading === 'Idempotency-Key');
/** `streamText` tells of a refusal through its `onError` and goes on. */
const throwsNothing = ({ code }: Block) => code.includes('streamText');
/** A loop of tools makes two requests. */
const requestCount = ({ code }: Block) => (code.includes('runTools') ? 2 : 1);

type Printed = { code: number; stdout: string; stderr: string };

/** Runs a block as it is printed, where its packages are found. */
async function run(t: TestContext, block: Block, env: Record<string, string>, signal?: AbortSignal): Promise<Printed> {
  const directory = mkdtempSync(join(tmpdir(), 'purser-client-'));
  t.after(() => rmSync(directory, { recursive: true, force: true }));
  symlinkSync(join(ROOT, 'node_modules'), join(directory, 'node_modules'));
  const file = join(directory, block.language === 'js' ? 'client.mjs' : 'client.sh');
  writeFileSync(file, block.code);
  return new Promise((resolve) => {
    const program = block.language === 'js' ? process.execPath : 'sh';
    const limits = { timeout: PATIENCE_MILLISECONDS, ...(signal ? { signal } : {}) };
    const all = { PATH: process.env.PATH ?? '', STEP: randomUUID(), ...env };
    execFile(program, [file], { env: all, ...limits }, (error, stdout, stderr) =>
      resolve({ code: error ? Number(error.code ?? -1) : 0, stdout, stderr }),
    );
  });
}

function assertPrints(block: Block, { code, stdout, stderr }: Printed): void {
  const said = `${block.code}\n${stdout}\n${stderr}`;
  assert.equal(code, 0, said);
  if (typeof block.prints === 'string') assert.equal(stdout, block.prints, said);
  else assert.match(stdout, block.prints, said);
}

// The prompt's has a fraction of a nano-dollar, so that what is charged is rounded.
const PRICES: Record<string, Prices> = {
  'qwen3-8b': { prompt: '0.0000001003', input_cache_read: '0.0000000251', completion: '0.0000004' },
  'bge-m3': { prompt: '0.0005', completion: '0' },
  filler: { prompt: '0', completion: '0.00101' },
  flat: { prompt: '0', completion: '0', request: '0.99995' },
};
const chatModel = { upstream: 'local', context_length: 65_536 };
const MODELS = [
  { id: 'qwen3-8b', ...chatModel, max_output_tokens: 32_768, pricing: PRICES['qwen3-8b'] },
  { id: 'bge-m3', kind: 'embeddings', upstream: 'local', context_length: 8192, pricing: PRICES['bge-m3'] },
  // Of a wallet of one dollar each leaves less than any program of the page needs, though its answer had only 256 tokens:
  // one while it runs, the other for good.
  { id: 'filler', ...chatModel, max_output_tokens: 990, pricing: PRICES.filler },
  { id: 'flat', ...chatModel, max_output_tokens: 1, pricing: PRICES.flat },
];

/** The executable, a model server behind it, and the wire before it. */
async function openGateway(t: TestContext) {
  const upstream = await openUpstream(t);
  const models = openModelServer();
  upstream.handle = models.handle;
  const router = { upstreams: [{ name: 'local', base_url: upstream.url, timeout_seconds: 300 }], models: MODELS };
  const purser = installation(t, { settings: { router } });
  const serving = await purser.serve();
  const { accounts } = await purser.json('account', 'list');
  await purser.json('account', 'credit', accounts[0].id, '10000');
  const { key } = await purser.json('key', 'create', '--account', accounts[0].id, '--name', 'test');
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
      return { OPENAI_API_KEY: body.api_key, OPENAI_BASE_URL: line ? wire.line(line) : body.base_url };
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

const PROGRAMS_AT_ONCE = 4;

/** Does it for each block, a few at a time; each has a line of its own on the wire. */
async function together(blocks: Block[], act: (block: Block, line: string) => Promise<void>): Promise<void> {
  const left = blocks.values();
  const work = async () => {
    for (const block of left) await act(block, String(block.index));
  };
  await Promise.all(Array.from({ length: PROGRAMS_AT_ONCE }, work));
}

test('every program of the page runs as it is printed, and the budget agrees with the model server’s own count', async (t) => {
  const gateway = await openGateway(t);
  const { token } = await gateway.openWallet();
  const env = await gateway.clientEnv(token);
  await together(PROGRAMS, async (block) => assertPrints(block, await run(t, block, env)));
  assert.equal(
    gateway.models.counted.length,
    PROGRAMS.reduce((sum, block) => sum + requestCount(block), 0),
  );
  await gateway.assertBooks();
});

test('the key and the first call of the page, with curl', async (t) => {
  if (!hasComponent(t, 'curl', () => hasProgram('curl'))) return;
  const gateway = await openGateway(t);
  const [getKey, call] = ALL as [Block, Block];
  const { env } = await gateway.openWallet();
  const key = await run(t, getKey, env);
  assertPrints(getKey, key);
  const { api_key, base_url } = JSON.parse(key.stdout);
  assertPrints(call, await run(t, call, { OPENAI_API_KEY: api_key, OPENAI_BASE_URL: base_url }));
  await gateway.assertBooks();

  const poor = await gateway.openWallet();
  await gateway.drain(poor.token, 'flat');
  const refused = await run(t, call, await gateway.clientEnv(poor.token));
  assert.equal(JSON.parse(refused.stdout).error.code, 'insufficient_funds');
});

test('a client that cannot pay is told once, and the model server hears nothing of it', async (t) => {
  const gateway = await openGateway(t);
  const empty = await gateway.openWallet();
  await gateway.drain(empty.token, 'flat');
  const full = await gateway.openWallet();
  for (const [blocks, token, options, words] of [
    [PROGRAMS, empty.token, {}, /the wallet has 0\.00005 USD available/],
    [KEYED, full.token, { max_price_usd: '0.0001' }, /this gateway key allows 0\.0001 USD/],
  ] as const)
    await together([...blocks], async (block, index) => {
      const line = `${Object.keys(options).length}-${index}`;
      const { code, stdout, stderr } = await run(t, block, await gateway.clientEnv(token, line, options));
      const said = `${block.code}\n${stderr}`;
      assert.deepEqual(gateway.statuses(line), [402], said);
      assert.match(stderr, /insufficient_funds/, said);
      assert.match(stderr, words, said);
      assert.equal(stdout, '', said);
      assert.equal(code !== 0, !throwsNothing(block), said);
    });
  assert.equal(gateway.upstream.calls.length, 1, 'the call that emptied the wallet');
});

/** What `Retry-After: 2` comes to, give or take what timers do. */
const RETRY_AFTER_MILLISECONDS = 1990;

test('money that is held by others is waited for by every client', async (t) => {
  const gateway = await openGateway(t);
  const gates = new Map<unknown, ReturnType<typeof gate>>();
  gateway.upstream.handle = (call, response) => {
    const [message] = (call.body.messages ?? []) as [{ content: unknown }?];
    return (gates.get(message?.content)?.handler ?? gateway.models.handle)(call, response);
  };
  await together(PROGRAMS, async (block, line) => {
    const { token } = await gateway.openWallet();
    const env = await gateway.clientEnv(token, line);
    const held = gate(gateway.models.handle);
    const content = `hold of ${line}`;
    gates.set(content, held);
    const filler = gateway.drain(token, 'filler', content);
    await untilHeld(gateway, token);
    const printed = run(t, block, env);
    await within(gateway.wire.answered(line, 1), () => `${block.code} asks`, PATIENCE_MILLISECONDS);
    held.open();
    assert.equal((await filler).status, 200);
    assertPrints(block, await printed);
    const [refused, next] = gateway.wire.answers(line);
    assert(refused && next && refused.status === 429 && next.at - refused.at > RETRY_AFTER_MILLISECONDS, block.code);
    assert.equal(gateway.statuses(line).filter((it) => it === 200).length, requestCount(block), block.code);
  });
  await gateway.assertBooks();
});

/** Waits until the wallet holds money; each look is a request of its own. */
async function untilHeld({ serving }: Awaited<ReturnType<typeof openGateway>>, token: string): Promise<void> {
  for (;;) if ((await serving.ask('GET', '/v1/budget', { token })).body.holds.length) return;
}

test('a model server that is down and then busy is asked again by every client, and only its answer is paid', async (t) => {
  const gateway = await openGateway(t);
  const { token } = await gateway.openWallet();
  const attempts = new Map<string, number>();
  const answers: Handler[] = [failure(503), failure(429, undefined, { 'retry-after': '1' })];
  gateway.upstream.handle = (call, response) => {
    const asked = JSON.stringify(call.body.messages ?? call.body.input); // No two blocks of the page ask the same.
    const attempt = attempts.get(asked) ?? 0;
    attempts.set(asked, attempt + 1);
    return (answers[attempt] ?? gateway.models.handle)(call, response);
  };
  await together(PROGRAMS, async (block, line) => {
    assertPrints(block, await run(t, block, await gateway.clientEnv(token, line)));
    const each = Array.from({ length: requestCount(block) }, () => [503, 429, 200]);
    assert.deepEqual(gateway.statuses(line), each.flat(), block.code);
  });
  await gateway.assertBooks();
});

test('a request with an Idempotency-Key is paid once, however often the program runs', async (t) => {
  const gateway = await openGateway(t);
  const { token } = await gateway.openWallet();
  const env = await gateway.clientEnv(token);
  await together(KEYED, async (block, index) => {
    for (let round = 0; round < 3; round++) assertPrints(block, await run(t, block, { ...env, STEP: `step ${index}` }));
  });
  assert.equal(gateway.upstream.calls.length, KEYED.length);
  await gateway.assertBooks();
});

test('what nobody knows is not asked twice when it had an Idempotency-Key, though LangChain repeats it', async (t) => {
  const gateway = await openGateway(t);
  gateway.upstream.handle = reset;
  const { token } = await gateway.openWallet();
  const block = KEYED.at(-1) as Block;
  assert.match(block.code, /langchain/);
  const enough = new AbortController();
  const running = run(t, block, await gateway.clientEnv(token, 'line'), enough.signal);
  await within(gateway.wire.answered('line', 2), () => 'LangChain repeats', PATIENCE_MILLISECONDS);
  enough.abort();
  await running;
  assert.deepEqual(gateway.statuses('line').slice(0, 2), [503, 503]);
  assert.equal(gateway.upstream.calls.length, 1);
  const { body } = await gateway.serving.ask('GET', '/v1/budget', { token });
  assert.equal(body.holds.length, 1);
});

test('a stream that breaks is an error to every client, and is not asked again', async (t) => {
  const gateway = await openGateway(t);
  const { token } = await gateway.openWallet();
  gateway.upstream.handle = ({ body }, response) => {
    const choices = [{ index: 0, delta: { role: 'assistant', content: 'half an ' }, finish_reason: null }];
    const chunk = { id: 'c', object: 'chat.completion.chunk', created: 1, model: body.model, choices };
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    response.write(`data: ${JSON.stringify(chunk)}\n\n`, () => response.destroy());
  };
  const streams = PROGRAMS.filter(({ prints }) => String(prints).includes('Count to'));
  assert.equal(streams.length, 3);
  await together(streams, async (block, line) => {
    const { code, stdout, stderr } = await run(t, block, await gateway.clientEnv(token, line));
    const said = `${block.code}\n${stderr}`;
    assert.equal(stdout, 'half an ', said);
    assert.match(stderr, /The answer to this request was lost and 0\.\d+ USD were charged/, said);
    assert.equal(code !== 0, !throwsNothing(block), said);
    assert.deepEqual(gateway.statuses(line), [200], said);
  });
  assert.equal(gateway.upstream.calls.length, streams.length);
});
