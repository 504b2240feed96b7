import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import net from 'node:net';
import test from 'node:test';
import { openTestServer, UPSTREAM_KEY } from '../helper/server.ts';
import { completion, failure, halfBody, hang, reset } from '../helper/upstream.ts';

type Handler = ReturnType<typeof completion>;
const plain =
  (status: number, body: string): Handler =>
  (_, response) => {
    response.writeHead(status, { 'content-type': 'application/json' });
    response.end(body);
  };

/** A clear no: the hold comes back, the key is free, and the caller hears what it can mend. */
const REFUSED: [what: string, handler: Handler, status: number, code: string][] = [
  ['400', failure(400, { error: { message: 'bad schema' } }), 400, 'invalid_request'],
  ['401', failure(401), 503, 'gateway_unavailable'],
  ['402', failure(402), 503, 'gateway_unavailable'],
  ['403', failure(403), 503, 'gateway_unavailable'],
  ['404', failure(404, { error: { message: 'no such model' } }), 404, 'model_not_found'],
  ['413', failure(413), 413, 'payload_too_large'],
  ['422', failure(422, { detail: 'not so' }), 400, 'invalid_request'],
  ['429', failure(429, { error: { message: 'slow down' } }, { 'retry-after': '7' }), 429, 'rate_limited'],
  [
    '400 with a body that breaks off',
    (_, response) => {
      response.writeHead(400, { 'content-length': '500' });
      response.write('{"error"');
      setImmediate(() => response.socket?.destroy());
    },
    400,
    'invalid_request',
  ],
  ...[300, 301, 302, 307, 308, 405, 500, 501, 502, 503, 507, 520, 529].map((it): [string, Handler, number, string] => [
    `${it}`,
    failure(it),
    503,
    'gateway_unavailable',
  ]),
  ['302 to somewhere', failure(302, '', { location: 'http://127.0.0.1:1/' }), 503, 'gateway_unavailable'],
  ['500 in plain text', plain(500, 'Internal Server Error'), 503, 'gateway_unavailable'],
  ['502 by a proxy', plain(502, '<html><h1>502 Bad Gateway</h1></html>'), 503, 'gateway_unavailable'],
  ['503 without a body', plain(503, ''), 503, 'gateway_unavailable'],
  ['200 with an error', failure(200, { error: { message: 'no', code: 502 } }), 503, 'gateway_unavailable'],
  ['200 with the error 429', failure(200, { error: { message: 'no', code: 429 } }), 429, 'rate_limited'],
  ['200 with the error 504', failure(200, { error: { message: 'no', code: 504 } }), 503, 'gateway_unavailable'],
  ['200 with a bare error', failure(200, { error: 'no', choices: [] }), 503, 'gateway_unavailable'],
  [
    '200 with an object of the kind error',
    failure(200, { object: 'error', message: 'no', code: 400 }),
    400,
    'invalid_request',
  ],
];

for (const [what, handler, status, code] of REFUSED) {
  test(`an upstream that answers ${what} costs nothing and frees the key`, async (t) => {
    const house = await openTestServer(t);
    const { token } = await house.openWallet();
    house.upstream.handle = handler;
    const refused = await house.chat(token, {}, 'same');
    assert.equal(refused.status, status, refused.text);
    assert.equal(refused.body.error.code, code);
    assert.equal(/[Nn]othing was charged/.test(refused.body.error.message), code === 'gateway_unavailable');
    if (what === '429') assert.equal(refused.headers['retry-after'], '7');
    const budget = await house.budget(token);
    assert.deepEqual([budget.held_usd, budget.used_usd], ['0.00', '0.00']);

    house.upstream.handle = completion();
    assert.equal((await house.chat(token, {}, 'same')).status, 200, 'a refusal frees the key');
    assert.equal(house.upstream.calls.length, 2);
    assert.deepEqual(house.problems(), []);
  });
}

/** Nobody knows: the hold stays, the same key is never sent twice, and the reaper decides by the stated policy. */
const UNKNOWN: [what: string, handler: Handler][] = [
  ['resets the connection after the request was sent', reset],
  ['ends in the middle of its answer', halfBody],
  ['answers 200 with something that is not JSON', plain(200, '<html>busy</html>')],
  ['answers 200 with a bare string', plain(200, '"hello"')],
  ['answers 200 with nothing', plain(200, '')],
  ...[408, 425, 499, 504, 522, 524].map((it): [string, Handler] => [`answers ${it}`, failure(it)]),
  [
    'answers 500 and breaks off',
    (_, response) => {
      response.writeHead(500, { 'content-length': '500' });
      response.write('{"error"');
      setImmediate(() => response.socket?.destroy());
    },
  ],
  ['answers 500 with an answer in it', failure(500, { choices: [{ message: { content: 'a' } }] })],
  ['answers 204', plain(204, '')],
];

