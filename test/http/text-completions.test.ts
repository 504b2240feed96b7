import assert from 'node:assert/strict';
import test from 'node:test';
import OpenAI from 'openai';
import { breakOff, DONE, event, streaming } from '../helper/sse.ts';
import { failure, type Handler } from '../helper/upstream.ts';
import { open } from './dialects-shared.ts';
import { latest } from './native-shared.ts';

// Legacy completions, which editors use to fill in code: by every model for chats.

const ASKED = { model: 'chat', prompt: 'def add(a, b):', max_tokens: 100 };
const USAGE = { prompt_tokens: 100, completion_tokens: 20, total_tokens: 120 };
const head = { id: 'cmpl-7', object: 'text_completion', created: 7, model: 'real/chat' };
const choice = (index: number, text: string, finish_reason: string | null = 'stop') => ({
  index,
  text,
  logprobs: null,
  finish_reason,
});

/** Answers each prompt `n` times. */
const texts =
  (usage: object | null = USAGE): Handler =>
  ({ body }, response) => {
    const prompts = [body.prompt].flat().length;
    const choices = Array.from({ length: prompts * ((body.n as number | undefined) ?? 1) }, (_, i) =>
      choice(i, ' a + b'),
    );
    response.writeHead(200, { 'content-type': 'application/json' });
    response.end(JSON.stringify({ ...head, choices, ...(usage ? { usage } : {}) }));
  };
const chunk = (text: string, index = 0, reason: string | null = null) =>
  event({ ...head, choices: [choice(index, text, reason)] });
const counted = event({ ...head, choices: [], usage: USAGE });

/** The bound of the latest operation. */
async function boundOf(purser: Parameters<typeof latest>[0]): Promise<{ prompt: number; completion: number }> {
  const { price } = await latest(purser);
  return { prompt: price.bound_prompt_tokens, completion: price.bound_completion_tokens };
}

test('OpenAI’s client completes a text, charged by what the server counted', async (t) => {
  const { purser, gateway, openai } = await open(t);
  purser.upstream.handle = texts();
  const members = { suffix: '# end', temperature: 0, stop: ['\n'], seed: 1, logprobs: 1, echo: true };
  const { data, response } = await openai.completions.create({ ...ASKED, ...members }).withResponse();
  assert.equal(data.choices[0]?.text, ' a + b');
  assert.equal(response.headers.get('x-purser-cost-usd'), '0.00024');
  const [{ path, body } = { path: '', body: {} }] = purser.upstream.calls;
  assert.deepEqual([path, body], ['/v1/completions', { ...ASKED, ...members, model: 'real/chat', stream: false }]);
  assert.equal((await purser.budget(gateway.token)).used_usd, '0.00024');
  const unlimited = await gateway.ask('POST', '/completions', { body: { model: 'chat', prompt: 'a' } });
  assert.equal(unlimited.status, 200);
  assert.equal(purser.upstream.calls.at(-1)?.body.max_tokens, 1000, 'the limit that was reserved for');
});

test('a stream passes, with its cost, and is the same when it is replayed', async (t) => {
  const { purser, gateway, openai } = await open(t);
  purser.upstream.handle = streaming(chunk(' a'), chunk(' + b'), chunk('', 0, 'stop'), counted, DONE);
  let text = '';
  for await (const it of await openai.completions.create({ ...ASKED, stream: true })) text += it.choices[0]?.text ?? '';
  assert.equal(text, ' a + b');
  const body = { ...ASKED, stream: true, usage: { include: true } };
  const first = await gateway.ask('POST', '/completions', { body, key: 'k' });
  const again = await gateway.ask('POST', '/v1/completions', { body, key: 'k' });
  assert.deepEqual([again.headers['idempotent-replayed'], again.text], ['true', first.text]);
  assert.match(first.text, /"object":"text_completion".*"cost":0\.00024\}\}\n\n: x-purser-cost-usd=0\.00024 /);
  assert.equal((await purser.budget(gateway.token)).used_usd, '0.00048');
  purser.upstream.handle = texts();
  const whole = await gateway.ask('POST', '/completions', { body: { ...ASKED, stream: true } });
  assert.match(whole.text, /"text":" a \+ b".*\n\n: x-purser-cost-usd=0\.00024 .*\n\ndata: \[DONE\]\n\n$/);
});

test('all answers to all prompts are held, and each prompt', async (t) => {
  const { purser, gateway } = await open(t);
  purser.upstream.handle = texts();
  const ask = async (body: object) => {
    const answer = await gateway.ask('POST', '/completions', { body: { ...ASKED, ...body } });
    assert.equal(answer.status, 200, answer.text);
    return { ...(await boundOf(purser)), sent: purser.upstream.calls.at(-1)?.body ?? {} };
  };
  const one = await ask({ prompt: 'x'.repeat(1000) });
  assert(one.prompt >= 1000 && one.prompt < 1300, String(one.prompt));
  assert.equal(one.completion, 100);
  const three = await ask({ prompt: Array.from({ length: 3 }, () => 'x'.repeat(1000)) });
  assert.deepEqual([three.prompt, three.completion], [3 * one.prompt, 300]);
  const many = await ask({ prompt: ['a', 'b', 'c'], n: 4 });
  assert.deepEqual([many.completion, many.sent.n], [1200, 4]);
  const best = await ask({ prompt: ['a', 'b'], n: 2, best_of: 5 });
  assert.deepEqual([best.completion, best.sent.n, best.sent.best_of], [1000, 2, 5]);
  const filled = await ask({ suffix: 'y'.repeat(500) });
  assert(filled.prompt >= 500, 'what stands behind the text is read, too');
  const tokens = await ask({ prompt: Array.from({ length: 700 }, (_, i) => i) });
  assert(tokens.prompt >= 700 && tokens.prompt < 900, String(tokens.prompt));
  const lists = await ask({
    prompt: [
      [1, 2],
      [3, 4],
    ],
  });
  assert.equal(lists.completion, 200);
});

