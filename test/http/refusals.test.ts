import assert from 'node:assert/strict';
import test, { type TestContext } from 'node:test';
import { REFUSALS, type RefusalCode } from '../../src/refusal.ts';
import {
  type Answer,
  openTestServer as openAnyHouse,
  type TestServer,
  type TestServerOptions,
} from '../helper/server.ts';
import { failure, gate, reset } from '../helper/upstream.ts';
import { LONG, openMemoryHouse } from '../lease/leases.ts';
import { holdToDocument } from './documented.ts';
import { assertRefused } from './refused.ts';

/** Every code and its status, copied by hand from design, section 3. */
const DOCUMENTED: Record<RefusalCode, number> = {
  invalid_request: 400,
  invalid_json: 400,
  idempotency_key_required: 400,
  invalid_idempotency_key: 400,
  invalid_cursor: 400,
  streaming_not_supported: 400,
  unsupported_parameter: 400,
  unauthenticated: 401,
  insufficient_funds: 402,
  funds_held: 402,
  wrong_token_scope: 403,
  account_suspended: 403,
  not_found: 404,
  model_not_found: 404,
  offer_not_found: 404,
  method_not_allowed: 405,
  idempotency_conflict: 409,
  idempotency_in_progress: 409,
  idempotency_key_expired: 409,
  cleanup_pending: 409,
  wallet_closed: 409,
  wallet_expired: 409,
  resource_not_active: 409,
  extension_not_supported: 409,
  lease_limit_exceeded: 409,
  answer_lost: 409,
  payload_too_large: 413,
  unsupported_media_type: 415,
  rate_limited: 429,
  internal_error: 500,
  transfer_not_configured: 501,
  billing_not_configured: 501,
  provider_not_configured: 501,
  provider_unavailable: 503,
  capacity_unavailable: 503,
  gateway_unavailable: 503,
  operation_uncertain: 503,
  read_only: 503,
  conflict: 409, // not in the design, section 3: only the operator's commands say it, never the wire
};

/** Codes that say when to come back (design 2.7, 2.8, 2.9; a limit without it would be guessed at). */
const WITH_RETRY_AFTER = new Set<string>([
  'funds_held',
  'idempotency_in_progress',
  'operation_uncertain',
  'rate_limited',
  'read_only',
]);

const WALLET = { name: 'agent', budget_cents: 500 };

/** A house whose every answer has to be in its own API document. */
async function openHouse(t: TestContext, options: TestServerOptions = {}): Promise<TestServer> {
  const house = await openAnyHouse(t, options);
  holdToDocument(house);
  return house;
}

/** The same with machines that are only remembered, and a wallet that can pay for some. */
async function openWithLeases(t: TestContext) {
  const house = await openMemoryHouse(t);
  holdToDocument(house);
  return { house, ...(await house.openWallet(LONG)) };
}

/** A house with one wallet in it. */
async function openWithWallet(t: TestContext, options: TestServerOptions = {}, wallet: Record<string, unknown> = {}) {
  const house = await openHouse(t, options);
  return { house, ...(await house.openWallet(wallet)) };
}

