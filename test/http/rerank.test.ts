import assert from 'node:assert/strict';
import test, { type TestContext } from 'node:test';
import type { Handler } from '../helper/upstream.ts';
import { open as openGateway } from './dialects-shared.ts';
import { latest, send } from './native-shared.ts';

// The ranking of documents by a query, as vLLM, llama.cpp and SGLang serve it.

const RANKER = {
  id: 'ranker',
  kind: 'rerank',
  upstream: 'local',
  upstream_model: 'bge-reranker',
  context_length: 8192,
  pricing: { prompt: '0.000001' },
};
const ASKED = { model: 'ranker', query: 'who', documents: ['Ada', 'Alan', { text: 'Grace' }] };
const results = [2, 0, 1].map((index) => ({ index, relevance_score: 1 - index / 10 }));
const ranks =
  (usage?: object): Handler =>
  (_, response) =>
    send(response, JSON.stringify({ id: 'rank-1', model: 'bge-reranker', results, ...(usage ? { usage } : {}) }));

async function open(t: TestContext, wallet: Record<string, unknown> = {}) {
  const opened = await openGateway(
    t,
    {
      unknownCountMax: 100,
      change: (all) => ({ ...all, router: { ...all.router, models: [...all.router.models, RANKER] } }),
    },
    wallet,
  );
  const ask = (more: object = {}, key?: string) =>
    opened.gateway.ask('POST', '/rerank', { body: { ...ASKED, ...more }, key });
  return { ...opened, ask };
}

test('documents are ranked, and cost the tokens that the server counted, under either name', async (t) => {
  const { purser, gateway, ask } = await open(t);
  for (const [i, usage] of [
    { total_tokens: 56 },
    { prompt_tokens: 56 },
    { prompt_tokens: 56, total_tokens: 56 },
    { prompt_tokens: 0, total_tokens: 56 },
    { prompt_tokens: 56, completion_tokens: 3, total_tokens: 56 },
  ].entries()) {
    purser.upstream.handle = ranks(usage);
    const { status, headers, body, text } = await ask({ top_n: i + 1, return_documents: false });
    assert.equal(status, 200, text);
    assert.deepEqual([body.results, headers['x-purser-cost-usd']], [results, '0.000056'], JSON.stringify(usage));
  }
  const { path, body } = purser.upstream.calls[0] as (typeof purser.upstream.calls)[0];
  assert.equal(path, '/v1/rerank');
  assert.deepEqual(body, { ...ASKED, model: 'bge-reranker', top_n: 1, return_documents: false });
  assert.equal((await purser.budget(gateway.token)).used_usd, '0.00028');
  const { completion_tokens: completion } = (await latest(purser)).usage;
  assert.equal(completion, 0);
});

test('a count beside the ranks is the usage, as Cohere’s API has it', async (t) => {
  const { purser, ask } = await open(t);
  const counts = { input_tokens: 56, output_tokens: 0 };
  for (const [i, meta] of [
    { tokens: counts, billed_units: { ...counts, search_units: 0 } }, // SiliconFlow, Xinference
    { billed_units: { total_tokens: 56 } }, // Infinity
  ].entries()) {
    purser.upstream.handle = (_, response) => send(response, JSON.stringify({ id: 'rank-1', results, meta }));
    const { headers, text } = await ask({ top_n: i + 1 });
    assert.equal(headers['x-purser-cost-usd'], '0.000056', text);
  }
});

test('a server that counts nothing is paid the bound, and its answer may be a list', async (t) => {
  const { purser, ask } = await open(t);
  for (const handle of [ranks(), ((_, response) => send(response, JSON.stringify(results))) as Handler]) {
    purser.upstream.handle = handle;
    const answer = await ask({ top_n: purser.upstream.calls.length + 1 });
    assert.equal(answer.status, 200, answer.text);
    const { usage, price, charge_usd, hold_usd } = await latest(purser);
    assert.deepEqual([usage.estimated, usage.prompt_tokens, charge_usd], [true, price.bound_prompt_tokens, hold_usd]);
  }
});

