import assert from 'node:assert/strict';
import test from 'node:test';
import { installation } from '../helper/executable.ts';
import { DONE, FINISHED, said, streaming } from '../helper/sse.ts';
import { completion, failure, openUpstream } from '../helper/upstream.ts';

const PRICE = { prompt: '0.000001', completion: '0.000002' };
const CHAT = { context_length: 1000, max_output_tokens: 100, pricing: PRICE };

test('models check tries every route of every model with one token, and names what would cost money', async (t) => {
  const [good, bad] = [await openUpstream(t), await openUpstream(t)];
  const usage = completion({ prompt_tokens: 9, completion_tokens: 1, total_tokens: 10 });
  good.handle = (call, response) => {
    if (call.path === '/v1/models')
      return response.end(
        JSON.stringify({
          data: [
            { id: 'fine', pricing: PRICE },
            { id: 'dear', pricing: { ...PRICE, completion: '0.000003' } },
            { id: 'longer', max_model_len: 2000 },
            { id: 'shorter', meta: { n_ctx: 500 } },
          ],
        }),
      );
    if (call.body.model === 'disobedient')
      return completion({ prompt_tokens: 9, completion_tokens: 40 })(call, response);
    if (call.body.model === 'counts-no-streams' && call.body.stream)
      return streaming(said('ok'), FINISHED, DONE)(call, response);
    if (call.body.model === 'ends-no-streams' && call.body.stream)
      return streaming(said('ok', { usage: { prompt_tokens: 9, completion_tokens: 1 } }))(call, response);
    if (call.body.model === 'silent') return completion(null)(call, response);
    if (call.body.model === 'counts-more')
      return completion({ prompt_tokens: 900, completion_tokens: 1 })(call, response);
    if (call.path === '/v1/embeddings')
      return response.end(JSON.stringify({ data: [], usage: { prompt_tokens: 3, total_tokens: 3 } }));
    return usage(call, response);
  };
  bad.handle = failure(401);
  const of = (id: string, more: object = {}) => ({ id, upstream: 'good', ...CHAT, ...more });
  const purser = installation(t, {
    settings: {
      router: {
        upstreams: [
          { name: 'good', base_url: good.url },
          { name: 'bad', base_url: bad.url },
        ],
        models: [
          of('fine', { fallbacks: [{ upstream: 'bad' }] }),
          of('dear'),
          of('disobedient'),
          of('silent'),
          of('counts-more'),
          of('counts-no-streams'),
          of('ends-no-streams'),
          of('longer'),
          of('shorter'),
          { id: 'vectors', kind: 'embeddings', upstream: 'good', context_length: 512, pricing: { prompt: '0.000001' } },
          { id: 'unpriced', upstream: 'good', context_length: 1000, max_output_tokens: 100 },
        ],
      },
    },
  });
  const check = await purser.cli('--json', 'models', 'check');
  assert.equal(check.code, 1, check.stderr);
  const { ok, checks } = JSON.parse(check.stdout) as {
    ok: boolean;
    checks: { name: string; ok: boolean; detail: string }[];
  };
  assert.equal(ok, false);
  const details = Object.fromEntries(checks.map((it) => [it.name, `${it.ok ? 'ok' : 'bad'}: ${it.detail}`]));
  assert.equal(details['fine on good'], 'ok: 9 prompt and 1 completion tokens, 0.000011 USD by our price');
  assert.match(details['fine on bad'] as string, /^bad: upstream bad answered 401: its api_key is missing or wrong/);
  assert.match(details['dear on good'] as string, /^bad: It states 0\.000003 USD for a completion token.*at a loss/);
  assert.match(
    details['disobedient on good'] as string,
    /^bad: It counted 40 completion tokens though max_tokens was 1/,
  );
  assert.match(details['silent on good'] as string, /^bad: It reports no readable usage/);
  assert.match(details['silent on good'] as string, /Asked for a stream, it reports no readable usage/);
  assert.match(details['counts-no-streams on good'] as string, /^bad: Its stream reports no readable usage/);
  assert.match(details['ends-no-streams on good'] as string, /^bad: Its stream has no end/);
  assert.match(
    details['counts-more on good'] as string,
    /^bad: It counted 900 prompt tokens.*Set prompt_overhead_tokens to 900/,
  );
  assert.match(details['longer on good'] as string, /^bad: context_length is 1000, and it takes 2000.*given away/);
  assert.match(details['shorter on good'] as string, /^bad: context_length is 1000, and it takes 500.*refused there/);
  assert.equal(details['vectors on good'], 'ok: 3 prompt and 0 completion tokens, 0.000003 USD by our price');
  assert.match(details.unpriced as string, /^bad: It has no price/);
  const asked = good.calls.filter((it) => it.path === '/v1/chat/completions');
  assert.ok(
    asked.every((it) => it.body.max_tokens === 1),
    'one token of each',
  );

  await (await purser.serve()).stop();
  const { data } = await purser.json('models', 'list');
  assert.deepEqual(
    data.map((it: { id: string; upstreams: string[] }) => [it.id, it.upstreams.join()]),
    [
      ['fine', 'good,bad'],
      ['dear', 'good'],
      ['disobedient', 'good'],
      ['silent', 'good'],
      ['counts-more', 'good'],
      ['counts-no-streams', 'good'],
      ['ends-no-streams', 'good'],
      ['longer', 'good'],
      ['shorter', 'good'],
      ['vectors', 'good'],
    ],
  );
  const table = await purser.cli('models', 'list');
  assert.match(table.stdout, /^ID +KIND +UPSTREAMS +CONTEXT LENGTH/);
});
