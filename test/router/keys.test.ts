import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import test from 'node:test';
import { deriveToken } from '../../src/access/token.ts';
import { ROUTES } from '../../src/http/routes.ts';
import { openGateway } from '../helper/gateway.ts';
import { openTestServer, type TestServer } from '../helper/server.ts';
import { completionStream, DONE, openStream } from '../helper/sse.ts';
import { completion } from '../helper/upstream.ts';
import { INTERFACE } from '../http/interface.ts';
import { sendRaw } from '../http/raw.ts';
import { assertNothingMoves, assertRefused, footprint } from '../http/refused.ts';

const makeKey = (purser: TestServer, token: string, body: unknown = {}) =>
  purser.ask('POST', '/v1/router/key', { token, body });
const MODELS = '/v1/router/models';

test('a gateway key comes with its base URL and the end of its wallet, and opens the gateway', async (t) => {
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet({ expires_in_seconds: 600 });
  const { status, body } = await makeKey(purser, token);
  assert.equal(status, 200);
  assert.deepEqual(Object.keys(body).sort(), ['api_key', 'base_url', 'expires_at']);
  assert.match(body.api_key, /^svc_router_[0-9A-Za-z]{49}$/);
  assert.equal(body.base_url, `${purser.url}/v1/router`);
  assert.equal(body.expires_at, (await purser.budget(token)).expires_at);
  assert.equal((await purser.ask('GET', MODELS, { token: body.api_key })).status, 200);
  const eternal = await purser.openWallet({ expires_in_seconds: 0 });
  assert.equal((await makeKey(purser, eternal.token)).body.expires_at, null);
});

test('the same options are the same key, in any order; other options are another', async (t) => {
  const purser = await openTestServer(t);
  const { id, token } = await purser.openWallet();
  const keyOf = async (body: object) => (await makeKey(purser, token, body)).body.api_key;
  const plain = await keyOf({});
  const bound = await keyOf({ models: ['chat', 'flat'], max_price_usd: '0.10' });
  assert.equal(await keyOf({}), plain);
  assert.equal(await keyOf({ max_price_usd: '0.10', models: ['flat', 'chat', 'flat'] }), bound);
  const all = [plain, bound, await keyOf({ models: ['chat'] }), await keyOf({ max_price_usd: '0.2' })];
  assert.equal(new Set(all).size, 4);
  const at64 = await Promise.all(Array.from({ length: 64 }, () => keyOf({ models: ['free'] })));
  assert.equal(new Set(at64).size, 1, 'however many ask at once');
  await purser.reopen();
  assert.equal(await keyOf({}), plain, 'it is derived, not stored');
  assert.equal((await purser.run('wallet.gateway-keys', { id })).keys.length, 5);
});

test('the body is free-form: what binds is taken, whatever else is there is ignored, and so is no body at all', async (t) => {
  const purser = await openTestServer(t);
  const { id, token } = await purser.openWallet();
  const keyOf = async (body: unknown) => {
    const answer = await makeKey(purser, token, body);
    assert.equal(answer.status, 200, `${JSON.stringify(body)}: ${answer.text}`);
    return answer.body.api_key as string;
  };
  const plain = await keyOf({});
  for (const body of [
    { model: 'chat', ttl: 3600, nested: { deep: [null, 1, { models: ['none'] }] } },
    '{"__proto__":{"models":["none"]},"constructor":1}',
    ' {} ',
    { models: null, max_price_usd: null },
  ])
    assert.equal(await keyOf(body), plain, JSON.stringify(body));
  const bound = await keyOf({ models: ['chat'] });
  assert.equal(await keyOf({ models: ['chat'], label: 'ci', max_price: 1 }), bound);
  assert.notEqual(bound, plain);
  for (const headers of [{}, { 'content-type': 'application/json' }, { 'content-type': 'text/plain' }] as Record<
    string,
    string
  >[]) {
    const answer = await purser.ask('POST', '/v1/router/key', { token, headers });
    assert.deepEqual([answer.status, answer.body.api_key], [200, plain]);
  }
  const chunked = await sendRaw(purser, 'POST', '/v1/router/key', {
    token,
    headers: { 'transfer-encoding': 'chunked' },
  });
  assert.deepEqual([chunked.status, chunked.body.api_key], [200, plain]);
  assertRefused(
    await purser.ask('POST', '/v1/router/key', { token, body: '{}', headers: { 'content-type': 'text/plain' } }),
    415,
    'unsupported_media_type',
  );
  const kept = (await purser.run('wallet.gateway-keys', { id })).keys.map((it) => it.options);
  assert.deepEqual(kept, [{ models: ['chat'] }, {}], 'what is ignored is not kept either');
});

