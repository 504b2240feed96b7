import assert from 'node:assert/strict';
import test from 'node:test';
import { openTestServer } from '../helper/server.ts';

const many = (item: string, count: number) => `[${Array(count).fill(item).join(',')}]`;

for (const [what, body, code] of [
  ['a million wrong messages', `{"model":"chat","messages":${many('1', 1_000_000)}}`, 'invalid_json'],
  ['a million empty messages', `{"model":"chat","messages":${many('{}', 1_000_000)}}`, 'invalid_json'],
  ['more messages than anybody has', `{"model":"chat","messages":${many('{}', 10_001)}}`, 'invalid_request'],
] as const)
  test(`a body of ${what} is refused with one sentence, and asks nobody`, async (t) => {
    const purser = await openTestServer(t);
    const { token } = await purser.openWallet();
    const answer = await purser.ask('POST', '/v1/chat/completions', { token, key: 'k', body });
    assert.deepEqual([answer.status, answer.body.error.code], [400, code]);
    assert.ok(answer.text.length < 500, answer.text);
    assert.deepEqual(purser.upstream.calls, []);
  });

test('embeddings take as many token ids as fit the body, and no more of anything else', async (t) => {
  const model = {
    id: 'embedding',
    kind: 'embeddings',
    upstream: 'local',
    context_length: 8192,
    pricing: { prompt: '0' },
  };
  const purser = await openTestServer(t, {
    change: (all) => ({ ...all, router: { upstreams: all.router.upstreams, models: [model] } }),
  });
  const { token: wallet } = await purser.openWallet();
  const { api_key: token } = (await purser.ask('POST', '/v1/router/key', { token: wallet, body: {} })).body;
  purser.upstream.handle = (_, response) => {
    response.writeHead(200, { 'content-type': 'application/json' });
    response.end(JSON.stringify({ data: [], usage: { prompt_tokens: 1, total_tokens: 1 } }));
  };
  const embed = (input: unknown) =>
    purser.ask('POST', '/v1/router/embeddings', { token, body: { model: 'embedding', input } });
  for (const [texts, tokens] of [
    [200, 300],
    [2048, 600],
  ] as const) {
    const answer = await embed(Array(texts).fill(Array.from({ length: tokens }, (_, i) => 1000 + i)));
    assert.equal(answer.status, 200, answer.text);
  }
  for (const item of ['a', []]) assert.equal((await embed(Array(50_001).fill(item))).body.error.code, 'invalid_json');
});
