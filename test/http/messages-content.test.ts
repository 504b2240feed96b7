import assert from 'node:assert/strict';
import test from 'node:test';
import Anthropic from '@anthropic-ai/sdk';
import type { BetaMessageStreamParams } from '@anthropic-ai/sdk/resources/beta/messages';
import { failure } from '../helper/upstream.ts';
import { answers, bodyOf, call, HI, ASKED as MESSAGE, MESSAGES_TOOL, open } from './dialects-shared.ts';
import { COST, latest, message, open as openNative, sent, usd } from './native-shared.ts';

// What Anthropic's clients send beside text and images: threads, references to tools, documents, and Anthropic's own tools that
// the client runs. On routes to a server of this API it passes; elsewhere it is text, or a refusal that a client can act on.

type Beta = BetaMessageStreamParams;
const PDF = Buffer.from('%PDF-1.7 a few pages').toString('base64');
const TITLED = { title: 'Rules', context: 'of the house' };
const DOCUMENTS = {
  base64: { type: 'document', source: { type: 'base64', media_type: 'application/pdf', data: PDF }, ...TITLED },
  url: { type: 'document', source: { type: 'url', url: 'https://example.test/a.pdf' } },
  text: { type: 'document', source: { type: 'text', media_type: 'text/plain', data: 'No smoking.' }, ...TITLED },
  content: { type: 'document', source: { type: 'content', content: [{ type: 'text', text: 'No shoes.' }] } },
  flat: { type: 'document', source: { type: 'content', content: 'No dogs.' }, citations: { enabled: true } },
};
const SEEN = {
  base64: 'Rules\n\nof the house\n\n[A document, PDF, 20 bytes: this model cannot read it.]',
  url: '[A document at https://example.test/a.pdf: this model cannot read it.]',
  text: 'Rules\n\nof the house\n\nNo smoking.',
  content: 'No shoes.',
  flat: 'No dogs.',
};
const REFERENCE = { type: 'tool_reference', tool_name: 'weather' };

/** A conversation in which a tool's result, and the user after it, give these blocks. */
const giving = (...blocks: object[]) => [
  { role: 'user' as const, content: 'look' },
  { role: 'assistant' as const, content: [{ type: 'tool_use' as const, id: 'toolu_1', name: 'read', input: {} }] },
  {
    role: 'user' as const,
    content: [{ type: 'tool_result' as const, tool_use_id: 'toolu_1', content: blocks }, ...blocks] as never[],
  },
];

test('the SDK’s tool runner goes on without a thread, translated and passed on as it came', async (t) => {
  const run = (anthropic: Anthropic, model: string) =>
    anthropic.beta.messages.toolRunner({
      ...MESSAGE,
      model,
      tools: [{ ...MESSAGES_TOOL, run: () => 'sunny', parse: (it: unknown) => it }],
    });
  const { purser, anthropic } = await open(t);
  purser.upstream.handle = (asked, response) => {
    const isFirst = (asked.body.messages as unknown[]).length === 1;
    const called = { content: null, tool_calls: [call('call_1', 'weather', '{}')] };
    return answers(isFirst ? called : { content: 'It is sunny.' }, isFirst ? 'tool_calls' : 'stop')(asked, response);
  };
  const last = await run(anthropic, 'chat');
  assert.deepEqual(last.content, [{ type: 'text', text: 'It is sunny.' }]);
  assert.equal(purser.upstream.calls.length, 2, 'one for each step, although the first request had a thread');
  assert.equal(bodyOf(purser, 1).messages.at(-1).content, 'sunny');

  const { purser: native, anthropic: speaking } = await openNative(t);
  native.upstream.handle = message;
  let steps = 0;
  for await (const it of run(speaking, 'own')) {
    assert.equal(it.stop_reason, 'tool_use');
    if (++steps === 2) break;
  }
  assert.equal(native.upstream.calls.length, 2);
  assert.equal(sent(native).body.thread, undefined);
});

test('a thread is refused with the details that the runner reads', async (t) => {
  const { purser, anthropic } = await open(t);
  const create = (thread: object) => anthropic.messages.create({ ...MESSAGE, thread } as never);
  for (const thread of [{ type: 'create' }, { type: 'continue', previous_message_id: 'msg_1' }]) {
    const refused = await create(thread).catch((error: unknown) => error);
    assert(refused instanceof Anthropic.ThreadUnsupportedRequestError, String(refused));
    const { details } = (refused.error as { error: { details: object } }).error;
    assert.deepEqual(details, { error_code: 'thread_unsupported_request', unsupported: ['thread'] });
  }
  assert.deepEqual(purser.upstream.calls, []);
});