test('options that are wrong are refused, and name what is wrong', async (t) => {
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet();
  const wrong: [unknown, number, string, RegExp][] = [
    [{ models: 'chat', other: 1 }, 400, 'invalid_request', /models/],
    [{ models: 'chat' }, 400, 'invalid_request', /models/],
    [{ models: [] }, 400, 'invalid_request', /models/],
    [{ models: [1] }, 400, 'invalid_request', /models/],
    [{ models: [''] }, 400, 'invalid_request', /models/],
    [{ models: Array(1001).fill('chat') }, 400, 'invalid_request', /models/],
    [{ models: ['chat', 'nonsense'] }, 404, 'model_not_found', /model/],
    [{ max_price_usd: 0.1 }, 400, 'invalid_request', /max_price_usd/],
    [{ max_price_usd: '0' }, 400, 'invalid_request', /max_price_usd/],
    [{ max_price_usd: '0.00' }, 400, 'invalid_request', /max_price_usd/],
    [{ max_price_usd: '-1' }, 400, 'invalid_request', /max_price_usd/],
    [{ max_price_usd: '1e-3' }, 400, 'invalid_request', /max_price_usd/],
    [{ max_price_usd: '0.0000000001' }, 400, 'invalid_request', /max_price_usd/],
    [{ max_price_usd: '999999999999' }, 400, 'invalid_request', /max_price_usd/],
    [[], 400, 'invalid_request', /body/],
    ['"chat"', 400, 'invalid_request', /body/],
  ];
  await assertNothingMoves(purser, async () => {
    for (const [body, status, code, message] of wrong) {
      const answer = await makeKey(purser, token, body);
      assertRefused(answer, status, code, JSON.stringify(body).slice(0, 100));
      assert.match(answer.body.error.message, message);
    }
  });
});

test('a gateway key gets 403 at every endpoint of the interface, and does nothing there', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  const before = await footprint(purser);
  for (const { method, path, key, body } of INTERFACE) {
    const answer = await purser.ask(method, path.replace('{id}', gateway.walletId), {
      token: gateway.key,
      key: key ? randomUUID() : undefined,
      body,
    });
    assertRefused(answer, 403, 'wrong_token_scope', path);
  }
  assert.deepEqual(await footprint(purser), before);
});

test('under the gateway’s base URL no other token is taken', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  const chat = { model: 'free', messages: [{ role: 'user', content: 'hi' }] };
  const calls: ['GET' | 'POST', string, object | undefined][] = [
    ['GET', '/models', undefined],
    ['GET', '/models/free', undefined],
    ['POST', '/chat/completions', chat],
    ['POST', '/chat/completions', { ...chat, stream: true }],
    ['POST', '/embeddings', { model: 'free', input: 'a' }],
  ];
  const others = { account: purser.accountKey, operator: purser.operatorKey, wallet: gateway.token };
  for (const [method, path, body] of calls) {
    for (const [whose, token] of Object.entries(others)) {
      const answer = await gateway.ask(method, path, { token, body });
      assert.deepEqual([answer.status, answer.body.error.code], [403, 'wrong_token_scope'], `${whose} ${path}`);
      assert.equal(answer.body.error.type, 'permission_error');
    }
    for (const token of [
      undefined,
      'sk-nonsense',
      deriveToken('router', Buffer.alloc(32, 7), 'key_1'),
      `${gateway.key}x`,
    ]) {
      const answer = await gateway.ask(method, path, { token, body });
      assert.deepEqual([answer.status, answer.body.error.code], [401, 'unauthenticated'], `${token} ${path}`);
      assert.equal(answer.body.error.type, 'authentication_error');
      assert.equal(answer.headers['www-authenticate'], 'Bearer');
    }
  }
  assert.deepEqual(purser.upstream.calls, []);
});

