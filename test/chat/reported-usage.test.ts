import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import test, { type TestContext } from 'node:test';
import { type Gateway, openGateway } from '../helper/gateway.ts';
import { openTestServer, type TestServer } from '../helper/server.ts';
import { counted, DONE, event, FINISHED, resetIt, type Step, said, streaming } from '../helper/sse.ts';
import { failure } from '../helper/upstream.ts';

// docs/clients.md is what is tested here: each row of its table "What was told is charged as told", in each of its wires.

const WIRES = ['chat', 'messages', 'responses'] as const;
type Wire = (typeof WIRES)[number];
/** Counts by the names of the table; -1 is what cannot be read. */
type Counts = Record<string, number>;
type Part = { what: string; bytes?: number; counts?: Counts };
type Row = { what: string; wires: readonly Wire[]; parts: Part[]; prompt: string; answer: string };

const page = readFileSync(join(import.meta.dirname, '../../docs/clients.md'), 'utf8');

function rowsOfPage(): Row[] {
  const [, section = ''] = page.split('### What was told is charged as told\n');
  const lines = section.split('\n| case |')[1]?.split('\n\n')[0]?.split('\n').slice(2) ?? [];
  return lines.map((line) => {
    const [what, wires, comes, prompt, answer] = line.slice(2, -2).split(' | ') as [string, string, ...string[]];
    const parts = (comes as string).split('; ').map((it): Part => {
      const [, name = '', bytes, rest = ''] = /^(\w+)(?: (\d+))?(?: (.*))?$/.exec(it) ?? [];
      const words = rest ? rest.split(' ') : [];
      const counts: Counts = {};
      for (let i = 0; i < words.length; i += 2)
        counts[words[i] as string] = words[i + 1] === '?' ? -1 : Number(words[i + 1]);
      return { what: name, ...(bytes ? { bytes: Number(bytes) } : {}), ...(words.length ? { counts } : {}) };
    });
    return {
      what,
      wires: wires === 'all' ? WIRES : (wires.split(', ') as Wire[]),
      parts,
      prompt: prompt as string,
      answer: answer as string,
    };
  });
}

const without = (it: Record<string, unknown>) =>
  Object.fromEntries(Object.entries(it).filter(([, value]) => value !== undefined));

/** A usage as each wire tells it. */
const USAGE: Record<Wire, (counts: Counts) => object> = {
  chat: ({ prompt, cached, written, answer, reasoning, total }) =>
    without({
      prompt_tokens: prompt,
      completion_tokens: answer,
      total_tokens: total,
      prompt_tokens_details: without({ cached_tokens: cached, cache_write_tokens: written }),
      completion_tokens_details: reasoning === undefined ? null : { reasoning_tokens: reasoning },
    }),
  messages: ({ prompt = 0, cached, written, answer, reasoning }) =>
    without({
      input_tokens: Math.max(-1, prompt - (cached ?? 0) - (written ?? 0)),
      cache_read_input_tokens: cached,
      cache_creation_input_tokens: written,
      output_tokens: answer,
      output_tokens_details: reasoning === undefined ? undefined : { thinking_tokens: reasoning },
    }),
  responses: ({ prompt, cached, written, answer, reasoning, total }) =>
    without({
      input_tokens: prompt,
      output_tokens: answer,
      total_tokens: total,
      input_tokens_details: without({ cached_tokens: cached, cache_write_tokens: written }),
      output_tokens_details: reasoning === undefined ? null : { reasoning_tokens: reasoning },
    }),
};

const named = (data: { type: string; [name: string]: unknown }) => `event: ${data.type}\n${event(data)}`;
const MESSAGE = { id: 'msg_1', type: 'message', role: 'assistant', model: 'm', content: [], stop_reason: null };
const RESPONSE = { id: 'resp_1', object: 'response', created_at: 1, status: 'in_progress', model: 'm', output: [] };
const item = (text: string) => ({
  id: 'msg_1',
  type: 'message',
  role: 'assistant',
  status: 'completed',
  content: [{ type: 'output_text', text, annotations: [] }],
});

