import assert from 'node:assert/strict';
import test from 'node:test';
import { openTestServer } from '../helper/server.ts';
import { assertNothingMoves, assertRefused } from './refused.ts';

const HI = '[{"role":"user","content":"hi"}]';

/** Members laid over a chat that would be answered, as JSON text; a member given here replaces the one of the chat. */
function chatWith(members: Record<string, string>): string {
  const all = { model: '"free"', messages: HI, ...members };
  return `{${Object.entries(all)
    .map(([name, json]) => `${JSON.stringify(name)}:${json}`)
    .join(',')}}`;
}

/** Asserts that every one of these is refused with `code`, and that no upstream and no book ever hears of it. */
async function assertAllRefused(t: test.TestContext, code: string, chats: string[], names?: RegExp): Promise<void> {
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet();
  await assertNothingMoves(purser, async () => {
    for (const [i, body] of chats.entries()) {
      const answer = await purser.ask('POST', '/v1/chat/completions', { token, key: `chat ${i}`, body });
      assertRefused(answer, 400, code, body);
      if (names) assert.match(answer.body.error.message, names);
    }
  });
}

test('a chat without messages that are objects is refused', async (t) => {
  const wrong = [
    '[]',
    'null',
    '"hi"',
    '1',
    '{"role":"user"}',
    '["hi"]',
    '[null]',
    '[1]',
    '[[]]',
    `[${HI}]`,
    '[{"role":"user"},true]',
  ];
  await assertAllRefused(
    t,
    'invalid_request',
    wrong.map((messages) => chatWith({ messages })),
    /\bmessages\b/,
  );
});

test('a chat with an output limit or a number of choices that is no whole number from 1 is refused', async (t) => {
  const wrong = ['0', '-1', '1.5', '"100"', 'true', '[1]', '{}', '9007199254740992', '1e400'];
  const chats = ['max_tokens', 'max_completion_tokens', 'n'].flatMap((name) =>
    wrong.map((it) => chatWith({ [name]: it })),
  );
  await assertAllRefused(t, 'invalid_request', chats, /max_tokens|max_completion_tokens|\bn\b/);
});

test('a chat with more than 128 choices is refused', async (t) => {
  await assertAllRefused(t, 'invalid_request', [chatWith({ n: '129' })], /\bn\b/);
});

test('a chat that asks to be streamed is refused by a code of its own', async (t) => {
  await assertAllRefused(t, 'streaming_not_supported', [chatWith({ stream: 'true' })]);
});

test('a chat whose stream is neither true nor false is refused', async (t) => {
  await assertAllRefused(
    t,
    'invalid_request',
    ['"true"', '"false"', '0', '1', '{}'].map((stream) => chatWith({ stream })),
    /\bstream\b/,
  );
});

test('a chat with a parameter that is not priced is refused and names it, inherited names among them', async (t) => {
  const unpriced: Record<string, string> = {
    stream_options: '{"include_usage":true}',
    web_search_options: '{}',
    audio: '{"voice":"a","format":"mp3"}',
    prediction: '{"type":"content","content":"a"}',
    background: 'true',
    previous_response_id: '"resp_1"',
    store: 'true',
    service_tier: '"priority"',
    modalities: '["text","audio"]',
    extra: '1',
    MODEL: '"free"',
    constructor: '{}',
    prototype: '{}',
    toString: '1',
  };
  Object.defineProperty(unpriced, '__proto__', { value: '{}', enumerable: true });
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet();
  await assertNothingMoves(purser, async () => {
    for (const [name, json] of Object.entries(unpriced)) {
      const members = Object.defineProperty({}, name, { value: json, enumerable: true });
      const body = `{"model":"free","messages":${HI},${JSON.stringify(name)}:${members[name as never]}}`;
      const answer = await purser.ask('POST', '/v1/chat/completions', { token, key: `chat ${name}`, body });
      assertRefused(answer, 400, 'unsupported_parameter', name);
      assert.match(answer.body.error.message, new RegExp(name));
    }
  });
});

test('a chat with what bytes do not bound is refused: images, sound, files, the provider’s own tools', async (t) => {
  const contents = [
    '[{"type":"image_url","image_url":{"url":"https://a/b.png"}}]',
    '[{"type":"text","text":"a"},{"type":"input_audio","input_audio":{"data":"","format":"wav"}}]',
    '[{"type":"file","file":{"file_id":"f"}}]',
    '[{}]',
    '["a"]',
    '[null]',
  ].map((content) => chatWith({ messages: `[{"role":"user","content":${content}}]` }));
  const spoken = chatWith({ messages: '[{"role":"assistant","audio":{"id":"a"}}]' });
  const tools = ['[{"type":"web_search"}]', '[{}]', '[null]', '["a"]'].map((it) => chatWith({ tools: it }));
  await assertAllRefused(t, 'unsupported_parameter', [...contents, spoken, ...tools]);
});

test('a chat whose tools are no list is refused', async (t) => {
  await assertAllRefused(
    t,
    'invalid_request',
    ['{}', '"a"', '1'].map((tools) => chatWith({ tools })),
    /\btools\b/,
  );
});

test('a chat with a model that is not offered is a 404, whatever the name looks like', async (t) => {
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet();
  const names = [
    'none',
    'unpriced',
    'FREE',
    ' free',
    'free\u0000',
    '../free',
    'constructor',
    '__proto__',
    '\ud800',
    'a'.repeat(5000),
  ];
  await assertNothingMoves(purser, async () => {
    for (const model of names)
      assertRefused(await purser.chat(token, { model }), 404, 'model_not_found', JSON.stringify(model));
  });
});

test('the values of a parameter that change nothing are allowed', async (t) => {
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet();
  const plain = { stream: false, store: false, service_tier: 'default', modalities: ['text'], n: 1 };
  const answer = await purser.chat(token, { model: 'free', ...plain });
  assert.equal(answer.status, 200, answer.text);
  const [call] = purser.upstream.calls;
  assert.deepEqual(Object.keys(call?.body ?? {}).sort(), [
    'max_tokens',
    'messages',
    'model',
    'service_tier',
    'store',
    'stream',
  ]);
});