test('no path leads to an upstream but those that take a hold', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  const body = { model: 'free', messages: [{ role: 'user', content: 'hi' }], input: 'hi', prompt: 'hi' };
  const paths = [
    ...['', '/', '/responses/', '/completions/', '/v1', '/v1/v1/responses', '/v1/chat', '/chat', '/chat/completions/'],
    ...[
      '/chat/completions/x',
      '/CHAT/completions',
      '//chat/completions',
      '/chat//completions',
      '/./chat/completions/..',
    ],
    ...['/chat/completions%2f', '/chat%2fcompletions', '/images/generations', '/audio/speech', '/audio/transcriptions'],
    ...[
      '/moderations',
      '/files',
      '/batches',
      '/assistants',
      '/threads/runs',
      '/fine_tuning/jobs',
      '/realtime',
      '/engines',
    ],
    ...['/embeddings/', '/models/free/chat', '/key/', '/key/chat/completions', '/proxy/http://127.0.0.1/', '/health'],
  ].map((path) => `/v1/router${path}`);
  const strict = [
    '/v1/chat',
    '/v1/chat/',
    '/v1/chat/completions/',
    '/v1/chat/completions/x',
    '/v1/responses',
    '/v1/embeddings',
    '/v1/completions',
  ];
  for (const path of [...paths, ...strict])
    for (const method of ['POST', 'GET', 'PUT', 'DELETE', 'PATCH', 'OPTIONS'])
      for (const token of [gateway.key, gateway.token]) {
        const answer = await purser.ask(method, path, {
          token,
          key: randomUUID(),
          ...(method === 'GET' ? {} : { body }),
        });
        const isModel = path === '/v1/router/models/free/chat';
        const allowed = isModel ? [401, 403, 404, 405] : [404, 405];
        assert(allowed.includes(answer.status), `${method} ${path}: ${answer.status} ${answer.text}`);
        assert.match(answer.body.error.code, /^(not_found|method_not_allowed|model_not_found|wrong_token_scope)$/);
      }
  const paid = ['chat/completions', 'completions', 'embeddings', 'rerank', 'responses', 'messages'].flatMap((it) => [
    `/v1/router/${it}`,
    `/v1/router/v1/${it}`,
  ]);
  for (const path of [...paid, '/v1/chat/completions'])
    for (const method of ['GET', 'PUT', 'DELETE', 'PATCH', 'OPTIONS']) {
      const answer = await purser.ask(method, path, { token: gateway.key, ...(method === 'GET' ? {} : { body }) });
      assert.deepEqual([answer.status, answer.headers.allow], [405, 'POST'], `${method} ${path}`);
    }
  assert.deepEqual(purser.upstream.calls, []);
  const { operations } = await purser.run('operation.list', {});
  assert.deepEqual(operations, []);
  assert(!ROUTES.some(([, path]) => path.startsWith('/v1/router/') && path !== '/v1/router/key'));
});

test('a key with models sees them alone: it lists, reads and asks no other', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser, { options: { models: ['flat', 'free'] } });
  const { body } = await gateway.ask('GET', '/models');
  assert.deepEqual(
    body.data.map(({ id }: { id: string }) => id),
    ['flat', 'free'],
  );
  assert.equal((await gateway.ask('GET', '/models/flat')).body.id, 'flat');
  assert.equal((await gateway.chat({ model: 'free' })).status, 200);
  for (const answer of [
    await gateway.ask('GET', '/models/chat'),
    await gateway.chat({ model: 'chat' }),
    await gateway.streamed({ model: 'chat' }),
  ]) {
    assert.deepEqual([answer.status, answer.body.error.code], [404, 'model_not_found']);
    assert.match(answer.body.error.message, /not for that model/);
  }
  assert.equal(purser.upstream.calls.length, 1);
  assert.equal((await purser.chat(gateway.token, { model: 'chat' })).status, 200, 'it binds the key, not the wallet');
});

