import assert from 'node:assert/strict';
import test from 'node:test';
import { breakOff, completionStream, streaming } from '../helper/sse.ts';
import { completion, failure, type Handler, reset } from '../helper/upstream.ts';
import {
  ASKED,
  BLOCKS,
  COST,
  latest,
  MESSAGE_TEXT,
  message,
  messageStream,
  named,
  open,
  PING,
  RESPONSE,
  RESPONSE_COST,
  RESPONSE_EVENTS,
  response,
  responseStream,
  START,
  STOP,
  send,
  sent,
  usd,
} from './native-shared.ts';

test('fail-over goes from a server that speaks the API to one that does not, and back', async (t) => {
  const { purser, other, gateway } = await open(t);
  for (const stream of [false, true]) {
    for (const [path, body] of [
      ['/messages', { ...ASKED, stream }],
      ['/responses', { model: 'own', input: 'hi', stream }],
    ] as const) {
      purser.upstream.handle = failure(529, { type: 'error', error: { type: 'overloaded_error', message: 'busy' } });
      other.handle = stream ? completionStream() : completion();
      const translated = await gateway.ask('POST', path, { body: { ...body, model: 'both' } });
      assert.equal(translated.status, 200, translated.text);
      assert.match(translated.text, /hello|"lo"/);
      assert.equal(sent({ upstream: other }).path, '/v1/chat/completions');
      assert.deepEqual(sent({ upstream: other }).body.messages, [{ role: 'user', content: 'hi' }]);
      if (stream) {
        const error = named({ type: 'error', error: { type: 'overloaded_error', message: 'busy' } } as never);
        purser.upstream.handle = streaming(path === '/messages' ? START : (RESPONSE_EVENTS[0] as string), PING, error);
        const early = await gateway.ask('POST', path, { body: { ...body, model: 'both' } });
        assert.match(early.text, /"lo"/, 'an error before anything was said');
      }

      other.handle = failure(503);
      const isMessages = path === '/messages';
      purser.upstream.handle = isMessages ? (stream ? messageStream : message) : stream ? responseStream : response;
      const native = await gateway.ask('POST', path, { body: { ...body, model: 'back' } });
      assert.equal(native.status, 200, native.text);
      assert.match(native.text, isMessages ? /msg_01real/ : /resp_real/);
      assert.equal(sent(purser).path, `/v1${path}`);
    }
  }
  assert.equal(purser.wallet(gateway.walletId).held, 0n);
});

test('refusals of the server come in the shape of each API, and cost nothing', async (t) => {
  const { purser, gateway } = await open(t);
  const told = (type: string) => ({ type: 'error', error: { type, message: 'the reason' } });
  const cases: [number, string, number, string, string][] = [
    [400, 'invalid_request_error', 400, 'invalid_request_error', 'invalid_request'],
    [401, 'authentication_error', 503, 'overloaded_error', 'gateway_unavailable'],
    [404, 'not_found_error', 404, 'not_found_error', 'model_not_found'],
    [413, 'request_too_large', 413, 'request_too_large', 'payload_too_large'],
    [429, 'rate_limit_error', 429, 'rate_limit_error', 'rate_limited'],
    [529, 'overloaded_error', 503, 'overloaded_error', 'gateway_unavailable'],
    [200, 'rate_limit_error', 429, 'rate_limit_error', 'rate_limited'],
    [200, 'invalid_request_error', 400, 'invalid_request_error', 'invalid_request'],
  ];
  for (const [theirs, theirType, status, type, code] of cases)
    for (const stream of [false, true]) {
      purser.upstream.handle = failure(theirs, told(theirType));
      const message = await gateway.ask('POST', '/messages', { body: { ...ASKED, stream } });
      assert.deepEqual([message.status, message.body.error.type], [status, type], message.text);
      if (status < 500) assert.match(message.body.error.message, /the reason/);
      const response = await gateway.ask('POST', '/responses', { body: { model: 'own', input: 'hi', stream } });
      assert.deepEqual([response.status, response.body.error.code], [status, code], response.text);
    }
  assert.equal((await purser.budget(gateway.token)).used_usd, '0.00');
  assert.equal(purser.wallet(gateway.walletId).held, 0n);
});

