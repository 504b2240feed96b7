import assert from 'node:assert/strict';
import test from 'node:test';
import { ASKED, latest, message, open, response, sent } from './native-shared.ts';

test('a limit that is cut to the wallet takes the thinking budget along', async (t) => {
  const { purser, gateway } = await open(t, { budget_cents: 100 });
  purser.upstream.handle = message;
  const asked = async (budget_tokens: number) => {
    const thinking = { type: 'enabled', budget_tokens };
    const answer = await gateway.ask('POST', '/messages', {
      body: { ...ASKED, model: 'dear', max_tokens: 8000, thinking },
    });
    assert.equal(answer.status, 200, answer.text);
    const { max_tokens: limit, thinking: got } = sent(purser).body;
    assert.equal(answer.headers['x-purser-max-tokens'], String(limit));
    return { limit, got };
  };
  const first = await asked(7000);
  assert.ok(first.limit > 2048 && first.limit < 7000, String(first.limit));
  assert.deepEqual(first.got, { type: 'enabled', budget_tokens: Math.floor(first.limit / 2) });
  assert.deepEqual((await asked(1024)).got, { type: 'enabled', budget_tokens: 1024 });
});

test('thinking that no limit has room for is switched off, and so is what would be done with it', async (t) => {
  const { purser, gateway } = await open(t, { budget_cents: 100 });
  purser.upstream.handle = message;
  const thinking = { type: 'enabled', budget_tokens: 4000 };
  const [ofThinking, ofTools] = [
    { type: 'clear_thinking_20251015', keep: 'all' },
    { type: 'clear_tool_uses_20250919' },
  ];
  const managed = async (edits: object[], max_tokens = 8000) => {
    const body = { ...ASKED, model: 'dearest', max_tokens, thinking, context_management: { edits } };
    const answer = await gateway.ask('POST', '/messages', { body });
    assert.equal(answer.status, 200, answer.text);
    return sent(purser).body;
  };
  const off = await managed([ofThinking, ofTools]);
  assert.deepEqual([off.thinking, off.context_management], [{ type: 'disabled' }, { edits: [ofTools] }]);
  assert(!('context_management' in (await managed([ofThinking]))));
});

test('the bytes of an image are no tokens; what nobody translates is bounded by its bytes', async (t) => {
  const { purser, gateway } = await open(t);
  purser.upstream.handle = message;
  const image = (data: string) => ({ type: 'image', source: { type: 'base64', media_type: 'image/png', data } });
  const boundOf = async (content: object[], role = 'user') => {
    const messages = [{ role, content }];
    const answer = await gateway.ask('POST', '/messages', { body: { ...ASKED, model: 'seeing', messages } });
    assert.equal(answer.status, 200, answer.text);
    return (await latest(purser)).price.bound_prompt_tokens;
  };
  const small = await boundOf([image('QUJD')]);
  assert.equal(await boundOf([image('QUJD'.repeat(5000))]), small);
  assert.ok(small > 1000 && small < 2000, String(small));
  const redacted = (bytes: number) => [{ type: 'redacted_thinking', data: 'x'.repeat(bytes) }];
  const difference = (await boundOf(redacted(5000), 'assistant')) - (await boundOf(redacted(1000), 'assistant'));
  assert.equal(difference, 4000);
  const hidden = [
    { type: 'tool_use', id: 't', name: 'n', input: { type: 'image', source: { data: 'x'.repeat(5000) } } },
  ];
  assert.ok((await boundOf(hidden, 'assistant')) > 5000);
});

test('a mode of reasoning whose tokens nothing bounds is refused in each API, translated and passed on', async (t) => {
  const { purser, gateway } = await open(t);
  const messages = [{ role: 'user', content: 'hi' }];
  for (const model of ['own', 'back'])
    for (const [path, body] of [
      ['/responses', { input: 'hi' }],
      ['/messages', { messages, max_tokens: 100 }],
      ['/chat/completions', { messages }],
      ['/completions', { prompt: 'hi' }],
    ] as const) {
      const ask = (mode: unknown) => gateway.ask('POST', path, { body: { model, ...body, reasoning: { mode } } });
      for (const mode of ['pro', 'parallel', 2]) {
        const { status, text } = await ask(mode);
        assert.equal(status, 400, `${path} ${mode}`);
        assert.match(text, /reasoning\.mode/);
      }
      assert.deepEqual(purser.upstream.calls, []);
    }
  purser.upstream.handle = response;
  for (const mode of ['standard', null]) {
    const reasoning = { mode, effort: 'high' };
    const { status } = await gateway.ask('POST', '/responses', { body: { model: 'own', input: 'hi', reasoning } });
    assert.equal(status, 200);
    assert.deepEqual(sent(purser).body.reasoning, reasoning);
  }
});