test('a key replays nothing of a model that it is not for, whichever key of the wallet has bought it', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  const body = { models: ['flat'] };
  const other = (await purser.ask('POST', '/v1/router/key', { token: gateway.token, body })).body.api_key;
  for (const stream of [false, true]) {
    purser.upstream.handle = stream ? completionStream() : completion();
    const asked = { model: 'chat', messages: [{ role: 'user', content: 'hi' }], max_tokens: 100, stream };
    assert.equal((await gateway.chat({ stream }, `k${stream}`)).status, 200);
    const answer = await gateway.ask('POST', '/chat/completions', { token: other, body: asked, key: `k${stream}` });
    assert.deepEqual([answer.status, answer.body.error.code], [404, 'model_not_found'], answer.text);
  }
});

test('a key with a price limit refuses what may cost more, and says which limit it is and what fits', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser, { options: { max_price_usd: '0.50' }, wallet: { budget_cents: 10_000 } });
  for (const stream of [true, false]) {
    const answer = await gateway.chat({ model: 'dear', max_tokens: 51, stream });
    assert.deepEqual([answer.status, answer.body.error.code], [402, 'insufficient_funds']);
    assert.equal(answer.headers['x-should-retry'], 'false');
    assert.match(
      answer.body.error.message,
      /needs 0\.51 USD at most, and this gateway key allows 0\.50 USD for one request\..*with max_tokens 50 it would fit\./,
    );
    assert.equal((await gateway.chat({ model: 'dear', max_tokens: 50, n: 2 })).status, 402, 'all choices together');
  }
  assert.deepEqual(purser.upstream.calls, []);
  assert.equal((await gateway.chat({ model: 'dear', max_tokens: 50 })).status, 200);
});

test('a key’s limit above what the wallet has names the number that fits the wallet too', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser, { options: { max_price_usd: '5' }, wallet: { budget_cents: 100 } });
  const refused = await gateway.chat({ model: 'dear', max_tokens: 1000 });
  assert.equal(refused.status, 402);
  const fits = Number(/with max_tokens (\d+) it would fit/.exec(refused.body.error.message)?.[1]);
  assert.equal(fits, 100, refused.text);
  assert.equal((await gateway.chat({ model: 'dear', max_tokens: fits })).status, 200);
});

test('a revoked key is 401 at once, and the same options are a new key', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  const { keys } = await purser.run('wallet.gateway-keys', { id: gateway.walletId });
  assert.equal(keys.length, 1);
  await purser.run('key.revoke', { id: keys[0]?.id as string });
  for (const path of ['/models', '/models/chat'])
    assert.equal((await gateway.ask('GET', path)).body.error.code, 'unauthenticated');
  assert.deepEqual([(await gateway.chat()).status, (await gateway.streamed()).status], [401, 401]);
  const { body } = await makeKey(purser, gateway.token);
  assert.notEqual(body.api_key, gateway.key);
  assert.equal((await purser.ask('GET', MODELS, { token: body.api_key })).status, 200);
  await purser.reopen();
  assert.equal((await gateway.chat()).status, 401);
  assert.deepEqual(purser.upstream.calls, []);
});

test('a stream that runs when its key is revoked is paid and ends; the next one does not begin', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  const { keys } = await purser.run('wallet.gateway-keys', { id: gateway.walletId });
  const revoked = Promise.withResolvers<void>();
  purser.upstream.handle = async (call, response) => {
    await revoked.promise;
    await completionStream()(call, response);
  };
  const streaming = gateway.streamed();
  await purser.upstream.arrived(1);
  await purser.run('key.revoke', { id: keys[0]?.id as string });
  revoked.resolve();
  assert((await streaming).text.endsWith(DONE));
  assert.equal((await gateway.streamed()).status, 401);
});

