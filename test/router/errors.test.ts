import assert from 'node:assert/strict';
import test from 'node:test';
import { REFUSALS, type RefusalCode } from '../../src/base/refusal.ts';
import { isPassing } from '../../src/http/openai-error.ts';
import { openGateway } from '../helper/gateway.ts';
import { type Answer, openTestServer, type TestServer } from '../helper/server.ts';
import { breakOff, completionStream, forever, said, streaming } from '../helper/sse.ts';
import { completion, failure, gate, reset } from '../helper/upstream.ts';

/** The type that OpenAI's clients know for a status. */
const TYPES: Record<number, string> = {
  400: 'invalid_request_error',
  401: 'authentication_error',
  402: 'billing_error',
  403: 'permission_error',
  404: 'invalid_request_error',
  405: 'invalid_request_error',
  409: 'invalid_request_error',
  413: 'invalid_request_error',
  415: 'invalid_request_error',
  429: 'rate_limit_error',
  503: 'server_error',
};

/** Asserts the one shape that every error under the gateway's base URL has, and what a stock client is told to do. */
function assertOpenAiError(answer: Answer, status: number, code: string, retry: boolean, param: string | null = null) {
  const where = `${answer.status} ${answer.text.slice(0, 300)}`;
  assert.deepEqual([answer.status, answer.body?.error?.code], [status, code], where);
  assert.match(String(answer.headers['content-type']), /^application\/json\b/, where);
  assert.deepEqual(Object.keys(answer.body).sort(), ['error', 'request_id'], where);
  assert.deepEqual(Object.keys(answer.body.error).sort(), ['code', 'message', 'param', 'type'], where);
  assert.equal(answer.body.error.type, TYPES[status], where);
  assert.equal(answer.body.error.param, param, where);
  assert.match(answer.body.error.message, /^\S.*[.!?…]$/s, where);
  assert.match(answer.body.request_id, /^req_[0-9a-z]{26}$/);
  assert.equal(answer.headers['x-request-id'], answer.body.request_id);
  assert.equal(answer.headers['x-should-retry'], String(retry), where);
}

const no = (status: number) => failure(status, { error: { message: 'No.' } });
const CHAT = '/chat/completions';
const hi = { messages: [{ role: 'user', content: 'hi' }] };

test('every error under the base URL has the shape that OpenAI’s clients read', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  const post = (body: unknown, more: object = {}) => gateway.ask('POST', CHAT, { body, ...more });
  const cases: [Promise<Answer>, number, string, (string | null)?][] = [
    [gateway.ask('GET', '/no/such/path'), 404, 'not_found'],
    [gateway.ask('POST', '/images/generations', { body: {} }), 404, 'not_found'],
    [gateway.ask('POST', '/responses', { body: {} }), 400, 'invalid_request', 'model'],
    [gateway.ask('GET', CHAT), 405, 'method_not_allowed'],
    [gateway.ask('DELETE', '/models/chat'), 405, 'method_not_allowed'],
    [post(hi, { token: undefined }), 401, 'unauthenticated'],
    [post(hi, { token: purser.accountKey }), 403, 'wrong_token_scope'],
    [post(undefined, { headers: { 'content-type': 'text/plain' }, body: 'hi' }), 415, 'unsupported_media_type'],
    [post('{"model":'), 400, 'invalid_json'],
    [post(''), 400, 'invalid_json'],
    [post(Buffer.from([0xff, 0xfe])), 400, 'invalid_json'],
    [post([]), 400, 'invalid_request'],
    [post(hi), 400, 'invalid_request', 'model'],
    [post({ model: 'chat' }), 400, 'invalid_request', 'messages'],
    [post({ model: 'chat', messages: [] }), 400, 'invalid_request', 'messages'],
    [post({ model: 'chat', ...hi, n: 0 }), 400, 'invalid_request', 'n'],
    [post({ model: 'chat', ...hi, stream: 1 }), 400, 'invalid_request', 'stream'],
    [post({ model: 'chat', ...hi, audio: {} }), 400, 'unsupported_parameter', 'audio'],
    [post({ model: 'chat', ...hi }, { key: 'x'.repeat(129) }), 400, 'invalid_idempotency_key'],
    [post({ model: 'chat', ...hi }, { key: '' }), 400, 'invalid_idempotency_key'],
    [post({ model: 'none', ...hi }), 404, 'model_not_found', 'model'],
    [gateway.ask('GET', '/models/none'), 404, 'model_not_found', 'model'],
    [post({ model: 'dear', ...hi, n: 100 }), 402, 'insufficient_funds'],
    [post(`{"model":"chat","messages":"${'x'.repeat(8 * 1024 * 1024)}"}`), 413, 'payload_too_large'],
  ];
  for (const [asked, status, code, param] of cases) assertOpenAiError(await asked, status, code, false, param);
  assert.deepEqual(purser.upstream.calls, []);
  const elsewhere = await purser.ask('GET', '/v1/no/such/path', { token: gateway.key });
  assert.deepEqual(
    Object.keys(elsewhere.body.error).sort(),
    ['code', 'message'],
    'elsewhere it is the interface’s own',
  );
  assert.equal(elsewhere.headers['x-should-retry'], undefined);
  const made = await purser.ask('POST', '/v1/router/key', { token: gateway.token, body: { models: 1 } });
  assert.deepEqual(Object.keys(made.body.error).sort(), ['code', 'message'], 'the key itself is made by the interface');
});

