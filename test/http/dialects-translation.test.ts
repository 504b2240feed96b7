import assert from 'node:assert/strict';
import test from 'node:test';
import Anthropic from '@anthropic-ai/sdk';
import OpenAI from 'openai';
import type { Dialect } from '../../src/http/dialects/dialect.ts';
import { messagesDialect } from '../../src/http/dialects/messages.ts';
import { responsesDialect } from '../../src/http/dialects/responses.ts';
import fc from '../helper/property.ts';
import { length, SEED } from '../helper/random.ts';

// Both translations as functions: what is said arrives, calls and results pair up, and a stream adds up to the answer
// that would have come whole.

const check = <T>(property: fc.IProperty<[T]>) => fc.assert(property, { numRuns: length(100, 300) });
const ASKS: Record<string, [Dialect, object]> = {
  messages: [messagesDialect, { model: 'm', max_tokens: 9, messages: [{ role: 'user', content: 'hi' }] }],
  responses: [responsesDialect, { model: 'm', input: 'hi', tools: [{ type: 'custom', name: 'patch' }] }],
};

/** The way back of what somebody asked. */
const answersFor = (wire: Dialect, asked: object) => wire.answers(wire.translate(asked as any).kept, 'seed');

const text = fc.string({ minLength: 1, maxLength: 12, unit: 'grapheme' });
const input = fc.dictionary(fc.constantFrom('a', 'b', 'c'), fc.oneof(text, fc.integer(), fc.constant(null)), {
  noNullPrototype: true,
});
const name = fc.constantFrom('look', 'patch', 'write');
const call = fc.record({ name, input });
const answer = fc.record({
  reasoning: fc.option(text, { nil: undefined }),
  content: fc.option(text, { nil: undefined }),
  calls: fc.array(call, { maxLength: 4 }),
  finish: fc.constantFrom('stop', 'length', 'tool_calls'),
  cuts: fc.array(fc.nat(7), { minLength: 1, maxLength: 20 }),
  order: fc.array(fc.nat(3), { minLength: 40, maxLength: 40 }),
});

/** Cuts a text into pieces of the given lengths, over and over. */
function cut(whole: string, lengths: number[]): string[] {
  const units = [...whole];
  const pieces: string[] = [];
  for (let i = 0; units.length; i++) pieces.push(units.splice(0, 1 + (lengths[i % lengths.length] as number)).join(''));
  return pieces;
}

const head = { id: 'chatcmpl-1', created: 1 };
const usage = { prompt_tokens: 3, completion_tokens: 2, total_tokens: 5 };

function wholeOf({ reasoning, content, calls, finish }: any) {
  const tool_calls = calls.map(({ name, input }: any, i: number) => ({
    id: `call_${i}`,
    type: 'function',
    function: { name, arguments: JSON.stringify(input) },
  }));
  const message = { role: 'assistant', reasoning_content: reasoning, content: content ?? null, tool_calls };
  return { ...head, choices: [{ index: 0, message, finish_reason: finish }], usage };
}

/** The chunks of the same answer. The calls begin in their order; the rest of their arguments comes in any. */
function chunksOf({ reasoning, content, calls, finish, cuts, order }: any): object[] {
  const chunk = (delta: object, finish_reason: string | null = null) => ({
    ...head,
    choices: [{ index: 0, delta, finish_reason }],
  });
  const toolDelta = (index: number, it: object) => chunk({ tool_calls: [{ index, ...it }] });
  const left = calls.map(({ input }: any) => cut(JSON.stringify(input), cuts));
  const rest: object[] = [];
  for (let i = 0; left.some((it: string[]) => it.length); i++) {
    const open = [...left.keys()].filter((at) => left[at].length);
    const at = open[order[i % order.length] % open.length] as number;
    rest.push(toolDelta(at, { function: { arguments: left[at].shift() } }));
  }
  return [
    ...cut(reasoning ?? '', cuts).map((it) => chunk({ reasoning_content: it })),
    ...cut(content ?? '', cuts).map((it) => chunk({ content: it })),
    ...calls.map(({ name }: any, i: number) => toolDelta(i, { id: `call_${i}`, function: { name, arguments: '' } })),
    ...rest,
    chunk({}, finish),
    { ...head, choices: [], usage },
  ];
}

