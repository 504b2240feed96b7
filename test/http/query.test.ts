import assert from 'node:assert/strict';
import test from 'node:test';
import { EXTRAS, ROUTES } from '../../src/http/routes.ts';
import { openTestServer } from '../helper/server.ts';
import { assertNothingMoves, assertRefused } from './refused.ts';

test('a query parameter that an endpoint does not know, or that comes twice, is refused by each of them', async (t) => {
  const purser = await openTestServer(t);
  const { id, token } = await purser.openWallet();
  await assertNothingMoves(purser, async () => {
    for (const [method, path, { scope, example, idempotent }] of [...ROUTES, ...EXTRAS]) {
      const line = `${method} ${path}`;
      const caller = { account: purser.accountKey, session: purser.operatorKey, wallet: token, router: '' }[scope];
      const asked = { token: caller, body: example.body, key: idempotent ? 'a' : undefined };
      for (const [query, words] of [
        ['limt=1', /^limt: unknown query parameter\.$/],
        ['__proto__=1', /^__proto__: unknown query parameter\.$/],
        ['limit=1&limit=2', /^limit: send this query parameter once\.$/],
      ] as const) {
        const answer = await purser.ask(method, `${path.replace(':id', id)}?${query}`, asked);
        assertRefused(answer, 400, 'invalid_request', line);
        assert.match(answer.body.error.message, words, line);
      }
    }
  });
});

test('a period that ends before it begins is refused by each list and sum that takes one: an empty one looks like an answer', async (t) => {
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet();
  let count = 0;
  for (const [method, path, { scope, query }] of [...ROUTES, ...EXTRAS]) {
    const { since, until } = (query as { entries?: Record<string, unknown> } | undefined)?.entries ?? {};
    if (!since || !until) continue;
    count++;
    const caller = { token: { account: purser.accountKey, wallet: token }[scope as string] };
    for (const period of ['since=1795000001&until=1795000000', 'since=1795000000&until=1795000000']) {
      const answer = await purser.ask(method, `${path}?${period}`, caller);
      assertRefused(answer, 400, 'invalid_request', path);
      assert.match(answer.body.error.message, /since must be before until/, path);
    }
    assert.equal((await purser.ask(method, `${path}?since=1795000000&until=1795000001`, caller)).status, 200, path);
  }
  assert.equal(count, 3);
});

test('a cost of which the least is above the most is refused by each list that takes one', async (t) => {
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet();
  for (const [method, path, { query }] of [...ROUTES, ...EXTRAS]) {
    if (!(query as { entries?: Record<string, unknown> } | undefined)?.entries?.cost_min_usd) continue;
    const asked = (costs: string) => purser.ask(method, `${path}?${costs}`, { token });
    assertRefused(await asked('cost_min_usd=0.2&cost_max_usd=0.1'), 400, 'invalid_request', path);
    assert.equal((await asked('cost_min_usd=0.2&cost_max_usd=0.2')).status, 200, path);
  }
  const reversed = purser.run('operation.list', { cost_min_usd: '0.2', cost_max_usd: '0.1' });
  await assert.rejects(reversed, { code: 'invalid_request' });
});

test('the gateway ignores the query parameters of other servers’ clients, and what is no endpoint any', async (t) => {
  const purser = await openTestServer(t);
  const { token } = await purser.openWallet();
  const { api_key } = (await purser.ask('POST', '/v1/router/key', { token, body: {} })).body;
  const body = { model: 'chat', messages: [{ role: 'user', content: 'hi' }], max_tokens: 10 };
  const beta = { token: api_key, body };
  assert.equal((await purser.ask('POST', '/v1/router/v1/messages?beta=true', beta)).status, 200);
  assert.equal((await purser.ask('POST', '/v1/router/chat/completions?api-version=1', beta)).status, 200);
  for (const path of ['/healthz', '/readyz', '/v1/openapi.json', '/sign-in'])
    assert.equal((await purser.ask('GET', `${path}?a=1&a=2`)).status, 200, path);
});
