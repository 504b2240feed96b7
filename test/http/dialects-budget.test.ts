import assert from 'node:assert/strict';
import test from 'node:test';
import { parseUsd } from '../../src/base/money.ts';
import { openGateway } from '../helper/gateway.ts';
import { counted, DONE, FINISHED, said, streaming } from '../helper/sse.ts';
import { vendorClients } from '../helper/vendor-clients.ts';
import { ASKED, answers, open } from './dialects-shared.ts';

const MESSAGE_HEAD = { id: 'msg_1', type: 'message', role: 'assistant', model: 'real/chat', stop_sequence: null };
test('a budget that is nearly used is told in the headers that Claude Code reads', async (t) => {
  const { purser, gateway } = await open(t, {}, { budget_cents: 100 });
  purser.upstream.handle = answers({ content: 'ten' }, 'stop', { prompt_tokens: 1, completion_tokens: 10 });
  const name = 'anthropic-ratelimit-unified';
  const shown = async () => {
    const { headers } = await gateway.ask('POST', '/messages', { body: { ...ASKED, model: 'dear', max_tokens: 10 } });
    return ['status', '7d-utilization', '7d-surpassed-threshold'].map((it) => headers[`${name}-${it}`]);
  };
  const all = [];
  for (let i = 0; i < 10; i++) all.push(await shown());
  assert.deepEqual(all[0], ['allowed', '0.1', undefined]);
  assert.deepEqual(all[7], ['allowed_warning', '0.8', '0.75']);
  assert.deepEqual(all[9], ['allowed_warning', '1', '0.95']);
  const { body } = await gateway.ask('GET', '/key');
  const { label, ...data } = body.data;
  assert.deepEqual(data, {
    limit: 1,
    limit_remaining: 0,
    limit_reset: null,
    usage: 1,
    usage_daily: 1,
    is_free_tier: false,
  });
  assert.equal(label, `svc_router_…${gateway.key.slice(-4)}`);
  purser.clock.advance(86_400);
  assert.equal((await gateway.ask('GET', '/key')).body.data.usage_daily, 0);
});

test('of a wallet that is refilled, the share of its current period counts', async (t) => {
  const { purser, gateway } = await open(t, {}, { budget_cents: 100, expires_in_seconds: 0 });
  await purser.run('wallet.refill', { id: gateway.walletId, refill: { cents: 100, every: 'day' } });
  purser.upstream.handle = answers({ content: 'ten' }, 'stop', { prompt_tokens: 1, completion_tokens: 10 });
  const used = async () => {
    const { headers } = await gateway.ask('POST', '/messages', { body: { ...ASKED, model: 'dear', max_tokens: 10 } });
    return headers['anthropic-ratelimit-unified-7d-utilization'];
  };
  for (let i = 0; i < 9; i++) await used();
  purser.clock.advance(86_400);
  assert.equal(await used(), String(Math.floor((0.1 / 1) * 10_000) / 10_000));
  const { limit, limit_remaining, limit_reset } = (await gateway.ask('GET', '/key')).body.data;
  assert.deepEqual([limit, limit_remaining, limit_reset], [1, 0.9, 'daily']);
});

test('chats and embeddings say what they cost: in a header, or before the end of the stream', async (t) => {
  const { purser, gateway } = await open(t);
  assert.equal((await gateway.chat()).headers['x-purser-cost-usd'], '0.00012');
  purser.upstream.handle = streaming(said('a'), FINISHED, counted(), DONE);
  const { text } = await gateway.ask('POST', '/chat/completions', { body: { ...ASKED, stream: true } });
  const { available_usd: left } = await purser.budget(gateway.token);
  assert.ok(text.endsWith(`: x-purser-cost-usd=0.00012 x-purser-available-usd=${left}\n\n${DONE}`), text);
  purser.upstream.handle = streaming(said('a'), FINISHED, `x${DONE}`, counted(), DONE);
  const odd = await gateway.ask('POST', '/chat/completions', { body: { ...ASKED, stream: true } });
  assert.equal(odd.text.match(/x-purser-cost-usd/g)?.length, 1, 'what only looks like the end has no comment');
});

