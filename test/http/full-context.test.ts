import assert from 'node:assert/strict';
import test from 'node:test';
import Anthropic from '@anthropic-ai/sdk';
import OpenAI from 'openai';
import { event, said, streaming } from '../helper/sse.ts';
import { failure } from '../helper/upstream.ts';
import { HI, ASKED as MESSAGE, open } from './dialects-shared.ts';
import { ASKED as NATIVE, named, open as openNative, RESPONSE_EVENTS, START } from './native-shared.ts';

// A prompt that does not fit the context of its model: how model servers say it, and how it reaches the clients, which then
// compact their conversation.

const CHAT = { model: 'chat', messages: HI, max_tokens: 100 };
const RESPONSE = { model: 'chat', input: 'hi' };
const LENGTH = "This model's maximum context length is 32768 tokens. However, ";
const refused = (asked: Promise<unknown>) => asked.catch((error: unknown) => error as never);

/** The errors of model servers, with the status of the answer. */
const TOLD: Record<string, [status: number, body: object]> = {
  'OpenAI, by its code': [
    400,
    {
      error: {
        message: 'Too many.',
        type: 'invalid_request_error',
        param: 'messages',
        code: 'context_length_exceeded',
      },
    },
  ],
  'OpenAI’s Responses': [
    400,
    {
      error: {
        message: 'Your input exceeds the context window of this model. Please adjust your input and try again.',
        type: 'invalid_request_error',
        param: 'input',
        code: null,
      },
    },
  ],
  'vLLM, flat': [
    400,
    {
      object: 'error',
      message: `${LENGTH}you requested 40000 tokens.`,
      type: 'BadRequestError',
      param: null,
      code: 400,
    },
  ],
  'vLLM, nested': [
    400,
    {
      error: {
        message: `${LENGTH}your request has 40000 input tokens.`,
        type: 'BadRequestError',
        param: null,
        code: 400,
      },
    },
  ],
  'vLLM, the prompt alone': [
    400,
    {
      error: {
        message: 'The decoder prompt (length 40000) is longer than the maximum model length of 32768.',
        type: 'BadRequestError',
        code: 400,
      },
    },
  ],
  'llama.cpp, by its type': [
    400,
    { error: { code: 400, message: 'No.', type: 'exceed_context_size_error', n_ctx: 8192 } },
  ],
  'llama.cpp, earlier': [
    400,
    {
      error: {
        code: 400,
        message: 'the request exceeds the available context size, try increasing it',
        type: 'invalid_request_error',
      },
    },
  ],
  SGLang: [
    400,
    {
      object: 'error',
      message: "The input (40000 tokens) is longer than the model's context length (32768 tokens).",
      type: 'BadRequestError',
      param: null,
      code: 400,
    },
  ],
  Anthropic: [
    400,
    {
      type: 'error',
      error: { type: 'invalid_request_error', message: 'prompt is too long: 200251 tokens > 200000 maximum' },
    },
  ],
  'Anthropic, with the answer': [
    400,
    {
      type: 'error',
      error: {
        type: 'invalid_request_error',
        message: 'input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000',
      },
    },
  ],
  Moonshot: [
    400,
    {
      error: {
        message: 'Invalid request: Your request exceeded model token limit: 262144 (requested: 270000)',
        type: 'invalid_request_error',
      },
    },
  ],
  MiniMax: [
    400,
    { error: { message: 'invalid params, context window exceeds limit (2013)', type: 'bad_request_error' } },
  ],
  Qwen: [
    400,
    {
      error: {
        message: '<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 129024]',
        type: 'invalid_request_error',
      },
    },
  ],
  Ollama: [
    400,
    { error: { message: 'prompt too long; exceeded max context length by 918 tokens', type: 'invalid_request_error' } },
  ],
  Bedrock: [400, { error: { message: 'Input is too long for requested model.', type: 'invalid_request_error' } }],
  'as text alone': [422, { detail: `${LENGTH}no.` }],
};