for (const [what, handler] of UNKNOWN) {
  test(`an upstream that ${what} leaves the outcome uncertain, and is never asked again for it`, async (t) => {
    const house = await openTestServer(t);
    const { token } = await house.openWallet();
    house.upstream.handle = handler;
    const first = await house.chat(token, {}, 'same');
    assert.equal(first.status, 503, first.text);
    assert.equal(first.body.error.code, 'operation_uncertain');
    assert.ok(Number(first.headers['retry-after']) > 0);
    const { holds, held_usd: held } = await house.budget(token);
    const message = first.body.error.message;
    assert(message.includes(`${held} USD held for it are charged after 900 s, or when the wallet is closed`), message);
    assert.equal(holds.length, 1);
    assert.deepEqual([holds[0].state, holds[0].kind, holds[0].amount_usd], ['uncertain', 'chat', held]);

    house.upstream.handle = completion();
    const retried = await house.chat(token, {}, 'same');
    assert.equal(retried.body.error.code, 'operation_uncertain');
    assert.equal(house.upstream.calls.length, 1, 'there is never a second call for an unresolved chat');

    house.clock.advance(901);
    assert.equal((await house.app.reaper.runOnce()).resolved, 1);
    const lost = await house.chat(token, {}, 'same');
    assert.equal(lost.status, 409);
    assert.equal(lost.body.error.code, 'answer_lost');
    assert.ok(lost.body.error.message.includes(`${held} USD were charged`), lost.text);
    const after = await house.budget(token);
    assert.deepEqual([after.used_usd, after.held_usd], [held, '0.00']);
    assert.equal(house.upstream.calls.length, 1);
    assert.deepEqual(house.problems(), []);
  });
}

test('an upstream that does not answer in its time leaves the outcome uncertain', async (t) => {
  const house = await openTestServer(t);
  const { token } = await house.openWallet();
  await house.app[Symbol.asyncDispose]();
  const settings = {
    router: {
      upstreams: [{ name: 'house', base_url: house.upstream.url, timeout_seconds: 1 }],
      models: [
        { id: 'chat', upstream: 'house', context_length: 1000, max_output_tokens: 100, pricing: { request: '0.5' } },
      ],
    },
  };
  writeFileSync(`${house.directory}/purser.yaml`, JSON.stringify({ listen: '127.0.0.1:0', ...settings }));
  await house.reopen();
  house.upstream.handle = hang;
  const answer = await house.chat(token);
  assert.equal(answer.body.error.code, 'operation_uncertain');
  assert.equal((await house.budget(token)).held_usd, '0.50');
});

test('an upstream that refuses the connection never heard of it: nothing is charged and the key is free', async (t) => {
  const closed = net.createServer();
  await new Promise<void>((resolve) => closed.listen(0, '127.0.0.1', resolve));
  const { port } = closed.address() as net.AddressInfo;
  await new Promise((resolve) => closed.close(resolve));
  const model = {
    id: 'chat',
    upstream: 'gone',
    context_length: 1000,
    max_output_tokens: 100,
    pricing: { request: '0.5' },
  };
  const house = await openTestServer(t, {
    settings: { router: { upstreams: [{ name: 'gone', base_url: `http://127.0.0.1:${port}/v1` }], models: [model] } },
  });
  const { token } = await house.openWallet();
  for (let i = 0; i < 2; i++) {
    const answer = await house.chat(token, {}, 'same');
    assert.equal(answer.status, 503);
    assert.equal(answer.body.error.code, 'gateway_unavailable');
  }
  const budget = await house.budget(token);
  assert.deepEqual([budget.held_usd, budget.used_usd], ['0.00', '0.00']);
});

const USAGES: [what: string, usage: unknown][] = [
  ['no usage', undefined],
  ['a usage of null', null],
  ['usage as strings', { prompt_tokens: '1', completion_tokens: '1' }],
  ['a negative usage', { prompt_tokens: -1, completion_tokens: 1 }],
  ['a fractional usage', { prompt_tokens: 1.5, completion_tokens: 1 }],
  ['half a usage', { prompt_tokens: 1 }],
];
for (const [what, usage] of USAGES) {
  test(`an answer with ${what} is charged by the bound of its prompt and the bytes of its text`, async (t) => {
    const house = await openTestServer(t);
    const { id, token } = await house.openWallet();
    const choices = [{ index: 0, message: { role: 'assistant', content: 'hello' } }];
    house.upstream.handle = usage === undefined ? failure(200, { choices }) : completion(usage);
    const answer = await house.chat(token, {}, 'same');
    assert.equal(answer.status, 200);
    const [operation] = (await house.run('operation.list', {})).operations;
    const bound = Number(operation?.price.bound_prompt_tokens);
    assert.equal(house.wallet(id).spent, BigInt(100_000 + bound * 1000 + 5 * 2000));
    assert.equal(house.wallet(id).held, 0n);
    assert.deepEqual(operation?.usage, { estimated: true, prompt_tokens: bound, completion_tokens: 5 });
    const { steps } = await house.run('wallet.timeline', { id });
    assert.equal(steps.find((it) => it.what === 'charged')?.usage?.estimated, true);
    assert.equal(house.log.filter((line) => line.includes('operation.estimated')).length, 1);
    assert.match(await house.app.events.registry.metrics(), /^purser_usage_missing_total 1$/m);
    assert.equal((await house.chat(token, {}, 'same')).text, answer.text);
    assert.deepEqual(house.problems(), []);
  });
}