test('what an upstream says comes in the same shape, and tells a stock client whether to come again', async (t) => {
  const purser = await openTestServer(t, { unknownCountMax: Infinity });
  const gateway = await openGateway(purser);
  const cases: [ReturnType<typeof failure>, number, string, boolean][] = [
    [no(400), 400, 'invalid_request', false],
    [no(404), 404, 'model_not_found', false],
    [no(413), 413, 'payload_too_large', false],
    [no(429), 429, 'rate_limited', true],
    [no(401), 503, 'gateway_unavailable', true],
    [no(503), 503, 'gateway_unavailable', true],
    [no(502), 503, 'gateway_unavailable', true],
    [no(504), 503, 'operation_uncertain', false],
    [reset, 503, 'operation_uncertain', false],
  ];
  for (const [handler, status, code, retry] of cases)
    for (const stream of [false, true]) {
      purser.upstream.handle = handler;
      assertOpenAiError(await gateway.chat({ stream }), status, code, retry);
    }
});

test('whoever sent no key is told nothing of keys when a stream breaks, and of the earlier hold when a retry is refused', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  purser.upstream.handle = streaming(said('a'), breakOff);
  const body = { max_tokens: 50 };
  assert.match(
    (await gateway.chat({ ...body, stream: true })).text,
    /That is final; asked again, it is a new request\./,
  );
  assert.match((await gateway.chat({ ...body, stream: true }, 'k')).text, /That is final; a new key is safe now\./);
  purser.upstream.handle = reset;
  await gateway.chat();
  const { held_usd: held } = await purser.budget(gateway.token);
  purser.upstream.handle = failure(500);
  const { status, text } = await gateway.chat();
  assert.equal(status, 503, text);
  assert(text.includes(`The ${held} USD held for the earlier attempt are charged after 900 s`), text);
  assert.doesNotMatch(text, /Nothing was charged/);
  assert.equal((await purser.budget(gateway.token)).held_usd, held);
});

test('whoever sent no key is told that the same body takes its place', async (t) => {
  const purser = await openTestServer(t, { unknownCountMax: Infinity });
  const gateway = await openGateway(purser);
  for (const [key, stream] of [
    ['plain', false],
    ['before', true],
  ] as const) {
    purser.upstream.handle = reset;
    const [unkeyed, keyed] = [await gateway.chat({ stream }), await gateway.chat({ stream }, key)];
    assert.match(unkeyed.text, /Asked again with the same body, it takes the place of this one/);
    assert.doesNotMatch(unkeyed.text, /same Idempotency-Key/);
    assert.match(keyed.text, /Retry with the same Idempotency-Key and body, never under a new key/);
    for (const answer of [unkeyed, keyed]) {
      assertOpenAiError(answer, 503, 'operation_uncertain', false);
      assert.match(answer.text, /0\.\d+ USD held for it are charged after 900 s, or when the wallet is closed/);
      assert.equal(answer.headers['retry-after'], '30');
    }
  }
});

test('a conflict, a lost answer and one that is no longer kept are final', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  purser.upstream.handle = streaming(said('a'), forever);
  const stream = await gateway.stream({}, 'k');
  await stream.next();
  assertOpenAiError(await gateway.streamed({ max_tokens: 5 }, 'k'), 409, 'idempotency_conflict', false);
  stream.leave();
  purser.upstream.handle = reset;
  await gateway.chat({}, 'lost');
  purser.clock.advance(901);
  await purser.app.reaper.runOnce();
  assertOpenAiError(await gateway.chat({}, 'lost'), 409, 'answer_lost', false);
  purser.upstream.handle = completion();
  await gateway.chat({}, 'old');
  purser.clock.advance(72 * 3600 - 1);
  assert.equal((await gateway.chat({}, 'old')).headers['idempotent-replayed'], 'true');
  purser.clock.advance(1);
  assertOpenAiError(await gateway.chat({}, 'old'), 409, 'idempotency_key_expired', false);
});

test('which codes are worth a retry is written down, whole', () => {
  const passing: RefusalCode[] = [
    'funds_held',
    'rate_limited',
    'idempotency_in_progress',
    'gateway_unavailable',
    'read_only',
  ];
  const all = Object.keys(REFUSALS) as RefusalCode[];
  assert.deepEqual(all.filter((code) => isPassing(code)).sort(), passing.sort());
});