/** The events of a part of a stream. `isFirst`: nothing came before. `isLast`: the proper end comes next. */
const EVENTS: Record<Wire, (part: Part, at: { isFirst: boolean; isLast: boolean; hasEnd: boolean }) => Step[]> = {
  chat({ what, bytes = 0, counts }, { isLast }) {
    if (what === 'text') return [said('x'.repeat(bytes))];
    if (what === 'error') return [event({ error: { message: 'no' } })];
    if (what === 'told')
      return isLast
        ? [FINISHED, counted(USAGE.chat(counts as Counts))]
        : [said('', { usage: USAGE.chat(counts as Counts) })];
    return [FINISHED, DONE];
  },
  messages({ what, bytes = 0, counts }, { isFirst, isLast, hasEnd }) {
    const usage = counts && USAGE.messages(counts);
    const start = (usage?: object) =>
      named({ type: 'message_start', message: { ...MESSAGE, ...(usage ? { usage } : {}) } });
    const stop = (usage?: object) =>
      named({ type: 'message_delta', delta: { stop_reason: 'end_turn' }, ...(usage ? { usage } : {}) });
    const before = isFirst && what !== 'told' ? [start()] : [];
    const delta = { type: 'content_block_delta', index: 0, delta: { type: 'text_delta', text: 'x'.repeat(bytes) } };
    if (what === 'text') return [...before, named(delta)];
    if (what === 'error')
      return [...before, named({ type: 'error', error: { type: 'overloaded_error', message: 'no' } })];
    if (what === 'told')
      return [isFirst ? start(usage) : isLast ? stop(usage) : named({ type: 'message_delta', delta: {}, usage })];
    return [...(hasEnd ? [] : [stop()]), named({ type: 'message_stop' })];
  },
  responses({ what, bytes = 0, counts }, { isFirst, isLast, hasEnd }) {
    const usage = counts ? USAGE.responses(counts) : null;
    const told = (type: string, status = 'in_progress') => named({ type, response: { ...RESPONSE, status, usage } });
    const before = isFirst && what !== 'told' ? [told('response.created')] : [];
    const delta = { type: 'response.output_text.delta', output_index: 0, delta: 'x'.repeat(bytes) };
    if (what === 'text') return [...before, named(delta)];
    if (what === 'error') return [...before, named({ type: 'error', message: 'no' })];
    if (what === 'told')
      return [
        isLast ? told('response.completed', 'completed') : told(`response.${isFirst ? 'created' : 'in_progress'}`),
      ];
    return hasEnd ? [] : [told('response.completed', 'completed')];
  },
};

function streamOf(wire: Wire, parts: Part[]): Step[] {
  return parts.flatMap((part, at): Step[] => {
    if (part.what === 'reset') return [resetIt];
    const before = parts[at - 1];
    const isLast = parts[at + 1]?.what === 'end';
    return EVENTS[wire](part, { isFirst: at === 0, isLast, hasEnd: before?.what === 'told' && at > 1 });
  });
}

function wholeOf(wire: Wire, bytes: number, counts: Counts): object {
  const text = 'x'.repeat(bytes);
  const usage = USAGE[wire](counts);
  if (wire === 'messages') return { ...MESSAGE, content: [{ type: 'text', text }], stop_reason: 'end_turn', usage };
  if (wire === 'responses') return { ...RESPONSE, status: 'completed', output: [item(text)], usage };
  return { choices: [{ index: 0, message: { role: 'assistant', content: text }, finish_reason: 'stop' }], usage };
}

const PATHS = { chat: '/chat/completions', messages: '/messages', responses: '/responses' };
/** A prompt that may have up to about 5,000 tokens, and an answer up to 64,000. */
const bodyOf = (client: Wire, content: string) =>
  client === 'responses'
    ? { input: content, max_output_tokens: 64_000 }
    : { messages: [{ role: 'user', content }], max_tokens: 64_000 };
const PROMPT = 'x'.repeat(5000);

