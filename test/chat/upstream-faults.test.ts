import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import net from 'node:net';
import test, { suite } from 'node:test';
import { openedOnce } from '../helper/opened-once.ts';
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

suite('an upstream that refuses', () => {
  const opened = openedOnce(openTestServer);
  for (const [what, handler, status, code] of REFUSED) {
    test(`an upstream that answers ${what} costs nothing and frees the key`, async () => {
      const purser = opened();
      const before = purser.upstream.calls.length;
      const { token } = await purser.openWallet();
      purser.upstream.handle = handler;
      const refused = await purser.chat(token, {}, 'same');
      assert.equal(refused.status, status, refused.text);
      assert.equal(refused.body.error.code, code);
      assert.equal(/[Nn]othing was charged/.test(refused.body.error.message), code === 'gateway_unavailable');
      if (what === '429') assert.equal(refused.headers['retry-after'], '7');
      const budget = await purser.budget(token);
      assert.deepEqual([budget.held_usd, budget.used_usd], ['0.00', '0.00']);

      purser.upstream.handle = completion();
      assert.equal((await purser.chat(token, {}, 'same')).status, 200, 'a refusal frees the key');
      assert.equal(purser.upstream.calls.length - before, 2);
      assert.deepEqual(purser.problems(), []);
    });
  }
});

test('the time to wait that an upstream names is told as a number of seconds, or as ours', async (t) => {
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet();
  for (const [named, told] of [
    ['7', '7'],
    ['1.5', '2'],
    ['0', '0'],
    ['90000', '86400'],
    ['1e300', '86400'],
    ['99999999999999999999999', '86400'],
    ['', '5'],
    ['-1', '5'],
    ['Infinity', '5'],
    ['Wed, 21 Oct 2026 07:28:00 GMT', '5'],
  ] as const) {
    purser.upstream.handle = failure(429, {}, { 'retry-after': named });
    assert.equal((await purser.chat(token)).headers['retry-after'], told, named);
  }
});

/** Nobody knows: the hold stays, the same key is never sent twice, and the reaper decides by the stated policy. */
const UNKNOWN: [what: string, handler: Handler][] = [
  ['resets the connection after the request was sent', reset],
  ['ends in the middle of its answer', halfBody],
  ['answers 200 with something that is not JSON', plain(200, '<html>busy</html>')],
  ['answers 200 with a bare string', plain(200, '"hello"')],
  ['answers 200 with nothing', plain(200, '')],
  ...[{}, [], { choices: [] }, { detail: 'Model is loading' }, { message: 'quota exceeded', code: 429 }].map(
    (it): [string, Handler] => [`answers 200 with ${JSON.stringify(it)}`, failure(200, it)],
  ),
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
    const purser = await openTestServer(t);
    const { token } = await purser.openWallet();
    purser.upstream.handle = handler;
    const first = await purser.chat(token, {}, 'same');
    assert.equal(first.status, 503, first.text);
    assert.equal(first.body.error.code, 'operation_uncertain');
    assert.ok(Number(first.headers['retry-after']) > 0);
    const { holds, held_usd: held } = await purser.budget(token);
    const message = first.body.error.message;
    assert(message.includes(`${held} USD held for it are charged after 900 s, or when the wallet is closed`), message);
    assert.equal(holds.length, 1);
    assert.deepEqual([holds[0].state, holds[0].kind, holds[0].amount_usd], ['uncertain', 'chat', held]);

    purser.upstream.handle = completion();
    const retried = await purser.chat(token, {}, 'same');
    assert.equal(retried.body.error.code, 'operation_uncertain');
    assert.equal(purser.upstream.calls.length, 1, 'there is never a second call for an unresolved chat');

    purser.clock.advance(901);
    assert.equal((await purser.app.reaper.runOnce()).resolved, 1);
    const lost = await purser.chat(token, {}, 'same');
    assert.equal(lost.status, 409);
    assert.equal(lost.body.error.code, 'answer_lost');
    assert.ok(lost.body.error.message.includes(`${held} USD were charged`), lost.text);
    const after = await purser.budget(token);
    assert.deepEqual([after.used_usd, after.held_usd], [held, '0.00']);
    assert.equal(purser.upstream.calls.length, 1);
    assert.deepEqual(purser.problems(), []);
  });
}

test('an upstream that does not answer in its time leaves the outcome uncertain', async (t) => {
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet();
  await purser.app[Symbol.asyncDispose]();
  const settings = {
    router: {
      upstreams: [{ name: 'local', base_url: purser.upstream.url, timeout_seconds: 1 }],
      models: [
        { id: 'chat', upstream: 'local', context_length: 1000, max_output_tokens: 100, pricing: { request: '0.5' } },
      ],
    },
  };
  writeFileSync(`${purser.directory}/purser.yaml`, JSON.stringify({ listen: '127.0.0.1:0', ...settings }));
  await purser.reopen();
  purser.upstream.handle = hang;
  const answer = await purser.chat(token);
  assert.equal(answer.body.error.code, 'operation_uncertain');
  assert.equal((await purser.budget(token)).held_usd, '0.50');
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
  const purser = await openTestServer(t, {
    settings: { router: { upstreams: [{ name: 'gone', base_url: `http://127.0.0.1:${port}/v1` }], models: [model] } },
  });
  const { token } = await purser.openWallet();
  for (let i = 0; i < 2; i++) {
    const answer = await purser.chat(token, {}, 'same');
    assert.equal(answer.status, 503);
    assert.equal(answer.body.error.code, 'gateway_unavailable');
  }
  const budget = await purser.budget(token);
  assert.deepEqual([budget.held_usd, budget.used_usd], ['0.00', '0.00']);
});

