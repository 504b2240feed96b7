import assert from 'node:assert/strict';
import test from 'node:test';
import { completion, failure } from '../helper/upstream.ts';
import { ASKED, latest, message, open, response, sent, usd } from './native-shared.ts';

const MARK = { type: 'ephemeral', ttl: '1h' };
test('marks for prompt caches go as far as they have a price, and an hour is held for at its own', async (t) => {
  const { purser, gateway } = await open(t);
  purser.upstream.handle = message;
  const said = 'x'.repeat(3000);
  const body = {
    ...ASKED,
    cache_control: MARK,
    system: [{ type: 'text', text: said, cache_control: MARK }],
    messages: [
      {
        role: 'user',
        content: [
          {
            type: 'tool_result',
            tool_use_id: 't',
            cache_control: MARK,
            content: [{ type: 'text', text: 'sun', cache_control: MARK }],
          },
        ],
      },
    ],
    tools: [{ name: 'look', input_schema: { properties: { cache_control: {} } }, cache_control: MARK }],
  };
  const marks = async (model: string) => {
    const answer = await gateway.ask('POST', '/messages', { body: { ...body, model } });
    assert.equal(answer.status, 200, answer.text);
    const text = JSON.stringify(sent(purser).body);
    return [text.match(/"cache_control":\{"type"/g)?.length ?? 0, text.match(/"ttl":"1h"/g)?.length ?? 0];
  };
  const holdOf = async () => {
    const { hold_usd: hold, price } = await latest(purser);
    return { hold: Number(hold) * 1e9, price };
  };
  assert.deepEqual(await marks('own'), [5, 5]);
  const { hold, price } = await holdOf();
  assert.equal(price.cached_for_hour, true);
  const { bound_prompt_tokens: tokens } = price;
  assert.ok(tokens > 3000);
  assert.equal(hold, tokens * 6000 + 100 * 20_000, 'each token of the prompt at the price of an hour');
  assert.deepEqual(await marks('short'), [5, 0]);
  assert.equal((await holdOf()).hold, tokens * 3750 + 100 * 15_000);
  assert.deepEqual(await marks('plain'), [0, 0]);
  assert.equal(purser.problems().length, 0);
});

test('a response is passed on with marks where they have a price, and without tools of the server in a namespace', async (t) => {
  const { purser, gateway } = await open(t);
  purser.upstream.handle = response;
  const part = (text: string) => ({ type: 'input_text', text, cache_control: MARK });
  const look = { type: 'function', name: 'look', parameters: {}, strict: false };
  const body = {
    input: [
      { role: 'user', content: [part('hi')], cache_control: MARK },
      { type: 'function_call', call_id: 'c', name: 'look', arguments: '{"cache_control":{"type":"x"}}' },
      { type: 'function_call_output', call_id: 'c', output: [part('sun')] },
    ],
    tools: [{ type: 'namespace', name: 'sky', description: 'of the sky', tools: [look, { type: 'web_search' }] }],
  };
  const passed = async (model: string) => {
    const answer = await gateway.ask('POST', '/responses', { body: { ...body, model } });
    assert.equal(answer.status, 200, answer.text);
    return sent(purser).body;
  };
  const tools = [{ ...body.tools[0], tools: [look] }];
  const own = await passed('own');
  assert.deepEqual([own.input, own.tools], [body.input, tools]);
  const plain = await passed('plain');
  const unmarked = JSON.parse(JSON.stringify(body.input), (name, it) => (name === 'cache_control' ? undefined : it));
  assert.deepEqual([plain.input, plain.tools], [unmarked, tools]);
  assert.deepEqual(purser.problems(), []);
});

test('the price of an hour holds for chats, too: where the server does not tell, the request does', async (t) => {
  const { purser, gateway } = await open(t);
  purser.upstream.handle = completion({
    prompt_tokens: 100,
    completion_tokens: 0,
    prompt_tokens_details: { cache_write_tokens: 50 },
  });
  const cost = async (model: string, ttl: object) => {
    const content = [{ type: 'text', text: 'hi', cache_control: { type: 'ephemeral', ...ttl } }];
    const answer = await gateway.chat({ model, messages: [{ role: 'user', content }] });
    return [answer.headers['x-purser-cost-usd'], sent(purser).body.messages[0].content[0].cache_control];
  };
  assert.deepEqual(await cost('own', { ttl: '1h' }), [usd(50 * 3000 + 50 * 6000), MARK]);
  assert.deepEqual(await cost('own', { ttl: '5m' }), [usd(50 * 3000 + 50 * 3750), { type: 'ephemeral' }]);
  assert.deepEqual(await cost('own', {}), [usd(50 * 3000 + 50 * 3750), { type: 'ephemeral' }]);
  assert.deepEqual(await cost('short', { ttl: '1h' }), [usd(50 * 3000 + 50 * 3750), { type: 'ephemeral' }]);
});

test('marks for prompt caches survive the translation where the upstream has a price for them', async (t) => {
  const { purser, other, gateway } = await open(t);
  const text = (it: string, mark?: object) => ({ type: 'text', text: it, ...(mark ? { cache_control: mark } : {}) });
  const body = {
    ...ASKED,
    system: [text('You help.'), text('Be brief.', MARK)],
    messages: [
      { role: 'user', content: [text('Look.')] },
      {
        role: 'assistant',
        content: [text('I look.'), { type: 'tool_use', id: 't', name: 'look', input: { cache_control: 1 } }],
      },
      {
        role: 'user',
        content: [{ type: 'tool_result', tool_use_id: 't', content: [text('sun')], cache_control: MARK }],
      },
      { role: 'user', content: [text('And?'), text('Now.', { type: 'ephemeral' })] },
    ],
    tools: [{ name: 'look', input_schema: { type: 'object' }, cache_control: MARK }],
  };
  other.handle = completion();
  assert.equal((await gateway.ask('POST', '/messages', { body: { ...body, model: 'back' } })).status, 200);
  const { messages, tools } = sent({ upstream: other }).body;
  assert.deepEqual(messages[0], { role: 'system', content: [text('You help.'), text('Be brief.', MARK)] });
  assert.deepEqual(messages[1], { role: 'user', content: 'Look.' });
  assert.equal(messages[2].tool_calls[0].function.arguments, '{"cache_control":1}');
  assert.deepEqual(messages[3], { role: 'tool', content: 'sun', tool_call_id: 't', cache_control: MARK });
  assert.deepEqual(messages[4].content, [text('And?'), text('Now.', { type: 'ephemeral' })]);
  assert.deepEqual(tools[0].cache_control, MARK);
  assert.equal((await latest(purser)).price.cached_for_hour, true);

  purser.upstream.handle = failure(503);
  assert.equal((await gateway.ask('POST', '/messages', { body: { ...body, model: 'both' } })).status, 200);
  const { messages: plain, tools: plainTools } = sent({ upstream: other }).body;
  assert.doesNotMatch(JSON.stringify([plain, plainTools]).replace('{\\"cache_control\\":1}', ''), /cache_control/);
  assert.deepEqual(plain[0], { role: 'system', content: 'You help.\n\nBe brief.' });
});