/** Prices of the class of Claude Sonnet, in USD per million tokens. */
const SONNET = {
  prompt: '3',
  completion: '15',
  input_cache_read: '0.3',
  input_cache_write: '3.75',
  input_cache_write_1h: '6',
};

for (const wires of [[], ['messages', 'responses']])
  test(`a dollar is spent to its end, and the last error says so (${wires.length ? 'passed on' : 'translated'})`, async (t) => {
    const { purser } = await open(t, {
      change: (all) => ({
        ...all,
        router: {
          upstreams: [{ ...all.router.upstreams[0], wires }],
          models: [
            {
              id: 'sonnet',
              upstream: 'local',
              context_length: 200_000,
              max_output_tokens: 64_000,
              pricing_per_million: SONNET,
            },
          ],
        },
      }),
    });
    const [prompt, completion] = [2000, 900];
    /** Answers with as much as the limit allows, in the API that it is asked in. */
    purser.upstream.handle = (call, response) => {
      const limit = Number(call.body.max_tokens ?? call.body.max_output_tokens);
      const written = Math.min(completion, limit);
      const usage = { input_tokens: prompt, output_tokens: written };
      if (call.path.endsWith('/chat/completions'))
        return answers({ content: 'ok' }, 'stop', { prompt_tokens: prompt, completion_tokens: written })(
          call,
          response,
        );
      response.writeHead(200, { 'content-type': 'application/json' });
      response.end(
        JSON.stringify(
          call.path.endsWith('/messages')
            ? { ...MESSAGE_HEAD, content: [{ type: 'text', text: 'ok' }], stop_reason: 'end_turn', usage }
            : { id: 'resp_1', object: 'response', status: 'completed', output: [], error: null, usage },
        ),
      );
    };
    const text = 'A line of what an agent sends. '.repeat(250);
    for (const [api, ask] of [
      [
        'messages',
        (key: string) =>
          vendorClients(purser.url, key)
            .anthropic.messages.create({
              model: 'sonnet',
              max_tokens: 16_000,
              messages: [{ role: 'user', content: text }],
            })
            .withResponse(),
      ],
      [
        'responses',
        (key: string) =>
          vendorClients(purser.url, key).openai.responses.create({ model: 'sonnet', input: text }).withResponse(),
      ],
    ] as const) {
      const gateway = await openGateway(purser, { wallet: { budget_cents: 100 } });
      let paid = 0n;
      let cut = 0;
      const told: (string | null)[] = [];
      let error: any;
      for (let i = 0; !error; i++) {
        assert.ok(i < 200);
        try {
          const { headers } = (await ask(gateway.key)).response;
          paid += parseUsd(headers.get('x-purser-cost-usd') as string);
          if (headers.has('x-purser-max-tokens')) cut++;
          told.push(headers.get('anthropic-ratelimit-unified-7d-surpassed-threshold'));
        } catch (it) {
          error = it;
        }
      }
      assert.equal(error.status, 402);
      assert.equal(error.headers.get('x-should-retry'), 'false');
      const sentence = /This request needs [\d.]+ USD at most; the wallet has [\d.]+ USD available/;
      const shown = api === 'messages' ? error.error.error : error.error;
      assert.equal(shown.type, 'billing_error');
      assert.match(shown.message, sentence);
      assert.match(error.message, sentence, 'as the client shows it');
      if (api === 'responses') assert.equal(shown.code, 'insufficient_funds');
      const { used_usd: used, available_usd: left } = await purser.budget(gateway.token);
      assert.equal(parseUsd(used), paid, 'what the answers said adds up');
      assert.ok(Number(left) < 0.04, `${left} USD are too little for this prompt and 256 tokens`);
      assert.ok(cut > 0, 'limits are cut to fit before the end');
      if (api === 'messages') assert.deepEqual([...new Set(told)], [null, '0.75', '0.95']);
    }
  });