/** Parses the events of a stream. */
const eventsIn = (stream: string): any[] =>
  [...stream.matchAll(/event: (\S+)\ndata: ([^\n]*)\n\n/g)].map(([, type, data]) => {
    const event = JSON.parse(data as string);
    assert.equal(event.type, type);
    return event;
  });

function streamTextOf(wire: Dialect, ask: object, chunks: object[]): string {
  const stream = answersFor(wire, ask).stream();
  return [...chunks.flatMap((it) => [...stream.chunk(it)]), ...stream.end()].join('');
}
const streamOf = (wire: Dialect, ask: object, chunks: object[]) => eventsIn(streamTextOf(wire, ask, chunks));

test(`a streamed message adds up to the whole one (seed ${SEED})`, () => {
  const [wire, ask] = ASKS.messages as [Dialect, object];
  check(
    fc.property(answer, (it) => {
      const whole = answersFor(wire, ask).whole(wholeOf(it)) as any;
      const events = streamOf(wire, ask, chunksOf(it));
      const content: any[] = [];
      let json = '';
      let isSigned = false;
      for (const { type, index, content_block: block, delta } of events) {
        if (type === 'content_block_start') {
          assert.equal(index, content.length);
          content.push({ ...block });
          json = '';
          isSigned = false;
        } else if (type === 'content_block_delta') {
          assert.equal(index, content.length - 1);
          const last = content.at(-1);
          assert(!isSigned, 'a signature is the last');
          if (delta.type === 'text_delta') last.text += delta.text;
          else if (delta.type === 'thinking_delta') last.thinking += delta.thinking;
          else if (delta.type === 'signature_delta') {
            isSigned = true;
            last.signature += delta.signature;
          } else json += delta.partial_json;
        } else if (type === 'content_block_stop') {
          if (json) content.at(-1).input = JSON.parse(json);
          assert.equal(isSigned, content.at(-1).type === 'thinking', 'the AI SDK sends back no thought without one');
        }
      }
      assert.deepEqual(content, whole.content);
      const { delta, usage } = events.at(-2);
      assert.deepEqual(
        { ...delta, usage },
        { stop_reason: whole.stop_reason, stop_sequence: null, usage: whole.usage },
      );
      assert.deepEqual(
        [events[0].type, events[0].message.id, events.at(-1).type],
        ['message_start', whole.id, 'message_stop'],
      );
    }),
  );
});

test(`a streamed response adds up to the whole one (seed ${SEED})`, () => {
  const [wire, ask] = ASKS.responses as [Dialect, object];
  check(
    fc.property(answer, (it) => {
      const whole = answersFor(wire, ask).whole(wholeOf(it)) as any;
      const events = streamOf(wire, ask, chunksOf(it));
      assert.deepEqual(
        events.map(({ sequence_number: number }) => number),
        [...events.keys()],
      );
      assert.deepEqual(events.at(-1).response, whole);
      const items = events.filter(({ type }) => type === 'response.output_item.done');
      assert.deepEqual(
        items.map(({ item }) => item),
        whole.output,
      );
      const said = (type: string) =>
        events
          .filter((it) => it.type === type)
          .map(({ delta }) => delta)
          .join('');
      assert.equal(said('response.output_text.delta'), it.content ?? '');
      assert.equal(said('response.reasoning_summary_text.delta'), it.reasoning ?? '');
    }),
  );
});

const turn = fc.record({
  asked: text,
  thought: fc.option(text, { nil: undefined }),
  said: fc.option(text, { nil: undefined }),
  calls: fc.array(fc.record({ name, input, result: text }), { minLength: 1, maxLength: 3 }),
});

/** All texts of a conversation, and the calls with their results. */
function toldBy(messages: readonly any[]) {
  const results = new Map(messages.filter(({ role }) => role === 'tool').map((it) => [it.tool_call_id, it.content]));
  const calls = messages.flatMap(({ tool_calls: list }) => list ?? []);
  return {
    asked: messages.filter(({ role }) => role === 'user').map(({ content }) => content),
    said: messages.filter((it) => it.role === 'assistant' && it.content !== null).map(({ content }) => content),
    thought: messages.flatMap(({ reasoning_content: it }) => it ?? []),
    calls: calls.map(({ id, function: it }: any) => [it.name, JSON.parse(it.arguments), results.get(id)]),
  };
}