for (const [name, [status, body]] of Object.entries(TOLD))
  test(`a full context is told to each client: ${name}`, async (t) => {
    const { purser, gateway, anthropic, openai } = await open(t);
    purser.upstream.handle = failure(status, body);
    for (const stream of [false, true])
      for (const asked of [
        openai.chat.completions.create({ ...CHAT, stream }),
        openai.responses.create({ ...RESPONSE, stream }),
      ]) {
        const error = await refused(asked);
        assert(error instanceof OpenAI.BadRequestError, String(error));
        assert.deepEqual([error.code, error.type], ['context_length_exceeded', 'invalid_request_error']);
      }
    for (const stream of [false, true]) {
      const error = await refused(anthropic.messages.create({ ...MESSAGE, stream }));
      assert(error instanceof Anthropic.BadRequestError, String(error));
      const { message } = (error.error as { error: { message: string } }).error;
      assert.match(message, /^prompt is too long/);
      if (name === 'Anthropic') assert.equal(message, 'prompt is too long: 200251 tokens > 200000 maximum');
    }
    const strict = await purser.chat(gateway.token);
    assert.deepEqual([strict.status, strict.body.error.code], [400, 'context_length_exceeded']);
    const { used_usd, held_usd } = await purser.budget(gateway.token);
    assert.deepEqual([used_usd, held_usd], ['0.00', '0.00']);
  });

test('a refusal about something else keeps its code', async (t) => {
  const { purser, gateway } = await open(t);
  for (const message of ['context_length must be positive', 'max_tokens must be at least 1, got -186.', 'No.']) {
    purser.upstream.handle = failure(400, { error: { message, type: 'BadRequestError', code: 400 } });
    assert.equal((await gateway.chat()).body.error.code, 'invalid_request', message);
  }
  purser.upstream.handle = failure(500, { error: { message: `${LENGTH}no.` } });
  assert.equal((await gateway.chat()).body.error.code, 'gateway_unavailable', 'the status of a fault stays one');
});

test('an error as the first event of a stream is the same refusal; in the middle it ends the stream with this code', async (t) => {
  const { purser, gateway } = await openNative(t);
  const error = { type: 'invalid_request_error', code: 'context_length_exceeded', message: 'Your input is too long.' };
  const failed = { type: 'response.failed', sequence_number: 2, response: { id: 'resp_1', status: 'failed', error } };
  const inMessages = { type: 'error', error: { type: 'invalid_request_error', message: 'prompt is too long: 9 > 8' } };

  purser.upstream.handle = streaming(...RESPONSE_EVENTS.slice(0, 2), named(failed));
  const response = { model: 'own', input: 'hi', stream: true };
  const early = await gateway.ask('POST', '/responses', { body: response });
  assert.deepEqual([early.status, early.body.error.code], [400, 'context_length_exceeded']);
  purser.upstream.handle = streaming(...RESPONSE_EVENTS.slice(0, 6), named(failed));
  const late = await gateway.ask('POST', '/responses', { body: response });
  assert.match(late.text, /event: response\.failed\ndata: .*"error":\{"code":"context_length_exceeded"/);

  purser.upstream.handle = streaming(START, named(inMessages));
  const early_ = await gateway.ask('POST', '/messages', { body: { ...NATIVE, stream: true } });
  assert.deepEqual([early_.status, early_.body.error.message], [400, 'prompt is too long: 9 > 8']);

  const { purser: plain, gateway: chats } = await open(t);
  plain.upstream.handle = streaming(said('he'), event({ error: { message: `${LENGTH}no.`, code: 400 } }));
  const [chat, message, translated] = await Promise.all([
    chats.stream({}).then((it) => it.rest()),
    chats.ask('POST', '/messages', { body: { ...MESSAGE, stream: true } }),
    chats.ask('POST', '/responses', { body: { ...RESPONSE, stream: true } }),
  ]);
  assert.match(chat, /"code":"context_length_exceeded"/);
  assert.match(message.text, /event: error\ndata: .*"message":"prompt is too long: The context of the model is full/);
  assert.match(translated.text, /event: response\.failed\ndata: .*"code":"context_length_exceeded"/);
  assert.doesNotMatch(chat, /Idempotency-Key|a new key is safe/, 'no advice about a key that was not sent');
});