test('documents and references to tools are text in a chat completion, in a user’s turn and in a result', async (t) => {
  const { purser, anthropic } = await open(t);
  for (const [name, document] of Object.entries(DOCUMENTS)) {
    const seen = SEEN[name as keyof typeof SEEN];
    await anthropic.messages.create({ ...MESSAGE, messages: giving(document) });
    const { messages } = bodyOf(purser, -1);
    assert.deepEqual(
      messages.slice(2),
      [
        { role: 'tool', tool_call_id: 'toolu_1', content: seen },
        { role: 'user', content: seen },
      ],
      name,
    );
  }
  const found = { type: 'search_result', title: 'A', source: 'https://a.test', content: [{ type: 'text', text: 'b' }] };
  await anthropic.messages.create({ ...MESSAGE, messages: giving(REFERENCE, found) });
  const both = 'The tool weather is now available.\n\nA\n\nhttps://a.test\n\nb';
  assert.deepEqual(
    bodyOf(purser, -1)
      .messages.slice(2)
      .map(({ content }: { content: string }) => content),
    [both, both],
  );
});

test('a server of this API gets documents and references as they came, and a PDF holds the rest of the context', async (t) => {
  const { purser, gateway } = await openNative(t);
  purser.upstream.handle = message;
  const ask = async (blocks: object[], model = 'own') => {
    const body = { model, max_tokens: 100, messages: giving(...blocks) };
    const answer = await gateway.ask('POST', '/messages', { body });
    assert.equal(answer.status, 200, answer.text);
    if (model === 'own')
      assert.equal(answer.headers['x-purser-cost-usd'], usd(COST), 'it is charged by what the server counted');
    const { price } = await latest(purser);
    return { messages: sent(purser).body.messages, bound: price.bound_prompt_tokens, body };
  };
  const plain = await ask([{ type: 'text', text: 'No smoking.' }]);
  const { base64, url, ...readable } = DOCUMENTS;
  for (const it of [...Object.values(readable), REFERENCE]) {
    const { messages, bound, body } = await ask([it]);
    assert.deepEqual(messages, body.messages);
    assert(bound < plain.bound + 1000, `${bound}: what is text is bounded by its bytes`);
  }
  const pages = await ask([base64]);
  assert.deepEqual(pages.messages, pages.body.messages);
  assert.equal(pages.bound, 200_000, 'pages become images: bytes do not bound them');
  const marked = await ask([{ ...base64, cache_control: { type: 'ephemeral' } }], 'plain');
  assert.deepEqual(marked.messages, giving(base64), 'without its mark, which has no price there');
  const inside = (more: object) => ({
    type: 'document',
    source: { type: 'content', content: [{ type: 'text', text: 'No shoes.', ...more }] },
  });
  const within = await ask([inside({ cache_control: { type: 'ephemeral' } })], 'plain');
  assert.deepEqual(within.messages, giving(inside({})), 'nor inside a document');
  const fetched = await ask([url]);
  const unread = { type: 'text', text: SEEN.url };
  assert.deepEqual(fetched.messages, giving(unread), 'this model takes no addresses');
});

test('a document goes by its address where the model takes addresses', async (t) => {
  const { purser, gateway } = await openNative(t, {}, undefined, { image_urls: true });
  purser.upstream.handle = message;
  const body = { model: 'own', max_tokens: 100, messages: giving(DOCUMENTS.url) };
  assert.equal((await gateway.ask('POST', '/messages', { body })).status, 200);
  assert.deepEqual(sent(purser).body.messages, body.messages);
  assert.equal((await latest(purser)).price.bound_prompt_tokens, 200_000);
});

test('a document in the body does not stop a fail-over to a server of chat completions, nor one back', async (t) => {
  const { purser, other, gateway } = await openNative(t);
  const body = { model: 'both', max_tokens: 100, messages: giving(DOCUMENTS.base64) };
  purser.upstream.handle = failure(503);
  const translated = await gateway.ask('POST', '/messages', { body });
  assert.equal(translated.status, 200, translated.text);
  assert.deepEqual(sent({ upstream: other }).body.messages.at(-1), { role: 'user', content: SEEN.base64 });
  assert.doesNotMatch(sent({ upstream: other }).text, new RegExp(PDF));
  purser.upstream.handle = message;
  other.handle = failure(503);
  assert.equal((await gateway.ask('POST', '/messages', { body: { ...body, model: 'back' } })).status, 200);
  assert.deepEqual(sent(purser).body.messages, body.messages);
  const { price, charge_usd, hold_usd } = await latest(purser);
  assert.equal(price.bound_prompt_tokens, 200_000);
  assert(Number(charge_usd) <= Number(hold_usd));
});