test(`nothing that was said is lost on the way to the model, and results find their calls (seed ${SEED})`, () => {
  check(
    fc.property(fc.array(turn, { minLength: 1, maxLength: 4 }), (turns) => {
      const id = (i: number, k: number) => `call_${i}_${k}`;
      const expected = {
        asked: turns.map(({ asked }) => asked),
        said: turns.flatMap(({ said }) => said ?? []),
        thought: turns.flatMap(({ thought }) => thought ?? []),
        calls: turns.flatMap(({ calls }) => calls.map(({ name, input, result }) => [name, input, result])),
      };
      const messages = turns.flatMap(({ asked, thought, said, calls }, i) => [
        { role: 'user', content: [{ type: 'text', text: asked }] },
        {
          role: 'assistant',
          content: [
            ...(thought === undefined ? [] : [{ type: 'thinking', thinking: thought, signature: '' }]),
            ...(said === undefined ? [] : [{ type: 'text', text: said }]),
            ...calls.map(({ name, input }, k) => ({ type: 'tool_use', id: id(i, k), name, input })),
          ],
        },
        {
          role: 'user',
          content: calls.map(({ result }, k) => ({ type: 'tool_result', tool_use_id: id(i, k), content: result })),
        },
      ]);
      const items = turns.flatMap(({ asked, thought, said, calls }, i) => [
        { role: 'user', content: asked },
        ...(thought === undefined ? [] : [{ type: 'reasoning', summary: [{ type: 'summary_text', text: thought }] }]),
        ...(said === undefined ? [] : [{ role: 'assistant', content: [{ type: 'output_text', text: said }] }]),
        ...calls.map(({ name, input }, k) => ({
          type: 'function_call',
          call_id: id(i, k),
          name,
          arguments: JSON.stringify(input),
        })),
        ...calls.map(({ result }, k) => ({ type: 'function_call_output', call_id: id(i, k), output: result })),
      ]);
      for (const chat of [
        messagesDialect.translate({ model: 'm', messages }).chat,
        responsesDialect.translate({ model: 'm', input: items }).chat,
      ])
        assert.deepEqual(toldBy(chat.messages), expected);
    }),
  );
});

/** The settings of a vendor's client that gets this stream, whatever it asks. */
const answeredWith = (stream: string) => ({
  apiKey: 'key',
  baseURL: 'http://127.0.0.1:9',
  fetch: async () => new Response(stream, { headers: { 'content-type': 'text/event-stream' } }),
});

test('a turn of many parts is translated without copying those before for each', () => {
  const count = 2000;
  const called = { type: 'tool_use', id: 'c', name: 'look', input: {} };
  const asked: Record<string, [Dialect, (items: object[]) => object, object[]]> = {
    messages: [
      messagesDialect,
      (items) => ({ model: 'm', max_tokens: 9, messages: [{ role: 'assistant', content: items }] }),
      [{ type: 'text', text: 'x' }, called],
    ],
    responses: [
      responsesDialect,
      (items) => ({ model: 'm', input: items }),
      [
        { role: 'assistant', content: 'x' },
        { type: 'function_call', call_id: 'c', name: 'look', arguments: '{}' },
      ],
    ],
  };
  const iterate = Array.prototype[Symbol.iterator];
  for (const [name, [wire, ask, kinds]] of Object.entries(asked))
    for (const kind of kinds) {
      const body = ask(Array(count).fill(kind));
      let passed = 0;
      Array.prototype[Symbol.iterator] = function (this: unknown[]) {
        passed += this.length;
        return iterate.call(this);
      };
      try {
        wire.translate(body as any);
      } finally {
        Array.prototype[Symbol.iterator] = iterate;
      }
      assert.ok(passed < 20 * count, `${name}: ${passed} items passed for ${count} of ${JSON.stringify(kind)}`);
    }
});