test('a stream that breaks off ends with an error in its own API, and costs what was delivered', async (t) => {
  const { purser, gateway, anthropic, openai } = await open(t);
  const overloaded = named({ type: 'error', error: { type: 'overloaded_error', message: 'busy' } } as never);
  for (const [events, end] of [
    [[START, PING, ...BLOCKS.slice(0, 3)], breakOff],
    [[START, PING, ...BLOCKS.slice(0, 3)], overloaded],
  ] as const) {
    const { spent } = purser.wallet(gateway.walletId);
    purser.upstream.handle = streaming(...events, end);
    const texts: string[] = [];
    const stream = anthropic.messages.stream({ ...ASKED, max_tokens: 1000 }).on('thinking', (it) => texts.push(it));
    await assert.rejects(stream.finalMessage(), /answer to this request was lost/);
    assert.deepEqual(texts, ['They greet.']);
    const { usage, charge_usd: charged } = await latest(purser);
    assert.equal(usage.estimated, true);
    assert.equal(usage.completion_tokens, 'They greet.'.length + 'c2lnbmVk'.length);
    assert.equal(purser.wallet(gateway.walletId).spent - spent, BigInt(Math.round(Number(charged) * 1e9)));
    assert.deepEqual([usage.prompt_tokens, usage.cache_read_tokens, usage.cache_write_1h_tokens], [100, 60, 20]);
  }
  // The reason to stop came, the last event did not: the answer is whole.
  purser.upstream.handle = streaming(START, ...BLOCKS, STOP[0] as string, breakOff);
  assert.equal((await anthropic.messages.stream(ASKED).finalMessage()).stop_reason, 'tool_use');
  assert.equal((await latest(purser)).charge_usd, usd(COST));

  const failed = {
    ...RESPONSE,
    status: 'failed',
    error: { code: 'server_error', message: 'x' },
    usage: RESPONSE.usage,
  };
  for (const [more, cost] of [
    [[breakOff], undefined],
    [[named({ type: 'response.failed', sequence_number: 6, response: failed } as never)], RESPONSE_COST],
  ] as const) {
    purser.upstream.handle = streaming(...RESPONSE_EVENTS.slice(0, 6), ...more);
    const seen: any[] = [];
    await assert.rejects(async () => {
      for await (const it of await openai.responses.create({ model: 'own', input: 'hi', stream: true })) seen.push(it);
    }, /answer to this request was lost/);
    const { type, sequence_number: number, response: last } = seen.at(-1);
    assert.deepEqual([type, number, last.id, last.status], ['response.failed', 6, 'resp_real', 'failed']);
    assert.equal(seen.filter((it) => it.type === 'response.created').length, 1);
    if (cost) assert.equal((await latest(purser)).charge_usd, usd(cost));
  }
});

test('an unknown outcome keeps one hold, a retry with the same bytes takes it over, and the circuit opens', async (t) => {
  const { purser, gateway } = await open(t);
  for (const handle of [reset, ((_, answer) => send(answer, '{"id":"x"}')) as Handler]) {
    purser.upstream.handle = handle;
    const refused = await gateway.ask('POST', '/messages', { body: { ...ASKED, max_tokens: 900 } });
    assert.deepEqual([refused.status, refused.body.error.type], [503, 'api_error'], refused.text);
    const { held } = purser.wallet(gateway.walletId);
    assert.ok(held > 0n);
    purser.upstream.handle = message;
    const answer = await gateway.ask('POST', '/messages', { body: { ...ASKED, max_tokens: 900 } });
    assert.equal(answer.text, MESSAGE_TEXT);
    assert.equal(purser.wallet(gateway.walletId).held, 0n);
  }
  assert.equal((await purser.budget(gateway.token)).used_usd, usd(2 * COST));
  purser.upstream.handle = streaming(PING, breakOff);
  for (let i = 0; i < 3; i++) {
    const body = { ...ASKED, stream: true, temperature: i / 10 };
    assert.equal((await gateway.ask('POST', '/messages', { body })).body.error.type, 'api_error');
  }
  const open_ = await gateway.ask('POST', '/messages', { body: ASKED });
  assert.deepEqual([open_.status, open_.body.error.type], [503, 'overloaded_error']);
  assert.match(open_.body.error.message, /circuit_open/);
});

