import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import net from 'node:net';
import test from 'node:test';
import { openHouse } from '../helper/house.ts';
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
  ['408', failure(408), 503, 'gateway_unavailable'],
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
  ['500 with a readable error', failure(500), 503, 'gateway_unavailable'],
  ['503 with a readable error', failure(503), 503, 'gateway_unavailable'],
  ['529 with a readable error', failure(529), 503, 'gateway_unavailable'],
];

for (const [what, handler, status, code] of REFUSED) {
  test(`an upstream that answers ${what} costs nothing and frees the key`, async (t) => {
    const house = await openHouse(t);
    const { token } = await house.openWallet();
    house.upstream.handle = handler;
    const refused = await house.chat(token, {}, 'same');
    assert.equal(refused.status, status, refused.text);
    assert.equal(refused.body.error.code, code);
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
  ['answers 502', failure(502)],
  ['answers 504', failure(504)],
  ['answers 500 without a readable error', plain(500, 'oops')],
  ['answers 503 without a readable error', plain(503, '')],
  ['answers 204', plain(204, '')],
  ['answers 302', (_, response) => response.writeHead(302, { location: 'http://127.0.0.1:1/' }).end()],
];

for (const [what, handler] of UNKNOWN) {
  test(`an upstream that ${what} leaves the outcome uncertain, and is never asked again for it`, async (t) => {
    const house = await openHouse(t);
    const { token } = await house.openWallet();
    house.upstream.handle = handler;
    const first = await house.chat(token, {}, 'same');
    assert.equal(first.status, 503, first.text);
    assert.equal(first.body.error.code, 'operation_uncertain');
    assert.ok(Number(first.headers['retry-after']) > 0);
    const { holds, held_usd: held } = await house.budget(token);
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
  const house = await openHouse(t);
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
  const house = await openHouse(t, {
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
  ['a usage above the bound', { prompt_tokens: 30_000, completion_tokens: 1_000_000 }],
];
for (const [what, usage] of USAGES) {
  test(`an answer with ${what} is charged at the hold`, async (t) => {
    const house = await openHouse(t);
    const { id, token } = await house.openWallet();
    house.upstream.handle =
      usage === undefined ? failure(200, { id: 'chatcmpl-test', choices: [] }) : completion(usage);
    const answer = await house.chat(token);
    assert.equal(answer.status, 200);
    const { operations } = await house.run('operation.list', {});
    assert.equal(operations[0]?.charge_usd, operations[0]?.hold_usd);
    assert.equal(house.wallet(id).held, 0n);
    const exceeded = house.log.filter((line) => line.includes('operation.bound_exceeded')).length;
    assert.equal(exceeded, what === 'a usage above the bound' ? 1 : 0);
    assert.deepEqual(house.problems(), []);
  });
}

test('what goes upstream is the priced request, with the reserved limit written into it', async (t) => {
  const house = await openHouse(t);
  const { token } = await house.openWallet({ budget_cents: 10_000 });
  await house.chat(token, { max_tokens: 5_000, n: 3, temperature: 0.5, store: false, stream: false });
  const [call] = house.upstream.calls;
  assert.equal(call?.path, '/v1/chat/completions');
  assert.deepEqual(call?.body, {
    model: 'real/chat',
    messages: [{ role: 'user', content: 'hi' }],
    temperature: 0.5,
    n: 3,
    max_tokens: 1000,
    stream: false,
  });
  assert.match(call?.headers.authorization ?? '', /^Bearer sk-upstream/);
  const { operations } = await house.run('operation.list', {});
  assert.equal(call?.headers['idempotency-key'], operations[0]?.id);
  assert.equal(operations[0]?.price.bound_completion_tokens, 3000);
});
