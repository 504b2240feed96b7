import assert from 'node:assert/strict';
import test from 'node:test';
import { responsesDialect } from '../../src/http/dialects/responses.ts';
import { codex } from '../fixtures/agents.ts';
import { counted, DONE, streaming } from '../helper/sse.ts';
import {
  answers,
  bodyOf,
  call,
  callDelta,
  delta,
  HI,
  open,
  RESPONSES_TOOL,
  twoCalls,
  USAGE,
} from './dialects-shared.ts';

test('a response is answered whole', async (t) => {
  const { purser, openai } = await open(t);
  purser.upstream.handle = answers(
    { content: 'It is {"a":1}', tool_calls: [call('call_1', 'weather', '{"city":"Rome"}')] },
    'tool_calls',
  );
  const { data, response } = await openai.responses
    .create({
      model: 'chat',
      instructions: 'Be brief.',
      input: 'hi',
      tools: [RESPONSES_TOOL],
      store: false,
      max_output_tokens: 50,
      reasoning: { effort: 'low', summary: 'auto' },
      text: { format: { type: 'json_schema', name: 'a', schema: { type: 'object' }, strict: true }, verbosity: 'low' },
    })
    .withResponse();
  assert.equal(data.output_text, 'It is {"a":1}');
  assert.deepEqual(JSON.parse(JSON.stringify(data.output)), [
    {
      id: 'msg_chatcmpl-7_0',
      type: 'message',
      role: 'assistant',
      status: 'completed',
      content: [{ type: 'output_text', text: 'It is {"a":1}', annotations: [], logprobs: [] }],
    },
    {
      id: 'fc_chatcmpl-7_1',
      type: 'function_call',
      call_id: 'call_1',
      name: 'weather',
      status: 'completed',
      arguments: '{"city":"Rome"}',
    },
  ]);
  assert.deepEqual([data.id, data.status, (data as any).store], ['resp_chatcmpl-7', 'completed', false]);
  assert.deepEqual(data.usage, {
    input_tokens: 100,
    input_tokens_details: { cache_write_tokens: 10, cached_tokens: 60 },
    output_tokens: 20,
    output_tokens_details: { reasoning_tokens: 8 },
    total_tokens: 120,
  });
  assert.equal(response.headers.get('x-purser-cost-usd'), '0.00024');
  const { model: _, messages, tools, stream: __, ...rest } = bodyOf(purser, 0);
  assert.deepEqual(messages, [{ role: 'system', content: 'Be brief.' }, ...HI]);
  const { type, ...called } = RESPONSES_TOOL;
  assert.deepEqual(tools, [{ type, function: called }]);
  assert.deepEqual(rest, {
    max_tokens: 50,
    reasoning_effort: 'low',
    verbosity: 'low',
    response_format: { type: 'json_schema', json_schema: { name: 'a', schema: { type: 'object' }, strict: true } },
  });
});

test('a streamed response with parallel calls adds up for the SDK, and counts its events', async (t) => {
  const { purser, openai } = await open(t);
  purser.upstream.handle = twoCalls;
  const numbers: number[] = [];
  const stream = openai.responses.stream({ model: 'chat', input: 'hi', tools: [RESPONSES_TOOL] });
  for await (const it of stream) numbers.push(it.sequence_number);
  assert.deepEqual(
    numbers,
    numbers.map((_, i) => i),
  );
  const { output, usage, status } = await stream.finalResponse();
  assert.deepEqual(
    output.map((it) => (it.type === 'function_call' ? [it.call_id, it.name, it.arguments] : it.type)),
    ['reasoning', 'message', ['call_a', 'weather', '{"city":"Paris"}'], ['call_b', 'weather', '{"city":"Rome"}']],
  );
  assert.deepEqual([status, usage?.total_tokens], ['completed', 120]);
});