/** One token above the bound, far above it, and thinking that only the total shows. */
const COUNTED: [usage: Record<string, unknown>, charge: (hold: bigint) => bigint, alarms: number][] = [
  [{ prompt_tokens: 10, completion_tokens: 101 }, () => 312_000n, 1],
  [{ prompt_tokens: 1000, completion_tokens: 5 }, (hold) => hold, 1],
  [{ prompt_tokens: 30_000, completion_tokens: 1_000_000 }, (hold) => hold, 1],
  [{ prompt_tokens: 10, completion_tokens: 5, total_tokens: 25 }, () => 140_000n, 0],
  [{ prompt_tokens: 10, completion_tokens: 5, total_tokens: 3 }, () => 120_000n, 0],
  [{ prompt_tokens: 10, completion_tokens: 5, total_tokens: 'x' }, () => 120_000n, 0],
  [
    { prompt_tokens: 10, completion_tokens: 5, total_tokens: 22, completion_tokens_details: { reasoning_tokens: 7 } },
    () => 134_000n,
    0,
  ],
];
for (const [usage, charge, alarms] of COUNTED)
  test(`${JSON.stringify(usage)} is charged by its price, at most the hold`, async (t) => {
    const house = await openTestServer(t);
    const { id, token } = await house.openWallet();
    house.upstream.handle = completion(usage);
    const answer = await house.chat(token, { max_tokens: 100 });
    assert.equal(answer.status, 200);
    const [operation] = (await house.run('operation.list', {})).operations;
    const hold = BigInt(100_000 + Number(operation?.price.bound_prompt_tokens) * 1000 + 100 * 2000);
    assert.equal(house.wallet(id).spent, charge(hold));
    assert.equal(house.log.filter((line) => line.includes('operation.bound_exceeded')).length, alarms);
    assert.deepEqual(house.problems(), []);
  });

test('a redirect and a refused key are told as faults of the configuration, without any secret', async (t) => {
  const house = await openTestServer(t);
  const { token } = await house.openWallet();
  const location = `https://user:hidden@models.example/v1?key=hidden&k=${UPSTREAM_KEY}`;
  for (const [handler, told, fault] of [
    [failure(301, '', { location }), /answered 301, a redirect/, /a redirect to https:\/\/models.example\/v1: correct/],
    [failure(401, { error: { message: `no key ${UPSTREAM_KEY}` } }), /refused this gateway \(401\)/, /its api_key is/],
    [failure(403), /refused this gateway \(403\)/, /its api_key is/],
  ] as const) {
    house.upstream.handle = handler;
    const before = house.log.length;
    const { body, text } = await house.chat(token);
    assert.match(body.error.message, told);
    assert.match(body.error.message, /for the operator of this gateway to correct\. Nothing was charged\./);
    const lines = house.log.slice(before);
    const line = lines.map((it) => JSON.parse(it)).find((it) => it.event === 'upstream.misconfigured');
    assert.equal(line?.level, 50);
    assert.match(line?.fault, fault);
    assert.doesNotMatch([text, ...lines].join(), /hidden|sk-upstream/);
  }
});

test('what goes upstream is the priced request, with the reserved limit written into it', async (t) => {
  const house = await openTestServer(t);
  const { token } = await house.openWallet({ budget_cents: 10_000 });
  await house.chat(token, { max_tokens: 5_000, n: 3, temperature: 0.5, store: false, stream: false });
  const [call] = house.upstream.calls;
  assert.equal(call?.path, '/v1/chat/completions');
  assert.deepEqual(call?.body, {
    model: 'real/chat',
    messages: [{ role: 'user', content: 'hi' }],
    temperature: 0.5,
    n: 3,
    store: false,
    max_tokens: 1000,
    stream: false,
  });
  assert.match(call?.headers.authorization ?? '', /^Bearer sk-upstream/);
  const { operations } = await house.run('operation.list', {});
  assert.equal(call?.headers['idempotency-key'], operations[0]?.id);
  assert.equal(operations[0]?.price.bound_completion_tokens, 3000);
});