test('the query is held once for each document, each up to one context', async (t) => {
  const { purser, ask } = await open(t);
  purser.upstream.handle = ranks({ total_tokens: 10 });
  const boundOf = async (more: object): Promise<number> => {
    const answer = await ask(more);
    assert.equal(answer.status, 200, answer.text);
    return (await latest(purser)).price.bound_prompt_tokens;
  };
  const one = await boundOf({ query: 'q'.repeat(1000), documents: ['d'.repeat(500)] });
  assert(one >= 1500 && one < 1700, String(one));
  const ten = await boundOf({ query: 'q'.repeat(1000), documents: Array.from({ length: 10 }, () => 'd'.repeat(500)) });
  assert.equal(ten, 10 * one);
  assert.equal(await boundOf({ documents: ['d'.repeat(100_000), 'd'.repeat(100_000)] }), 2 * 8192);
});

test('a wallet that cannot pay for all documents is a 402 before anything is asked', async (t) => {
  const { purser, ask } = await open(t, { budget_cents: 100 });
  const documents = Array.from({ length: 2000 }, () => 'd'.repeat(400));
  const refused = await ask({ documents, query: 'q'.repeat(200) });
  assert.deepEqual([refused.status, refused.body.error.code], [402, 'insufficient_funds'], refused.text);
  assert.doesNotMatch(refused.body.error.message, /max_tokens/);
  assert.deepEqual(purser.upstream.calls, []);
});

test('what is malformed, too much or of another kind is refused by its name', async (t) => {
  const { purser, ask } = await open(t);
  for (const [more, status, param] of [
    [{ query: undefined }, 400, 'query'],
    [{ query: null }, 400, 'query'],
    [{ query: ['a'] }, 400, 'query'],
    [{ documents: undefined }, 400, 'documents'],
    [{ documents: [] }, 400, 'documents'],
    [{ documents: 'a' }, 400, 'documents'],
    [{ documents: ['a', null] }, 400, 'documents.1'],
    [{ documents: [7] }, 400, 'documents.0'],
    [{ documents: [{}] }, 400, 'documents.0.text'],
    [{ documents: [{ text: 'a', image: 'data:image/png;base64,AA==' }] }, 400, 'documents.0.image'],
    [{ documents: Array.from({ length: 10_000 }, () => 'a') }, 400, 'documents'],
    [{ top_n: 0 }, 400, 'top_n'],
    [{ max_chunks_per_doc: 10 }, 400, 'max_chunks_per_doc'],
    [{ stream: true }, 400, 'stream'],
    [{ model: 'chat' }, 404, 'model'],
    [{ model: 'none' }, 404, 'model'],
  ] as const) {
    const { status: got, body } = await ask(more);
    assert.deepEqual([got, body.error?.param], [status, param], JSON.stringify(more).slice(0, 100));
  }
  assert.deepEqual(purser.upstream.calls, []);
});

test('one key is one ranking; one whose outcome is unknown keeps its hold', async (t) => {
  const { purser, gateway, ask } = await open(t);
  purser.upstream.handle = ranks({ total_tokens: 56 });
  const first = await ask({}, 'k');
  const again = await gateway.ask('POST', '/v1/rerank', { body: ASKED, key: 'k' });
  assert.deepEqual([again.headers['idempotent-replayed'], again.text], ['true', first.text]);
  assert.equal(purser.upstream.calls.length, 1);
  for (const body of [{}, { results: [] }, { results: null }, { results: {} }, []]) {
    purser.upstream.handle = (_, response) => send(response, JSON.stringify(body));
    const unknown = await ask({ top_n: 7 }, `k ${JSON.stringify(body)}`);
    assert.deepEqual([unknown.status, unknown.body.error.code], [503, 'operation_uncertain'], JSON.stringify(body));
  }
  assert.notEqual((await purser.budget(gateway.token)).held_usd, '0.00');
});