/** How each code is reached over HTTP, or why it cannot be. A new code does not compile without a line here. */
const REACHED: Record<RefusalCode, string | ((t: TestContext) => Promise<Answer>)> = {
  async invalid_request(t) {
    const house = await openHouse(t);
    return house.ask('POST', '/v1/wallets', {
      token: house.accountKey,
      key: 'a',
      body: { ...WALLET, budget_cents: 99 },
    });
  },
  async invalid_json(t) {
    const house = await openHouse(t);
    return house.ask('POST', '/v1/wallets', { token: house.accountKey, key: 'a', body: '{' });
  },
  async idempotency_key_required(t) {
    const house = await openHouse(t);
    return house.ask('POST', '/v1/wallets', { token: house.accountKey, body: WALLET });
  },
  async invalid_idempotency_key(t) {
    const house = await openHouse(t);
    return house.ask('POST', '/v1/wallets', { token: house.accountKey, key: 'a'.repeat(129), body: WALLET });
  },
  async invalid_cursor(t) {
    const house = await openHouse(t);
    return house.ask('GET', '/v1/resources?before=never-given', { token: house.accountKey });
  },
  async streaming_not_supported(t) {
    const { house, token } = await openWithWallet(t);
    return house.chat(token, { stream: true });
  },
  async unsupported_parameter(t) {
    const { house, token } = await openWithWallet(t);
    return house.chat(token, { web_search_options: {} });
  },
  async unauthenticated(t) {
    const house = await openHouse(t);
    return house.ask('GET', '/v1/account');
  },
  async insufficient_funds(t) {
    const { house, token } = await openWithWallet(t, {}, { budget_cents: 100 });
    return house.chat(token, { model: 'dear', max_tokens: 1000 });
  },
  async funds_held(t) {
    const { house, token } = await openWithWallet(t, {}, { budget_cents: 100 });
    house.upstream.handle = gate().handler;
    void house.chat(token, { model: 'dear', max_tokens: 60 }).catch(() => {}); // ends with the house
    await house.upstream.arrived(1);
    return house.chat(token, { model: 'dear', max_tokens: 60 });
  },
  async wrong_token_scope(t) {
    const { house, token } = await openWithWallet(t);
    return house.ask('GET', '/v1/account', { token });
  },
  async account_suspended(t) {
    const house = await openHouse(t);
    await house.run('account.suspend', { id: house.accountId });
    return house.ask('POST', '/v1/wallets', { token: house.accountKey, key: 'a', body: WALLET });
  },
  async not_found(t) {
    const house = await openHouse(t);
    return house.ask('GET', '/v1/wallets/wal_none', { token: house.accountKey });
  },
  async model_not_found(t) {
    const { house, token } = await openWithWallet(t);
    return house.chat(token, { model: 'none' });
  },
  async offer_not_found(t) {
    const { house, token } = await openWithLeases(t);
    const body = { provider: 'provider_three', spec: { offer_id: 'none', disk_gb: 5, max_seconds: 60 } };
    return house.ask('POST', '/v1/compute/create', { token, key: 'a', body });
  },
  async method_not_allowed(t) {
    const house = await openHouse(t);
    return house.ask('PUT', '/v1/account', { token: house.accountKey });
  },
  async idempotency_conflict(t) {
    const { house, token } = await openWithWallet(t);
    assert.equal((await house.chat(token, { max_tokens: 1 }, 'a')).status, 200);
    return house.chat(token, { max_tokens: 2 }, 'a');
  },
  async idempotency_in_progress(t) {
    const { house, token } = await openWithWallet(t);
    house.upstream.handle = gate().handler;
    void house.chat(token, {}, 'a').catch(() => {}); // ends with the house
    await house.upstream.arrived(1);
    // The second waits for the first; once it has looked for it, half a minute passes at once.
    const { find } = house.app.inFlight;
    const looked = Promise.withResolvers<void>();
    t.mock.method(house.app.inFlight, 'find', (...key: Parameters<typeof find>) => {
      setImmediate(looked.resolve);
      return find(...key);
    });
    t.mock.timers.enable({ apis: ['setTimeout'] });
    const second = house.chat(token, {}, 'a');
    await looked.promise;
    t.mock.timers.tick(29_999);
    assert.equal(house.app.inFlight.count(), 1);
    t.mock.timers.tick(1);
    const answer = await second;
    t.mock.timers.reset(); // before the house closes, which clears what it set
    return answer;
  },
  async idempotency_key_expired(t) {
    const { house, token } = await openWithWallet(t, {}, { expires_in_seconds: 0 });
    assert.equal((await house.chat(token, {}, 'a')).status, 200);
    house.clock.advance(72 * 3600);
    await house.app.reaper.runOnce();
    return house.chat(token, {}, 'a');
  },
  async cleanup_pending(t) {
    const { house, token } = await openWithWallet(t, { settings: { close_wait_seconds: 0 } });
    house.upstream.handle = gate().handler;
    void house.chat(token).catch(() => {}); // ends with the house
    await house.upstream.arrived(1);
    return house.ask('POST', '/v1/run/close', { token });
  },
  async wallet_closed(t) {
    const { house, id, token } = await openWithWallet(t);
    await house.run('wallet.close', { id });
    return house.chat(token);
  },
  async wallet_expired(t) {
    const { house, id } = await openWithWallet(t, {}, { expires_in_seconds: 60 });
    house.clock.advance(60);
    return house.ask('GET', `/v1/wallets/${id}/token`, { token: house.accountKey });
  },
  async resource_not_active(t) {
    const { house, token } = await openWithLeases(t);
    const { id } = (await house.rent(token)).body;
    await house.stop(token, id);
    return house.extend(token, id, 60);
  },
  async extension_not_supported(t) {
    const { house, token } = await openWithLeases(t);
    return house.extend(token, (await house.lease(token)).body.id, 60);
  },
  async lease_limit_exceeded(t) {
    const { house, token } = await openWithLeases(t);
    return house.lease(token, 'a', { max_seconds: 3601 });
  },
  async answer_lost(t) {
    const { house, token } = await openWithWallet(t);
    house.upstream.handle = reset;
    assertRefused(await house.chat(token, {}, 'a'), 503, 'operation_uncertain');
    const [operation] = (await house.run('operation.list', { uncertain: true })).operations;
    await house.run('operation.resolve', {
      id: operation?.id as string,
      decision: 'charge',
      reason: 'the bill has it',
    });
    return house.chat(token, {}, 'a');
  },
  async payload_too_large(t) {
    const house = await openHouse(t);
    return house.ask('POST', '/v1/wallets', { token: house.accountKey, key: 'a', body: ' '.repeat(65_537) });
  },
  async unsupported_media_type(t) {
    const house = await openHouse(t);
    const headers = { 'content-type': 'text/plain' };
    return house.ask('POST', '/v1/wallets', { token: house.accountKey, key: 'a', body: WALLET, headers });
  },
  async rate_limited(t) {
    const limits = { wallet_requests_per_minute: 0, account_requests_per_minute: 1, failed_auth_per_minute: 0 };
    const house = await openHouse(t, { settings: { limits } });
    assert.equal((await house.ask('GET', '/v1/account', { token: house.accountKey })).status, 200);
    return house.ask('GET', '/v1/account', { token: house.accountKey });
  },
  async internal_error(t) {
    const { house, token } = await openWithWallet(t);
    t.mock.method(house.app.catalogue, 'find', () => {
      throw new TypeError('canary of the inside');
    });
    const answer = await house.chat(token);
    assert.doesNotMatch(answer.text, /canary|TypeError|\.ts\b/, 'a 500 says nothing of the inside');
    const line = house.log.find((it) => it.includes('canary of the inside'));
    assert.ok(line?.includes(answer.body.request_id), 'the log has it under the request id');
    return answer;
  },
  async transfer_not_configured(t) {
    const { house, token } = await openWithWallet(t);
    return house.ask('POST', '/v1/transfer/sign', { token, body: { object: 'a', operation: 'get' } });
  },
  async billing_not_configured(t) {
    const house = await openHouse(t);
    return house.ask('POST', '/v1/billing/checkout', {
      token: house.operatorKey,
      key: 'a',
      body: { amount_cents: 500 },
    });
  },
  async provider_not_configured(t) {
    const { house, token } = await openWithWallet(t);
    const body = { provider: 'provider_two', spec: { chip: 'h100', max_seconds: 60 } };
    return house.ask('POST', '/v1/compute/create', { token, key: 'a', body });
  },
  async provider_unavailable(t) {
    const { house, token } = await openWithLeases(t);
    const { id } = (await house.lease(token)).body;
    house.memory.before.exec = () => Promise.reject(new Error('the engine is gone'));
    return house.ask('POST', '/v1/compute/exec', { token, body: { id, command: 'true' } });
  },
  async capacity_unavailable(t) {
    const { house, token } = await openWithLeases(t);
    house.memory.room = 0;
    return house.lease(token);
  },
  async gateway_unavailable(t) {
    const { house, token } = await openWithWallet(t);
    house.upstream.handle = failure(503);
    return house.chat(token);
  },
  async operation_uncertain(t) {
    const { house, token } = await openWithWallet(t);
    house.upstream.handle = reset;
    return house.chat(token);
  },
  async read_only(t) {
    const { house, token } = await openWithWallet(t);
    await house.run('freeze', {});
    return house.chat(token);
  },
  conflict: 'Only the commands of the operator say it.',
};

test('the table of refusals has the codes and statuses of the design, and no others', () => {
  assert.deepEqual(
    Object.fromEntries(Object.entries(REFUSALS).map(([code, { status }]) => [code, status])),
    DOCUMENTED,
  );
});

for (const [code, reach] of Object.entries(REACHED) as [RefusalCode, (typeof REACHED)[RefusalCode]][]) {
  if (typeof reach === 'string') continue;
  test(`${code} is answered as ${DOCUMENTED[code]}`, async (t) => {
    const answer = await reach(t);
    assertRefused(answer, DOCUMENTED[code], code);
    if (WITH_RETRY_AFTER.has(code)) assert.match(String(answer.headers['retry-after']), /^[1-9]\d*$/);
  });
}

test('even what is thrown and is no Error is a 500 of the documented shape, and the log has it', async (t) => {
  const { house, token } = await openWithWallet(t);
  t.mock.method(house.app.catalogue, 'find', () => {
    throw 'canary of the inside';
  });
  const answer = await house.chat(token);
  assertRefused(answer, 500, 'internal_error');
  assert.doesNotMatch(answer.text, /canary/);
  assert.ok(house.log.some((line) => line.includes('canary') && line.includes(answer.body.request_id)));
});
