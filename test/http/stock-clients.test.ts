import assert from 'node:assert/strict';
import test, { type TestContext } from 'node:test';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateText, jsonSchema, Output, stepCountIs, tool } from 'ai';
import OpenAI from 'openai';
import { openModelServer } from '../helper/model-server.ts';
import { openTestServer } from '../helper/server.ts';
import type { Handler } from '../helper/upstream.ts';

// What stock clients send beside the plain cases of docs/clients.md, and what they are answered.

async function openGateway(t: TestContext) {
  const purser = await openTestServer(t);
  purser.upstream.handle = openModelServer().handle;
  const { token } = await purser.openWallet();
  const { body } = await purser.ask('POST', '/v1/router/key', { token, body: {} });
  const options = { baseURL: body.base_url as string, apiKey: body.api_key as string };
  const provider = createOpenAICompatible({ name: 'purser', supportsStructuredOutputs: true, ...options });
  return { purser, token, options, openai: new OpenAI(options), model: provider('chat') };
}

const HI = [{ role: 'user' as const, content: 'hi' }];
const CITY = { type: 'object' as const, properties: { city: { type: 'string' as const } } };
const WEATHER = {
  name: 'weather',
  description: 'The weather in a city.',
  parameters: CITY,
  parse: JSON.parse,
  function: ({ city }: { city: string }) => `Sunny in ${city}.`,
};
const TOOLS = [{ type: 'function' as const, function: WEATHER }];

/** A model that thinks aloud before it calls a tool, with all the members that model servers put into a message. */
const thinking: Handler = ({ body }, response) => {
  const isFirst = (body.messages as unknown[]).length === 1;
  const call = { id: 'call_1', type: 'function', function: { name: 'weather', arguments: '{"city":"Paris"}' } };
  const empty = { refusal: null, annotations: [], audio: null, function_call: null };
  const first = { content: null, reasoning_content: 'A tool knows.', reasoning: 'A tool knows.', tool_calls: [call] };
  const message = { role: 'assistant', ...empty, ...(isFirst ? first : { content: 'It is sunny.' }) };
  const choices = [{ index: 0, message, finish_reason: isFirst ? 'tool_calls' : 'stop' }];
  const usage = { prompt_tokens: 10, completion_tokens: 5, total_tokens: 15 };
  const answer = { id: 'c', object: 'chat.completion', created: 1, model: body.model, choices, usage };
  response.writeHead(200, { 'content-type': 'application/json' });
  response.end(JSON.stringify(answer));
};

test('what a model thought aloud can be sent back, as loops of tools do', async (t) => {
  const { purser, openai, model } = await openGateway(t);
  purser.upstream.handle = thinking;
  const ask = async (messages: OpenAI.ChatCompletionMessageParam[]) => {
    const { choices } = await openai.chat.completions.create({ model: 'chat', messages, tools: TOOLS });
    return (choices[0] as OpenAI.ChatCompletion.Choice).message;
  };
  const called = await ask(HI);
  const answered = await ask([...HI, called, { role: 'tool', tool_call_id: 'call_1', content: 'Sunny.' }]);
  const weather = tool({ inputSchema: jsonSchema<{ city: string }>(CITY), execute: WEATHER.function });
  const { text } = await generateText({ model, prompt: 'hi', tools: { weather }, stopWhen: stepCountIs(2) });
  assert.deepEqual([answered.content, text], ['It is sunny.', 'It is sunny.']);
  const sentBack = purser.upstream.calls.map(({ body }) => (body.messages as { reasoning_content?: string }[])[1]);
  assert.deepEqual(
    sentBack.map((it) => it?.reasoning_content),
    [undefined, 'A tool knows.', undefined, 'A tool knows.'],
  );
});

test('what was thought in another form than text is refused: bytes do not bound it', async (t) => {
  const { purser, openai } = await openGateway(t);
  for (const name of ['reasoning_content', 'reasoning']) {
    const messages = [...HI, { role: 'assistant' as const, content: 'a', [name]: [{ encrypted: 'a' }] }];
    const refused = await openai.chat.completions.create({ model: 'chat', messages }).catch((error: unknown) => error);
    assert(refused instanceof OpenAI.BadRequestError);
    assert.deepEqual([refused.code, refused.param], ['unsupported_parameter', `messages.1.${name}`]);
  }
  assert.deepEqual(purser.upstream.calls, []);
});

test('null is what a client says for a field that it leaves out', async (t) => {
  const { purser, openai } = await openGateway(t);
  const limits = { max_tokens: null, max_completion_tokens: null, n: null, stream: null, stream_options: null };
  const others = { stop: null, seed: null, tools: null as never, store: null, service_tier: null, audio: null };
  await openai.chat.completions.create({ model: 'chat', messages: HI, ...limits, ...others });
  const [{ body } = { body: {} }] = purser.upstream.calls;
  assert.deepEqual(body, { model: 'real/chat', messages: HI, stream: false, max_tokens: 1000 });
});

test('a schema reaches the model from the AI SDK', async (t) => {
  const { purser, model } = await openGateway(t);
  const schema = jsonSchema({ type: 'object', properties: { born: { type: 'integer' } } });
  const { output } = await generateText({ model, prompt: 'hi', output: Output.object({ schema }) });
  assert.deepEqual(output, { born: 1815 });
  assert.match(JSON.stringify(purser.upstream.calls[0]?.body.response_format), /"json_schema".*"born"/);
});

test('one Idempotency-Key does not serve a loop of tools; one made for each request does', async (t) => {
  const { purser, options, openai } = await openGateway(t);
  const body = { model: 'chat', messages: HI, tools: TOOLS };
  const headers = { 'Idempotency-Key': 'for all of it' };
  const refused = await openai.chat.completions
    .runTools(body, { headers })
    .finalContent()
    .catch((error: unknown) => error);
  assert(refused instanceof OpenAI.ConflictError);
  assert.equal(refused.code, 'idempotency_conflict');

  class Client extends OpenAI {
    override idempotencyHeader = 'Idempotency-Key';
  }
  const said = await new Client(options).chat.completions.runTools(body).finalContent();
  assert.equal(said, 'You said: Sunny in Ada.');
  assert.equal(purser.upstream.calls.length, 3);
});

test('the models are listed, and what speaks another API is told so at once', async (t) => {
  const { purser, openai } = await openGateway(t);
  const listed: string[] = [];
  for await (const { id } of openai.models.list()) listed.push(id);
  assert.deepEqual(listed, ['chat', 'flat', 'free', 'dear']);
  assert.equal((await openai.models.retrieve('flat')).id, 'flat');
  const refused = await openai.moderations.create({ input: 'hi' }).catch((error: unknown) => error);
  assert(refused instanceof OpenAI.NotFoundError);
  assert.equal(refused.code, 'not_found');
  assert.deepEqual(purser.upstream.calls, []);
});