test(`each vendor's client reads from a stream what would have come whole (seed ${SEED})`, async () => {
  await fc.assert(
    fc.asyncProperty(answer, async (it) => {
      const [messages, ask] = ASKS.messages as [Dialect, any];
      const message = answersFor(messages, ask).whole(wholeOf(it)) as any;
      const anthropic = new Anthropic(answeredWith(streamTextOf(messages, ask, chunksOf(it))));
      const read = JSON.parse(JSON.stringify(await anthropic.messages.stream(ask).finalMessage()));
      assert.deepEqual(
        [read.id, read.content, read.stop_reason, read.usage],
        [message.id, message.content, message.stop_reason, message.usage],
      );

      const [responses, asked] = ASKS.responses as [Dialect, any];
      const response = answersFor(responses, asked).whole(wholeOf(it)) as any;
      const openai = new OpenAI(answeredWith(streamTextOf(responses, asked, chunksOf(it))));
      const { output, status, usage } = await openai.responses.stream(asked).finalResponse();
      const plain = (items: any) =>
        JSON.parse(JSON.stringify(items), (key, value) => (key.startsWith('parsed') ? undefined : value));
      assert.deepEqual([plain(output), status, usage], [response.output, response.status, response.usage]);
    }),
    { numRuns: length(40, 100) },
  );
});

test(`what an answer called comes back under its ids, with its results beside it (seed ${SEED})`, () => {
  check(
    fc.property(answer, (it) => {
      const [messages, ask] = ASKS.messages as [Dialect, any];
      const { content } = answersFor(messages, ask).whole(wholeOf(it)) as any;
      const used = content.filter(({ type }: any) => type === 'tool_use');
      const results = used.map(({ id }: any) => ({ type: 'tool_result', tool_use_id: id, content: `of ${id}` }));
      const told = messages.translate({
        ...ask,
        messages: [...ask.messages, { role: 'assistant', content }, { role: 'user', content: results }],
      }).chat;

      const [responses, asked] = ASKS.responses as [Dialect, any];
      const { output } = answersFor(responses, asked).whole(wholeOf(it)) as any;
      const outputs = output
        .filter(({ type }: any) => /_call$/.test(type))
        .map(({ type, call_id }: any) => ({ type: `${type}_output`, call_id, output: `of ${call_id}` }));
      const input = [{ role: 'user', content: 'hi' }, ...output, ...outputs];
      const said = responses.translate({ ...asked, input }).chat;

      for (const [chat, isCustom] of [
        [told, () => false],
        [said, (name: string) => name === 'patch'],
      ] as const) {
        const { calls, thought, said } = toldBy(chat.messages as any);
        const expected = it.calls.map(({ name, input }, i) => [
          name,
          isCustom(name) ? { input: JSON.stringify(input) } : input,
          `of call_${i}`,
        ]);
        assert.deepEqual(calls, expected);
        assert.deepEqual([thought, said], [it.reasoning ? [it.reasoning] : [], it.content ? [it.content] : []]);
      }
    }),
  );
});

test('parallel calls that share an index and have no id are calls of their own', () => {
  const tools = (['look', 'write'] as const).map((name, i) => ({
    index: 0,
    id: '',
    type: 'function',
    function: { name, arguments: JSON.stringify({ a: i }) },
  }));
  const message = { role: 'assistant', content: null, tool_calls: tools };
  const whole = { ...head, choices: [{ index: 0, message, finish_reason: 'tool_calls' }], usage };
  const chunks = [
    ...tools.map((it) => ({ ...head, choices: [{ index: 0, delta: { tool_calls: [it] }, finish_reason: null }] })),
    { ...head, choices: [{ index: 0, delta: {}, finish_reason: 'tool_calls' }] },
  ];
  const [messages, asked] = ASKS.messages as [Dialect, object];
  const blocks = (answersFor(messages, asked).whole(whole) as any).content;
  assert.deepEqual(
    blocks.map(({ name, input }: any) => [name, input]),
    [
      ['look', { a: 0 }],
      ['write', { a: 1 }],
    ],
  );
  assert.notEqual(blocks[0].id, blocks[1].id);
  const [responses, order] = ASKS.responses as [Dialect, object];
  const { output } = answersFor(responses, order).whole(whole) as any;
  const last = streamOf(responses, order, chunks).at(-1);
  for (const items of [output, last.response.output])
    assert.deepEqual(
      items.map((it: any) => [it.name, it.arguments]),
      [
        ['look', '{"a":0}'],
        ['write', '{"a":1}'],
      ],
    );
  const starts = streamOf(messages, asked, chunks).filter(({ type }) => type === 'content_block_start');
  assert.deepEqual(
    starts.map((it) => it.content_block.name),
    ['look', 'write'],
  );
});