test('malformed documents are refused by the name of their field', async (t) => {
  const { purser, gateway } = await openNative(t);
  const document = (source: unknown) => ({ type: 'document', source });
  for (const [block, words] of [
    [document({ type: 'base64', media_type: 'application/pdf' }), 'source.data: must be a string'],
    [document({ type: 'base64', data: 7 }), 'source.data: must be a string'],
    [document({ type: 'url', url: null }), 'source.url: must be a string'],
    [document({ type: 'text', data: ['a'] }), 'source.data: must be a string'],
    [document({ type: 'content', content: 7 }), 'source.content: must be an array'],
    [document({ type: 'content', content: [7] }), 'source.content.0: must be an object'],
    [document({ type: 'content', content: [{ type: 'document' }] }), 'source.content.0: a block of the type'],
    [document({ type: 'file', file_id: 'file_1' }), 'source: a document by its id is not offered'],
    [document({ type: 'carrier pigeon' }), 'source.type: must be'],
    [document(null), 'source.type: must be'],
    [document([]), 'source.type: must be'],
    [{ type: 'tool_reference' }, 'tool_name: must be a string'],
  ] as const) {
    const body = { model: 'own', max_tokens: 100, messages: [{ role: 'user', content: [block] }] };
    const answer = await gateway.ask('POST', '/messages', { body });
    assert.equal(answer.status, 400, answer.text);
    assert(answer.body.error.message.startsWith(`messages.0.content.0.${words}`), answer.text);
  }
  assert.deepEqual(purser.upstream.calls, []);
});

/** Anthropic’s own tools that the client runs, in all their versions. */
const CLIENT_TOOLS = [
  { type: 'bash_20250124', name: 'bash' },
  { type: 'text_editor_20250728', name: 'str_replace_based_edit_tool' },
  { type: 'memory_20250818', name: 'memory' },
  { type: 'computer_20251124', name: 'computer', display_width_px: 1024, display_height_px: 768 },
] satisfies Beta['tools'];

test('Anthropic’s tools that the client runs pass to a server that knows them, and their tokens are held', async (t) => {
  const { purser, anthropic, gateway } = await openNative(t);
  purser.upstream.handle = message;
  const asked = { ...MESSAGE, model: 'own', max_tokens: 100 };
  await anthropic.beta.messages.create({ ...asked, tools: [{ ...MESSAGES_TOOL, name: 'bash' }] });
  const plain = (await latest(purser)).price.bound_prompt_tokens;
  for (const tool of CLIENT_TOOLS) {
    const betas = ['computer-use-2025-11-24', 'advanced-tool-use-2025-11-20'];
    await anthropic.beta.messages.create({ ...asked, tools: [tool], betas });
    assert.deepEqual(sent(purser).body.tools, [tool]);
    assert.equal(sent(purser).headers['anthropic-beta'], betas.join(','));
    const { price } = await latest(purser);
    assert(price.bound_prompt_tokens > plain + 1500, 'Anthropic counts up to 735 tokens for one');
  }
  await anthropic.beta.messages.create({ ...asked, tools: [...CLIENT_TOOLS] });
  assert((await latest(purser)).price.bound_prompt_tokens > plain + 4 * 1500);
  const body = { ...asked, tools: CLIENT_TOOLS };
  assert.equal((await gateway.ask('POST', '/messages/count_tokens', { body })).status, 200);
});

test('elsewhere they are refused in words that are true, and a fail-over leaves that server out', async (t) => {
  const { purser, other, gateway } = await openNative(t);
  const ask = (model: string, tools: unknown[] = CLIENT_TOOLS) =>
    gateway.ask('POST', '/messages', { body: { ...MESSAGE, model, tools } });
  purser.upstream.handle = failure(503);
  const failed = await ask('both');
  assert.deepEqual([failed.status, failed.body.error.type], [503, 'overloaded_error'], failed.text);
  assert.deepEqual(other.calls, [], 'it does not know these tools');
  purser.upstream.handle = message;
  assert.equal((await ask('back')).status, 200);
  assert.deepEqual(other.calls, []);

  const { gateway: plain, purser: translating } = await open(t);
  const refused = await plain.ask('POST', '/messages', { body: { ...MESSAGE, messages: HI, tools: CLIENT_TOOLS } });
  assert.deepEqual([refused.status, refused.body.error.type], [400, 'invalid_request_error']);
  assert.match(refused.body.error.message, /^tools\.0: .*the schema of "bash".*input_schema/);
  assert.doesNotMatch(refused.body.error.message, /run this itself/);
  assert.deepEqual(translating.upstream.calls, []);
  const there = await ask('own', [{ type: 'web_search_20250305', name: 'web_search' }]);
  assert.match(there.body.error.message, /the model server would run this itself/);
  const unnamed = await ask('own', [{ type: 'bash_20250124' }]);
  assert.match(unnamed.body.error.message, /tools\.0\.name: must be a string/);
});