test('a wallet that cannot pay for all answers gets shorter ones, or a 402', async (t) => {
  const { purser, gateway } = await open(t, {}, { budget_cents: 100 });
  purser.upstream.handle = texts();
  const body = { model: 'dear', prompt: ['a', 'b'], n: 2, max_tokens: 1000 };
  const refused = await gateway.ask('POST', '/completions', { body });
  assert.deepEqual(
    [refused.status, refused.body.error.code],
    [402, 'insufficient_funds'],
    'four answers of 256 tokens',
  );
  const cut = await gateway.ask('POST', '/completions', { body: { ...body, max_tokens: 20 } });
  assert.equal(cut.status, 200);
  assert((await latest(purser)).hold_usd <= '1.00');
});

test('what would generate without a bound, or is malformed, is refused by its name', async (t) => {
  const { purser, gateway } = await open(t);
  for (const [body, param] of [
    [{ prompt: undefined }, 'prompt'],
    [{ prompt: null }, 'prompt'],
    [{ prompt: [] }, 'prompt'],
    [{ prompt: [null] }, 'prompt.0'],
    [{ prompt: ['a', 1] }, 'prompt.1'],
    [{ prompt: [[1], [null]] }, 'prompt.1'],
    [{ prompt: {} }, 'prompt'],
    [{ prompt: [-1] }, 'prompt.0'],
    [{ prompt: Array.from({ length: 2049 }, () => 'a') }, 'prompt'],
    [{ prompt: Array.from({ length: 100 }, () => 'a'), n: 100 }, 'prompt'],
    [{ prompt: Array.from({ length: 100 }, () => 'a'), best_of: 100 }, 'prompt'],
    [{ n: 0 }, 'n'],
    [{ n: 129 }, 'n'],
    [{ n: 3, best_of: 2 }, 'best_of'],
    [{ best_of: 2, stream: true }, 'best_of'],
    [{ best_of: '2' }, 'best_of'],
    [{ max_tokens: 0 }, 'max_tokens'],
    [{ suffix: ['a'] }, 'suffix'],
    [{ use_beam_search: true }, 'use_beam_search'],
    [{ n_predict: 5 }, 'n_predict'],
    [{ messages: [] }, 'messages'],
    [{ stream_options: { include_usage: true } }, 'stream_options'],
    [{ usage: { include: 1 } }, 'usage.include'],
    [{ stream: 'yes' }, 'stream'],
    [{ model: 7 }, 'model'],
  ] as const) {
    const { status, body: answer } = await gateway.ask('POST', '/completions', { body: { ...ASKED, ...body } });
    assert.deepEqual([status, answer.error?.param], [400, param], JSON.stringify(body).slice(0, 100));
  }
  assert.deepEqual(purser.upstream.calls, []);
  const huge = { ...ASKED, prompt: 'x'.repeat(8 * 1024 * 1024) };
  assert.equal((await gateway.ask('POST', '/completions', { body: huge })).status, 413);
});

test('a stream that breaks costs what came; an answer without a usage its text; an error nothing', async (t) => {
  const { purser, gateway } = await open(t);
  const ask = async (more: object = {}) => {
    const before = Number((await purser.budget(gateway.token)).used_usd);
    const answer = await gateway.ask('POST', '/completions', { body: { ...ASKED, ...more } });
    const used = Number((await purser.budget(gateway.token)).used_usd) - before;
    return { answer, used, bound: (await boundOf(purser)).prompt };
  };
  purser.upstream.handle = streaming(chunk(' a + b'), breakOff);
  const broken = await ask({ stream: true });
  assert.match(broken.answer.text, /"code":"answer_lost"/);
  const estimate = (bound: number, bytes: number) => (0.0001 + bound * 0.000001 + bytes * 0.000002).toFixed(9);
  assert.equal(broken.used.toFixed(9), estimate(broken.bound, 6));
  purser.upstream.handle = texts(null);
  const uncounted = await ask({ seed: 1 });
  assert.equal(uncounted.used.toFixed(9), estimate(uncounted.bound, 6));
  purser.upstream.handle = failure(404, { error: { message: 'no such path' } });
  const missing = await ask({ seed: 2 });
  assert.deepEqual([missing.answer.status, missing.answer.body.error.code, missing.used], [404, 'model_not_found', 0]);
  const other = await gateway.ask('POST', '/completions', { body: { ...ASKED, model: 'none' } });
  assert.equal(other.status, 404);
});

test('a refusal has the shape that the client reads', async (t) => {
  const { openai } = await open(t);
  const refused = await openai.completions.create({ ...ASKED, n: 200 }).catch((error: unknown) => error);
  assert(refused instanceof OpenAI.BadRequestError);
  assert.deepEqual([refused.code, refused.param], ['invalid_request', 'n']);
});