for (const [how, end, code] of [
  [
    'closed',
    (purser: TestServer, id: string) => purser.ask('POST', `/v1/wallets/${id}/close`, { token: purser.accountKey }),
    'wallet_closed',
  ],
  ['expired', async (purser: TestServer) => purser.clock.advance(3600), 'wallet_expired'],
] as const)
  test(`the key of a wallet that is ${how} reads the models and spends nothing, and there is no new one`, async (t) => {
    const purser = await openTestServer(t);
    const gateway = await openGateway(purser);
    await end(purser, gateway.walletId);
    assert.equal((await gateway.ask('GET', '/models')).status, 200);
    for (const answer of [await gateway.chat(), await gateway.streamed(), await makeKey(purser, gateway.token)])
      assert.deepEqual([answer.status, answer.body.error.code], [409, code]);
    assert.deepEqual(purser.upstream.calls, []);
  });

test('a wallet that is closed while its key is being made gets none', async (t) => {
  const purser = await openTestServer(t);
  const { id, token } = await purser.openWallet();
  const write = purser.app.ledger.write;
  purser.app.ledger.write = async (it, data) => {
    purser.app.ledger.write = write;
    await purser.ask('POST', `/v1/wallets/${id}/close`, { token: purser.accountKey });
    return write(it, data);
  };
  assertRefused(await makeKey(purser, token), 409, 'wallet_closed');
  assert.deepEqual((await purser.run('wallet.gateway-keys', { id })).keys, []);
});

test('a suspended account gets no new key and no new hold; what it has goes on reading and replaying', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser);
  purser.upstream.handle = completionStream();
  const before = await gateway.streamed({}, 'k');
  await purser.run('account.suspend', { id: purser.accountId });
  for (const answer of [await gateway.chat(), await gateway.streamed()]) {
    assert.deepEqual([answer.status, answer.body.error.code], [403, 'account_suspended']);
    assert.equal(answer.body.error.type, 'permission_error');
  }
  assertRefused(await makeKey(purser, gateway.token, { models: ['chat'] }), 403, 'account_suspended');
  assert.equal((await makeKey(purser, gateway.token)).body.api_key, gateway.key);
  assert.equal((await gateway.ask('GET', '/models')).status, 200);
  const replayed = await gateway.streamed({}, 'k');
  assert.deepEqual([replayed.status, replayed.text], [200, before.text]);
  assert.equal(purser.upstream.calls.length, 1);
});

test('other people’s keys spend other people’s money: one wallet never pays, nor answers, for another', async (t) => {
  const purser = await openTestServer(t);
  const [one, two] = [await openGateway(purser), await openGateway(purser)];
  purser.upstream.handle = completionStream();
  await one.streamed({}, 'k');
  const other = await two.streamed({}, 'k');
  assert.equal(other.headers['idempotent-replayed'], undefined);
  assert.equal(purser.upstream.calls.length, 2);
  assert.deepEqual([purser.wallet(one.walletId).spent, purser.wallet(two.walletId).spent], [120_000n, 120_000n]);
  // Two keys of one wallet are one caller to the books.
  const second = (await makeKey(purser, one.token, { models: ['chat'] })).body.api_key;
  const again = await openStream(purser.url, second, {}, { key: 'k' });
  assert.equal(again.headers['idempotent-replayed'], 'true');
  await again.rest();
  assert.equal(purser.wallet(one.walletId).spent, 120_000n);
});

test('a wallet has at most a hundred gateway keys', async (t) => {
  const purser = await openTestServer(t);
  const { id, token } = await purser.openWallet();
  const price = (i: number) => ({ max_price_usd: `0.${String(i + 1).padStart(3, '0')}` });
  for (let i = 0; i < 100; i++) assert.equal((await makeKey(purser, token, price(i))).status, 200);
  assertRefused(await makeKey(purser, token, price(100)), 400, 'invalid_request');
  assert.equal((await makeKey(purser, token, price(50))).status, 200, 'one that it has is still answered');
  const { keys } = await purser.run('wallet.gateway-keys', { id });
  await purser.run('key.revoke', { id: keys[0]?.id as string });
  assert.equal((await makeKey(purser, token, price(100))).status, 200, 'one that was revoked makes room');
});