test('an exhausted wallet is a 402 that nobody repeats; held funds are a 429 that stock clients wait out', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser, { wallet: { budget_cents: 100 } });
  for (const stream of [false, true]) {
    const exhausted = await gateway.chat({ model: 'dear', max_tokens: 101, stream });
    assertOpenAiError(exhausted, 402, 'insufficient_funds', false);
    assert.equal(exhausted.headers['retry-after'], undefined);
    assert.match(
      exhausted.body.error.message,
      /needs 1\.01 USD at most; the wallet has 1\.00 USD available and 0\.00 USD held.*with max_tokens 100 it would fit/,
    );
  }
  const held = gate(completionStream({ prompt_tokens: 0, completion_tokens: 0 }));
  purser.upstream.handle = held.handler;
  const running = gateway.streamed({ model: 'dear', max_tokens: 90 });
  await purser.upstream.arrived(1);
  for (const stream of [false, true]) {
    const waits = await gateway.chat({ model: 'dear', max_tokens: 50, stream });
    assertOpenAiError(waits, 429, 'funds_held', true);
    assert(Number(waits.headers['retry-after']) >= 1 && Number(waits.headers['retry-after']) <= 60);
    assert.match(
      waits.body.error.message,
      /needs 0\.50 USD at most; the wallet has 0\.10 USD available and 0\.90 USD held.*with max_tokens 10 it would fit/,
    );
  }
  // The same at the strict endpoint is the interface's 402.
  const strict = await purser.chat(gateway.token, { model: 'dear', max_tokens: 50 });
  assert.deepEqual([strict.status, strict.body.error.code], [402, 'funds_held']);
  const fits = gateway.streamed({ model: 'dear', max_tokens: 10 });
  held.open();
  for (const answer of await Promise.all([running, fits])) assert.equal(answer.status, 200);
  assert.equal((await gateway.streamed({ model: 'dear', max_tokens: 50 })).status, 200, 'and then it is granted');
});

const perMinute = (count: number) => ({
  settings: {
    limits: { wallet_requests_per_minute: count, account_requests_per_minute: 0, failed_auth_per_minute: 0 },
  },
});
const left = ({ headers }: Pick<Answer, 'headers'>) => [
  headers['x-ratelimit-limit-requests'],
  headers['x-ratelimit-remaining-requests'],
];

test('rate-limit headers count down on every answer, streams and refusals too, and the limit is a 429', async (t) => {
  const purser = await openTestServer(t, perMinute(6));
  const gateway = await openGateway(purser); // Making the key was the first of the six.
  purser.upstream.handle = completion();
  const plain = await gateway.chat({ model: 'free' });
  assert.deepEqual(left(plain), ['6', '4']);
  assert.match(String(plain.headers['x-ratelimit-reset-requests']), /^\d+s$/);
  purser.upstream.handle = completionStream();
  assert.deepEqual(left(await gateway.streamed({ model: 'free' })), ['6', '3']);
  assert.deepEqual(left(await gateway.chat({ model: 'none' })), ['6', '2']);
  assert.deepEqual(left(await gateway.ask('GET', '/models')), ['6', '1']);
  assert.deepEqual(left(await gateway.ask('GET', '/models/free')), ['6', '0']);
  for (const stream of [false, true]) {
    const refused = await gateway.chat({ model: 'free', stream });
    assertOpenAiError(refused, 429, 'rate_limited', true);
    assert.deepEqual(left(refused), ['6', '0']);
    assert(Number(refused.headers['retry-after']) >= 1);
  }
  assert.equal(purser.upstream.calls.length, 2);
});

test('without a limit there are no rate-limit headers, and an unauthenticated client is told nothing of anybody’s', async (t) => {
  const free = await openTestServer(t);
  assert.deepEqual(left(await (await openGateway(free)).ask('GET', '/models')), [undefined, undefined]);
  const purser = await openTestServer(t, perMinute(6));
  assert.deepEqual(left(await purser.ask('GET', '/v1/router/models', { token: 'x' })), [undefined, undefined]);
});

test('the list of models is OpenAI’s, with prices and limits', async (t) => {
  const purser: TestServer = await openTestServer(t);
  const gateway = await openGateway(purser);
  const { body } = await gateway.ask('GET', '/models');
  assert.equal(body.object, 'list');
  const chat = body.data.find(({ id }: { id: string }) => id === 'chat');
  assert.deepEqual(
    { ...chat, created: 0 },
    {
      id: 'chat',
      object: 'model',
      created: 0,
      owned_by: 'purser',
      context_length: 32768,
      max_output_tokens: 1000,
      pricing: { prompt: '0.000001', completion: '0.000002', request: '0.0001' },
    },
  );
  assert.deepEqual((await gateway.ask('GET', '/models/chat')).body, chat);
});

test('a model’s name may hold slashes, colons and blanks', async (t) => {
  const ids = ['qwen/qwen3-8b', 'a/b/c:free', 'with blank', 'ümlaut', '100%'];
  const purser = await openTestServer(t, {
    change: (all) => ({
      ...all,
      router: { ...all.router, models: ids.map((id) => ({ ...all.router.models[2], id })) },
    }),
  });
  const gateway = await openGateway(purser);
  for (const id of ids) {
    for (const path of new Set([encodeURIComponent(id), encodeURI(id)])) {
      const answer = await gateway.ask('GET', `/models/${path}`);
      assert.deepEqual([answer.status, answer.body.id], [200, id], `${path}: ${answer.text}`);
    }
    assert.equal((await gateway.chat({ model: id })).status, 200);
    assert.equal(purser.upstream.calls.at(-1)?.body.model, id);
  }
});