test('a call whose pieces come under other ids than its beginning is one call', () => {
  const delta = (it: object) => ({
    ...head,
    choices: [{ index: 0, delta: { tool_calls: [it] }, finish_reason: null }],
  });
  const call = (id: string, name: string, args: string) => [
    delta({ index: 0, id, type: 'function', function: { name, arguments: '' } }),
    ...[...args, ''].map((it, i) => delta({ index: 0, id: `${id}_${i}`, function: { name: '', arguments: it } })),
  ];
  const chunks = [
    ...call('a', 'look', '{"a":0}'),
    ...call('b', 'write', '{"a":{"b":1}}'),
    { ...head, choices: [{ index: 0, delta: {}, finish_reason: 'tool_calls' }] },
  ];
  const [responses, order] = ASKS.responses as [Dialect, object];
  assert.deepEqual(
    streamOf(responses, order, chunks)
      .at(-1)
      .response.output.map((it: any) => [it.call_id, it.name, it.arguments]),
    [
      ['a', 'look', '{"a":0}'],
      ['b', 'write', '{"a":{"b":1}}'],
    ],
  );
});

test('ids that come from a key are as different as the keys, and as the calls of an answer', () => {
  const tools = ['look', 'write'].map((name, index) => ({ index, id: '', function: { name, arguments: '{}' } }));
  const choices = [{ index: 0, message: { content: null, tool_calls: tools }, finish_reason: 'tool_calls' }];
  const long = 'k'.repeat(128);
  const keys = [long, `${long.slice(1)}j`, `${long.slice(0, 100)}`, 'step-1.1', 'step-11', 'step 11', '/', '?'];
  for (const [wire, order] of Object.values(ASKS)) {
    const { kept } = wire.translate(order as any);
    const ids = keys.flatMap((key) => {
      const { id, content, output } = wire.answers(kept, key).whole({ choices, usage }) as any;
      return [id, ...(content ?? output).map((it: any) => it.call_id ?? it.id)];
    });
    assert.equal(new Set(ids).size, 3 * keys.length, ids.join(' '));
    for (const it of ids) assert.match(it, /^[a-z]+_[A-Za-z0-9_-]+$/);
  }
});

test('only the first message of a chat is a system message: many templates allow no other', () => {
  const said = (role: string) => (content: unknown) => ({ role, content });
  const [system, user, assistant] = [said('system'), said('user'), said('assistant')] as const;
  const result = [{ type: 'tool_result', tool_use_id: 'c', content: 'found' }];
  const call = [{ type: 'tool_use', id: 'c', name: 'look', input: {} }];
  const marked = { type: 'text', text: 'marked', cache_control: { type: 'ephemeral' } };
  const cases: [messages: unknown[], roles: string[], texts: RegExp][] = [
    [[user('ask'), system('told')], ['system', 'user'], /ask\n\n<system-reminder>\n\ntold\n\n<\/system-reminder>/],
    [[system('also'), user('ask')], ['system', 'user'], /be brief\n\nalso/],
    [[user('ask'), assistant('say'), system('told'), user('go')], ['system', 'user', 'assistant', 'user'], /told.*go/s],
    [
      [user('ask'), assistant(call), user(result), system('told'), system([marked])],
      ['system', 'user', 'assistant', 'tool', 'user'],
      /told.*cache_control/s,
    ],
    [[user('ask'), user('more')], ['system', 'user', 'user'], /ask.*more/s],
  ];
  for (const [messages, roles, texts] of cases) {
    const { chat } = messagesDialect.translate({ model: 'm', system: 'be brief', messages });
    assert.deepEqual(
      chat.messages.map(({ role }) => role),
      roles,
    );
    assert.match(
      chat.messages.map(({ content }) => (typeof content === 'string' ? content : JSON.stringify(content))).join(),
      texts,
    );
  }
  const input = [
    { role: 'user', content: 'ask' },
    { role: 'developer', content: 'told' },
  ];
  const { chat } = responsesDialect.translate({ model: 'm', instructions: 'be brief', input });
  assert.deepEqual(
    chat.messages.map(({ role }) => role),
    ['system', 'user'],
  );
});
