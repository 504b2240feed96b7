import assert from 'node:assert/strict';
import test from 'node:test';
import type OpenAI from 'openai';
import { counted, DONE, FINISHED, said, streaming } from '../helper/sse.ts';
import { completion } from '../helper/upstream.ts';
import { HI, open, USAGE } from './dialects-shared.ts';

// `usage: {include: true}`, by which OpenRouter's clients ask for the cost in the body of the answer.

const CHAT = { model: 'chat', messages: HI, max_tokens: 100 };
const ASKED = { ...CHAT, usage: { include: true } };
/** 0.0001 a request, 100 tokens of prompt and 20 of the answer. */
const COST = 0.00024;
type Costed = OpenAI.CompletionUsage & { cost?: number };

test('an answer has its charge in its usage, also when it is replayed', async (t) => {
  const { purser, gateway, openai } = await open(t);
  purser.upstream.handle = completion({ ...USAGE, cost: 7 });
  const { usage } = await openai.chat.completions.create(ASKED);
  assert.equal((usage as Costed).cost, COST, 'not what the model server calls its cost');
  assert.equal((await purser.budget(gateway.token)).used_usd, String(COST));
  const { cost: _, ...rest } = usage as Costed;
  assert.deepEqual(rest, USAGE, 'the rest as the model server counted it');
  assert.deepEqual(Object.keys(purser.upstream.calls[0]?.body ?? {}).sort(), [
    'max_tokens',
    'messages',
    'model',
    'stream',
  ]);
  const first = await gateway.chat({ usage: { include: true } }, 'k');
  const again = await gateway.chat({ usage: { include: true } }, 'k');
  assert.deepEqual([again.headers['idempotent-replayed'], again.text], ['true', first.text]);
  assert.equal(first.body.usage.cost, COST);
});

test('without it an answer stays as the model server wrote it', async (t) => {
  const { purser, gateway } = await open(t);
  purser.upstream.handle = completion({ ...USAGE, cost: 7 });
  for (const usage of [undefined, null, {}, { include: false }, { include: null }])
    assert.equal((await gateway.chat({ usage })).body.usage.cost, 7, JSON.stringify(usage));
  for (const usage of [true, { include: 1 }, { include: true, other: 1 }]) {
    const refused = await gateway.chat({ usage });
    assert.deepEqual([refused.status, refused.body.error.code], [400, 'invalid_request'], JSON.stringify(usage));
  }
  const strict = await purser.chat(gateway.token, { usage: { include: true } });
  assert.deepEqual([strict.status, strict.body.error.code], [400, 'unsupported_parameter']);
});

test('a stream ends with one chunk of usage and its cost, whatever the model server sends', async (t) => {
  const { purser, gateway, openai } = await open(t);
  const finished = JSON.parse(FINISHED.slice('data: '.length));
  const within = `data: ${JSON.stringify({ ...finished, usage: USAGE })}\n\n`;
  for (const [name, steps] of Object.entries({
    apart: [said('he'), said('llo'), FINISHED, counted(USAGE), DONE],
    'with the last text': [said('hello'), within, DONE],
    'behind a comment': [':\n\n', said('hello'), FINISHED, counted(USAGE), DONE],
  }))
    for (const more of [{}, { stream_options: { include_usage: true } }]) {
      purser.upstream.handle = streaming(...steps);
      const chunks: OpenAI.ChatCompletionChunk[] = [];
      for await (const it of await openai.chat.completions.create({ ...ASKED, ...more, stream: true })) chunks.push(it);
      const last = chunks.at(-1) as OpenAI.ChatCompletionChunk;
      assert.deepEqual([last.choices, (last.usage as Costed)?.cost], [[], COST], name);
      assert.deepEqual([last.id, last.object, last.model], ['chatcmpl-test', 'chat.completion.chunk', 'real/chat']);
      const { prompt_tokens, completion_tokens, total_tokens, prompt_tokens_details } = last.usage as Costed;
      assert.deepEqual([prompt_tokens, completion_tokens, total_tokens], [100, 20, 120]);
      assert.deepEqual(prompt_tokens_details, USAGE.prompt_tokens_details);
      const alone = chunks.filter(({ choices, usage }) => usage && choices.length === 0);
      assert.equal(alone.length, 1, name);
    }
  const body = { ...ASKED, stream: true };
  const first = await gateway.streamed(body, 'k');
  const again = await gateway.streamed(body, 'k');
  assert.deepEqual([again.headers['idempotent-replayed'], again.text], ['true', first.text]);
  assert.match(first.text, /"cost":0\.00024\}\}\n\ndata: \[DONE\]\n\n$/);
});

test('a large answer has it, too', async (t) => {
  const { purser, gateway } = await open(t);
  const content = 'word '.repeat(60_000);
  purser.upstream.handle = ({ body }, response) => {
    response.writeHead(200, { 'content-type': 'application/json' });
    const choices = [{ index: 0, message: { role: 'assistant', content }, finish_reason: 'stop' }];
    response.end(JSON.stringify({ id: 'c', object: 'chat.completion', model: body.model, choices, usage: USAGE }));
  };
  const { body } = await gateway.chat({ usage: { include: true } });
  assert.deepEqual([body.usage.cost, body.choices[0].message.content], [COST, content]);
});