/** What can be read of it: otherwise the bound of the prompt counts, and the bytes of the text. */
const USAGES: [what: string, usage: unknown, told?: { prompt?: number; completion?: number }][] = [
  ['no usage', undefined],
  ['a usage of null', null],
  ['usage as strings', { prompt_tokens: '1', completion_tokens: '1' }],
  ['a negative usage', { prompt_tokens: -1, completion_tokens: 1 }, { completion: 1 }],
  ['a fractional usage', { prompt_tokens: 1.5, completion_tokens: 1 }, { completion: 1 }],
  ['half a usage', { prompt_tokens: 1 }, { prompt: 1 }],
];
for (const [what, usage, told = {}] of USAGES) {
  test(`an answer with ${what} is charged by the bound of its prompt and the bytes of its text where it tells neither`, async (t) => {
    const purser = await openTestServer(t);
    const { id, token } = await purser.openWallet();
    const choices = [{ index: 0, message: { role: 'assistant', content: 'hello' } }];
    purser.upstream.handle = usage === undefined ? failure(200, { choices }) : completion(usage);
    const answer = await purser.chat(token, {}, 'same');
    assert.equal(answer.status, 200);
    const [operation] = (await purser.run('operation.list', {})).operations;
    const { prompt = Number(operation?.price.bound_prompt_tokens), completion: tokens = 5 } = told;
    assert.equal(purser.wallet(id).spent, BigInt(100_000 + prompt * 1000 + tokens * 2000));
    assert.equal(purser.wallet(id).held, 0n);
    assert.deepEqual(operation?.usage, { estimated: true, prompt_tokens: prompt, completion_tokens: tokens });
    const { steps } = await purser.run('wallet.timeline', { id });
    assert.equal(steps.find((it) => it.what === 'charged')?.usage?.estimated, true);
    assert.equal(purser.log.filter((line) => line.includes('operation.estimated')).length, 1);
    assert.match(await purser.app.events.registry.metrics(), /^purser_usage_missing_total 1$/m);
    assert.equal((await purser.chat(token, {}, 'same')).text, answer.text);
    assert.deepEqual(purser.problems(), []);
  });
}

/** One token above the bound, far above it, and what only the total shows: of the prompt, thinking, more than any prompt has. */
const COUNTED: [usage: Record<string, unknown>, charge: (hold: bigint) => bigint, alarms: number][] = [
  [{ prompt_tokens: 10, completion_tokens: 101 }, () => 312_000n, 1],
  [{ prompt_tokens: 1000, completion_tokens: 5 }, (hold) => hold, 1],
  [{ prompt_tokens: 30_000, completion_tokens: 1_000_000 }, (hold) => hold, 1],
  [{ prompt_tokens: 10, completion_tokens: 5, total_tokens: 25 }, () => 130_000n, 0],
  [{ prompt_tokens: 10, completion_tokens: 1, total_tokens: 211 }, (hold) => hold, 1],
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
    const purser = await openTestServer(t);
    const { id, token } = await purser.openWallet();
    purser.upstream.handle = completion(usage);
    const answer = await purser.chat(token, { max_tokens: 100 });
    assert.equal(answer.status, 200);
    const [operation] = (await purser.run('operation.list', {})).operations;
    const hold = BigInt(100_000 + Number(operation?.price.bound_prompt_tokens) * 1000 + 100 * 2000);
    assert.equal(purser.wallet(id).spent, charge(hold));
    assert.equal(purser.log.filter((line) => line.includes('operation.bound_exceeded')).length, alarms);
    assert.deepEqual(purser.problems(), []);
  });

test('a redirect and a refused key are told as faults of the configuration, without any secret', async (t) => {
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet();
  const location = `https://user:hidden@models.example/v1?key=hidden&k=${UPSTREAM_KEY}`;
  for (const [handler, told, fault] of [
    [failure(301, '', { location }), /answered 301, a redirect/, /a redirect to https:\/\/models.example\/v1: correct/],
    [failure(401, { error: { message: `no key ${UPSTREAM_KEY}` } }), /refused this gateway \(401\)/, /its api_key is/],
    [failure(403), /refused this gateway \(403\)/, /its api_key is/],
  ] as const) {
    purser.upstream.handle = handler;
    const before = purser.log.length;
    const { body, text } = await purser.chat(token);
    assert.match(body.error.message, told);
    assert.match(body.error.message, /for the operator of this gateway to correct\. Nothing was charged\./);
    const lines = purser.log.slice(before);
    const line = lines.map((it) => JSON.parse(it)).find((it) => it.event === 'upstream.misconfigured');
    assert.equal(line?.level, 50);
    assert.match(line?.fault, fault);
    assert.doesNotMatch([text, ...lines].join(), /hidden|sk-upstream/);
  }
});

test('what goes upstream is the priced request, with the reserved limit written into it', async (t) => {
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet({ budget_cents: 10_000 });
  await purser.chat(token, { max_tokens: 5_000, n: 3, temperature: 0.5, store: false, stream: false });
  const [call] = purser.upstream.calls;
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
  const { operations } = await purser.run('operation.list', {});
  assert.equal(call?.headers['idempotency-key'], operations[0]?.id);
  assert.equal(operations[0]?.price.bound_completion_tokens, 3000);
});