test('two rounds of Codex: namespaces and custom tools come back as they were sent', async (t) => {
  const { purser, gateway } = await open(t);
  purser.upstream.handle = streaming(
    callDelta(0, { id: 'call_1', name: 'apply_patch', arguments: '{"input":"*** Begin' }),
    callDelta(0, { arguments: ' Patch"}' }),
    callDelta(1, { id: 'call_2', name: 'agents__spawn', arguments: '{"task":"x"}' }),
    delta({}, 'tool_calls'),
    counted(USAGE),
    DONE,
  );
  for (const body of codex('chat')) {
    const answer = await gateway.ask('POST', '/responses', { body });
    assert.equal(answer.status, 200, answer.text);
    const { output } = JSON.parse(
      answer.text.match(/data: (\{"type":"response.completed".*)\n/)?.[1] as string,
    ).response;
    assert.deepEqual(
      output.map(({ id: _, status: __, ...it }: any) => it),
      [
        { type: 'custom_tool_call', call_id: 'call_1', name: 'apply_patch', input: '*** Begin Patch' },
        { type: 'function_call', call_id: 'call_2', name: 'spawn', namespace: 'agents', arguments: '{"task":"x"}' },
      ],
    );
  }
  const last = bodyOf(purser, -1);
  assert.deepEqual(
    last.tools.map((it: any) => it.function.name),
    ['exec_command', 'apply_patch', 'agents__spawn'],
  );
  assert.match(last.tools[1].function.description, /grammar \(lark\):\nstart: "x"/);
  assert.deepEqual(
    last.messages.map((it: any) => it.role),
    ['system', 'user', 'assistant', 'tool', 'tool'],
  );
  assert.deepEqual(last.messages[2].tool_calls, [
    call('call_1', 'apply_patch', '{"input":"*** Begin Patch"}'),
    call('call_2', 'agents__spawn', '{"task":"x"}'),
  ]);
  assert.equal(last.messages[2].reasoning_content, 'First the patch.');
});

test('an image is asked for in a detail that chat completions have', () => {
  const details = ['low', 'high', 'auto', 'original', null, undefined];
  const content = details.map((detail) => ({ type: 'input_image', image_url: 'data:image/png;base64,', detail }));
  const { messages } = responsesDialect.translate({ model: 'chat', input: [{ role: 'user', content }] }).chat;
  assert.deepEqual(
    messages.flatMap(({ content }) => (content as any[]).map((it) => it.image_url.detail)),
    ['low', 'high', 'auto', 'high', undefined, undefined],
  );
});

test('tools that an item brings are tools as all others', async (t) => {
  const { purser, gateway } = await open(t);
  const custom = { type: 'custom', name: 'exec', description: 'Runs code.' };
  const group = { type: 'namespace', name: 'functions', tools: [custom, { type: 'web_search' }] };
  const brings = (tools: object[]) => ({ type: 'additional_tools', role: 'developer', tools });
  const input = [brings([group]), { role: 'user', content: 'hi' }, brings([RESPONSES_TOOL])];
  const asked = { model: 'chat', input, tools: [{ ...RESPONSES_TOOL, description: 'old' }], tool_choice: 'required' };
  const called = call('call_1', 'functions__exec', '{"input":"1 + 1"}');
  purser.upstream.handle = answers({ content: null, tool_calls: [called] }, 'tool_calls');
  const { status, body, text } = await gateway.ask('POST', '/responses', { body: asked });
  assert.equal(status, 200, text);
  const { id: _, status: __, ...it } = body.output[0];
  const item = { type: 'custom_tool_call', call_id: 'call_1', name: 'exec', namespace: 'functions', input: '1 + 1' };
  assert.deepEqual(it, item);
  const { tools, tool_choice: choice, messages } = bodyOf(purser, -1);
  const { type, ...weather } = RESPONSES_TOOL;
  assert.deepEqual([tools[0], tools[1].function.name], [{ type, function: weather }, 'functions__exec']);
  assert.deepEqual([tools.length, choice, messages], [2, 'required', HI]);
  const refused = { ...asked, input: [brings([{ type: 'code_interpreter' }]), ...input] };
  const { body: refusal } = await gateway.ask('POST', '/responses', { body: refused });
  assert.match(refusal.error.message, /^input\.0\.tools\.0: "code_interpreter"/);
});

test('without a search for tools, those that it has found are tools as all others', async (t) => {
  const { purser, gateway } = await open(t);
  purser.upstream.handle = answers({ content: 'sunny' });
  const found = { call_id: 'c', execution: 'client', status: 'completed' };
  const input = [
    { role: 'user', content: 'hi' },
    { type: 'tool_search_call', ...found, arguments: { query: 'weather' } },
    { type: 'tool_search_output', ...found, tools: [RESPONSES_TOOL] },
  ];
  const search = { type: 'tool_search', execution: 'client', description: 'Finds tools.', parameters: {} };
  const ask = (tool: object) => gateway.ask('POST', '/responses', { body: { model: 'chat', input, tools: [tool] } });
  assert.equal((await ask(search)).status, 200);
  const { tools, messages } = bodyOf(purser, -1);
  assert.deepEqual([tools.map((it: any) => it.function.name), messages], [[RESPONSES_TOOL.name], HI]);
  for (const execution of ['server', undefined]) assert.equal((await ask({ ...search, execution })).status, 400);
});
