import assert from 'node:assert/strict';
import test from 'node:test';
import { readConfig } from '../../src/config/config.ts';
import { checkModels } from '../../src/doctor/models.ts';
import { createCatalogue } from '../../src/router/catalogue.ts';
import { openTestServer } from '../helper/server.ts';
import { completion, failure, hang } from '../helper/upstream.ts';

test('an upstream that hangs is a fault after the time of its route, and hides no other', async (t) => {
  const purser = await openTestServer(t);
  const config = readConfig({ data: purser.directory }, {});
  purser.upstream.handle = (call, response) => (call.body.model === 'flat' ? hang : completion())(call, response);
  const checks = await checkModels(createCatalogue(config), purser.app.upstreams, async () => new Map(), 1);
  const details = Object.fromEntries(checks.map(({ name, ok, detail }) => [name, `${ok} ${detail}`]));
  assert.equal(details['flat on local'], 'false Its answer took longer than 1 s.');
  assert.equal(checks.length, 4);
  assert(
    checks.every(({ detail }) => /It counted 5 completion|took longer/.test(detail)),
    JSON.stringify(checks),
  );
});

test('an upstream is asked in each API that it is said to speak', async (t) => {
  const purser = await openTestServer(t, {
    change: (all) => {
      const [local] = all.router.upstreams;
      const upstreams = [{ ...local, wires: ['messages', 'responses'] }];
      return { ...all, router: { upstreams, models: all.router.models.slice(0, 1) } };
    },
  });
  const config = readConfig({ data: purser.directory }, {});
  const usage = { input_tokens: 5, output_tokens: 1 };
  purser.upstream.handle = (call, response) => {
    if (call.path.endsWith('/responses')) return failure(404)(call, response);
    if (!call.path.endsWith('/messages')) return completion({ prompt_tokens: 5, completion_tokens: 1 })(call, response);
    response.writeHead(200, { 'content-type': 'application/json' });
    response.end(JSON.stringify({ type: 'message', content: [{ type: 'text', text: 'ok' }], usage }));
  };
  const [check] = await checkModels(createCatalogue(config), purser.app.upstreams, async () => new Map());
  assert.equal(check?.ok, false);
  assert.match(String(check?.detail), /It is said to speak responses: .* Take it out of wires/);
  assert.doesNotMatch(String(check?.detail), /speak messages|In messages/);
  const asked = purser.upstream.calls.find(({ path }) => path.endsWith('/messages'));
  assert.equal(asked?.headers['anthropic-version'], '2023-06-01');
});

test('a model that ranks is asked to rank one document, and its count is compared with the bound', async (t) => {
  const purser = await openTestServer(t, {
    change: (all) => {
      const pricing = { prompt: '0.000001' };
      const ranking = { id: 'rank', kind: 'rerank', upstream: 'local', context_length: 8192, pricing };
      return { ...all, router: { ...all.router, models: [ranking] } };
    },
  });
  const config = readConfig({ data: purser.directory }, {});
  const check = async (usage: object) => {
    purser.upstream.handle = (_, response) => {
      response.writeHead(200, { 'content-type': 'application/json' });
      response.end(JSON.stringify({ results: [{ index: 0, relevance_score: 0.9 }], ...usage }));
    };
    const [found] = await checkModels(createCatalogue(config), purser.app.upstreams, async () => new Map());
    return found;
  };
  const fine = await check({ usage: { total_tokens: 12 } });
  assert.deepEqual(
    [fine?.name, fine?.ok, fine?.detail],
    ['rank on local', true, '12 prompt and 0 completion tokens, 0.000012 USD by our price'],
  );
  const { path, body } = purser.upstream.calls.at(-1) as { path: string; body: Record<string, unknown> };
  assert.deepEqual(
    [path, body.model, body.query, body.documents],
    ['/v1/rerank', 'rank', 'Say ok.', ['Say ok.']],
    'one document, and no stream, limit or tools',
  );
  assert.deepEqual(Object.keys(body).sort(), ['documents', 'model', 'query']);
  assert.equal(purser.upstream.calls.length, 1, 'once, without a stream');

  const more = await check({ usage: { total_tokens: 500 } });
  assert.equal(more?.ok, false);
  assert.match(
    String(more?.detail),
    /^It counted 500 prompt tokens where the bound is \d+: .*prompt_overhead_tokens to 500/,
  );
  const none = await check({});
  assert.deepEqual([none?.ok, /^It reports no readable usage/.test(String(none?.detail))], [false, true]);
  purser.upstream.handle = failure(404);
  const [missing] = await checkModels(createCatalogue(config), purser.app.upstreams, async () => new Map());
  assert.equal(missing?.ok, false);
});