/** USD per million tokens, and the same in nano-dollars per token. */
const PRICE = {
  prompt: '3',
  completion: '15',
  input_cache_read: '0.3',
  input_cache_write: '3.75',
  internal_reasoning: '20',
};
const [PLAIN, CACHED, WRITTEN, ANSWER, REASONING] = [3000n, 300n, 3750n, 15_000n, 20_000n];

const latest = async (purser: TestServer): Promise<any> => (await purser.run('operation.list', {})).operations[0];

/** A model `native`, whose server speaks all three, and `chat`, whose server speaks chat completions only. */
async function open(t: TestContext, pricing: object = PRICE): Promise<{ purser: TestServer; gateway: Gateway }> {
  const purser = await openTestServer(t, {
    creditCents: 100_000_000,
    unknownCountMax: Infinity,
    change: (all) => {
      const [local] = all.router.upstreams;
      const limits = { context_length: 200_000, max_output_tokens: 64_000, pricing_per_million: pricing };
      return {
        ...all,
        router: {
          upstreams: [
            { ...local, wires: ['messages', 'responses'] },
            { ...local, name: 'plain' },
          ],
          models: [
            { id: 'native', upstream: 'local', ...limits },
            { id: 'chat', upstream: 'plain', ...limits },
          ],
        },
      };
    },
  });
  return { purser, gateway: await openGateway(purser, { wallet: { budget_cents: 1_000_000 } }) };
}

/** Returns what a row costs by its last two columns, in nano-dollars. */
function costOf({ prompt, answer }: Row, { price, hold }: { price: any; hold: bigint }): bigint {
  if (prompt === 'hold') return hold;
  const of = (cell: string, name: string) => BigInt(new RegExp(`${name} (\\d+)`).exec(cell)?.[1] ?? 0);
  const [cached, written, reasoning] = [of(prompt, 'cached'), of(prompt, 'written'), of(answer, 'reasoning')];
  const sum =
    prompt === 'bound'
      ? BigInt(price.bound_prompt_tokens) * WRITTEN
      : (BigInt(Number.parseInt(prompt, 10)) - cached - written) * PLAIN + cached * CACHED + written * WRITTEN;
  const soFar = /^(?:bytes (\d+)|(\d+) so far)$/.exec(answer);
  if (soFar) return sum + BigInt((soFar[1] ?? soFar[2]) as string) * REASONING;
  return sum + (BigInt(Number.parseInt(answer, 10)) - reasoning) * ANSWER + reasoning * REASONING;
}

const nanos = (usd: string) => BigInt(Math.round(Number(usd) * 1e9));

test('each row of the page is charged as it says, in each wire, passed on and translated', async (t) => {
  const { purser, gateway } = await open(t);
  const rows = rowsOfPage();
  assert(rows.length > 25, 'the table of the page is found');
  const seen = new Set<string>();
  for (const row of rows)
    for (const wire of row.wires)
      for (const client of wire === 'chat' ? WIRES : [wire])
        await t.test(`${row.what}: ${client}${client === wire ? '' : ' as a chat'}`, async () => {
          const [first] = row.parts;
          const isWhole = first?.what === 'whole';
          purser.upstream.handle = isWhole
            ? failure(200, wholeOf(wire, first.bytes as number, first.counts as Counts))
            : streaming(...streamOf(wire, row.parts));
          const body = { ...bodyOf(client, PROMPT), model: wire === 'chat' ? 'chat' : 'native', stream: !isWhole };
          const { status, text } = await gateway.ask('POST', PATHS[client], { body });
          const operation = await latest(purser);
          assert.equal(operation.wallet_id, gateway.walletId);
          if (operation.state === 'uncertain') {
            assert.equal(status, 503, text);
            purser.clock.advance(901);
            await purser.app.reaper.runOnce();
          } else assert.equal(status, 200, text);
          const { charge_usd: charge, hold_usd, price, usage } = await latest(purser);
          const hold = nanos(hold_usd);
          assert.equal(nanos(charge), costOf(row, { price, hold }), JSON.stringify(usage));
          assert(nanos(charge) <= hold);
          seen.add(wire);
        });
  assert.deepEqual([...seen].sort(), ['chat', 'messages', 'responses']);
  assert.deepEqual(purser.problems(), []);
});