test('a time-out that is told inside an answer goes to no other upstream: the first may still be at work', async (t) => {
  const { purser, other, gateway } = await open(t);
  const error = { type: 'error', error: { type: 'timeout_error', message: 'too slow' } };
  const whole: Handler = (_, response) =>
    response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(error));
  for (const [stream, handle] of [
    [true, streaming(START, named(error as never))],
    [false, whole],
  ] as const) {
    purser.upstream.handle = handle;
    const answer = await gateway.ask('POST', '/messages', { body: { ...ASKED, stream, model: 'both' } });
    assert.equal(answer.status, 503, answer.text);
    assert.equal(other.calls.length, 0);
  }
  assert.equal(purser.wallet(gateway.walletId).held, 0n);
});

test('a sign of life is no answer: an error behind it costs nothing, and what breaks off behind it is unknown', async (t) => {
  const { purser, other, gateway } = await open(t);
  const [created, progress] = RESPONSE_EVENTS as [string, string];
  const alive = named({ type: 'keepalive', sequence_number: 2 } as never);
  const failed = { ...RESPONSE, status: 'failed', output: [], usage: null };
  const error = { code: 'server_error', message: 'busy' };
  const ended = named({ type: 'response.failed', sequence_number: 3, response: { ...failed, error } } as never);
  const overloaded = named({ type: 'error', error: { type: 'overloaded_error', message: 'busy' } } as never);
  for (const [path, body, events] of [
    ['/responses', { input: 'hi' }, [created, progress, alive, ended]],
    ['/responses', { input: 'hi' }, [alive, created, named({ type: 'error', ...error } as never)]],
    ['/messages', ASKED, [PING, START, PING, PING, overloaded]],
  ] as const) {
    const asked = other.calls.length;
    purser.upstream.handle = streaming(...events);
    const ask = (model: string) => gateway.ask('POST', path, { body: { ...body, model, stream: true } });
    const refused = await ask('own');
    assert.equal(refused.status, 503, refused.text);
    assert.match(refused.body.error.message, /Nothing was charged/);
    await ask('both');
    assert.equal(other.calls.length, asked + 1, 'another upstream is asked');
  }
  const { spent } = purser.wallet(gateway.walletId);
  purser.upstream.handle = streaming(created, progress, alive, breakOff);
  const answer = await gateway.ask('POST', '/responses', { body: { model: 'own', input: 'hi', stream: true } });
  assert.equal(answer.body.error.code, 'operation_uncertain', answer.text);
  assert.deepEqual([purser.wallet(gateway.walletId).spent, (await latest(purser)).state], [spent, 'uncertain']);
});

test('the arguments of a search for tools, which are an object, are a part of what was delivered', async (t) => {
  const { purser, gateway } = await open(t);
  const call = {
    type: 'tool_search_call',
    execution: 'client',
    call_id: 'call_1',
    arguments: { query: 'tools for files' },
  };
  const at = { output_index: 0, item: call };
  const done = [
    named({ type: 'response.output_item.added', sequence_number: 2, ...at } as never),
    named({ type: 'response.output_item.done', sequence_number: 3, ...at } as never),
  ];
  const answers: [stream: boolean, handle: Handler][] = [
    [true, streaming(...RESPONSE_EVENTS.slice(0, 2), ...done, breakOff)],
    [false, (_, answer) => send(answer, JSON.stringify({ ...RESPONSE, output: [call], usage: undefined }))],
  ];
  for (const [stream, handle] of answers) {
    purser.upstream.handle = handle;
    await gateway.ask('POST', '/responses', { body: { model: 'own', input: 'hi', stream } });
    const { usage } = await latest(purser);
    assert.deepEqual([usage.estimated, usage.completion_tokens], [true, JSON.stringify(call.arguments).length]);
  }
});