/** An agent's turn: 57 kB of conversation, twenty tools, of 14,803 tokens of the prompt 14,000 cached, 96 tokens of an answer. */
const SONNET = { prompt: '3', completion: '15', input_cache_read: '0.30', input_cache_write: '3.75' };
const TURN = { prompt: 14_803, cached: 14_000, written: 800, answer: 96 };
const TRUE_NANOS = 3n * 3000n + 14_000n * 300n + 800n * 3750n + 96n * 15_000n;
const TEXT = 350;
const tool = (i: number) => ({
  name: `tool_${i}`,
  description: 'Reads a part of a file of the project, and says where it ends.',
  input_schema: { type: 'object', properties: { path: { type: 'string' }, line: { type: 'integer' } } },
});
const TOOLS = Array.from({ length: 20 }, (_, i) => tool(i));
const agentBody = (client: Wire) => {
  const body = { ...bodyOf(client, 'x'.repeat(50_000)), max_tokens: undefined, max_output_tokens: undefined };
  const asFunction = ({ input_schema: parameters, ...it }: ReturnType<typeof tool>) => ({ ...it, parameters });
  if (client === 'messages') return { ...body, max_tokens: 32_000, tools: TOOLS };
  if (client === 'responses')
    return { ...body, tools: TOOLS.map((it) => ({ type: 'function', ...asFunction(it), strict: false })) };
  return { ...body, tools: TOOLS.map((it) => ({ type: 'function', function: asFunction(it) })) };
};
const BEGUN = `told prompt ${TURN.prompt} cached ${TURN.cached} written ${TURN.written} answer 1`;
const ENDS = {
  normal: [`text ${TEXT}`, `told prompt ${TURN.prompt} cached ${TURN.cached} written ${TURN.written} answer 96`, 'end'],
  broken: [BEGUN, `text ${TEXT}`, 'reset'],
  'an error in the middle': [BEGUN, `text ${TEXT}`, 'error'],
  'no last usage': [BEGUN, `text ${TEXT}`, 'end'],
  'broken before its text': [BEGUN, 'reset'],
  'one bad member': [
    `text ${TEXT}`,
    `told prompt ${TURN.prompt} cached ${TURN.cached} written ${TURN.written} answer 96 reasoning ?`,
    'end',
  ],
};
const partsOf = (texts: string[]): Part[] =>
  texts.map((it) => {
    const [what = '', ...words] = it.split(' ');
    if (what === 'text') return { what, bytes: Number(words[0]) };
    const counts: Counts = {};
    for (let i = 0; i < words.length; i += 2)
      counts[words[i] as string] = words[i + 1] === '?' ? -1 : Number(words[i + 1]);
    return { what, counts };
  });

test('an agent’s turn whose end is missing costs at most one and a half of its true price', async (t) => {
  const { purser, gateway } = await open(t, SONNET);
  for (const wire of WIRES)
    for (const [what, parts] of Object.entries(ENDS))
      await t.test(`${wire}: ${what}`, async () => {
        purser.upstream.handle = streaming(...streamOf(wire, partsOf(parts)));
        const body = { ...agentBody(wire), model: wire === 'chat' ? 'chat' : 'native', stream: true };
        const { status, text } = await gateway.ask('POST', PATHS[wire], { body });
        assert.equal(status, 200, text);
        const { charge_usd: charge, hold_usd: hold } = await latest(purser);
        const charged = nanos(charge);
        t.diagnostic(
          `${wire}, ${what}: ${charge} of ${hold} USD held, x ${(Number(charged) / Number(TRUE_NANOS)).toFixed(2)}`,
        );
        assert(charged * 2n <= TRUE_NANOS * 3n, charge);
        if (what === 'normal' || what === 'one bad member') assert.equal(charged, TRUE_NANOS);
      });
  assert.deepEqual(purser.problems(), []);
});
