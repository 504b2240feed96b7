import assert from 'node:assert/strict';
import test, { type TestContext } from 'node:test';
import { REFUSALS, type RefusalCode } from '../../src/base/refusal.ts';
import { hostSession } from '../compute/engines/host-session.ts';
import {
  type Answer,
  openTestServer as openAnyServer,
  type TestServer,
  type TestServerOptions,
} from '../helper/server.ts';
import { failure, gate, reset } from '../helper/upstream.ts';
import { LONG, openMemoryServer } from '../lease/leases.ts';
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
  context_length_exceeded: 400,
  unsupported_parameter: 400,
  unauthenticated: 401,
  insufficient_funds: 402,
  funds_held: 402,
  wrong_token_scope: 403,
  account_suspended: 403,
  wallet_frozen: 403,
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
  wallet_limit_exceeded: 409,
  resource_not_active: 409,
  extension_not_supported: 409,
  lease_limit_exceeded: 409,
  answer_lost: 409,
  request_timeout: 408,
  payload_too_large: 413,
  unsupported_media_type: 415,
  upgrade_not_supported: 426,
  head_too_large: 431,
  rate_limited: 429,
  internal_error: 500,
  port_unreachable: 502,
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

/** A purser whose every answer has to be in its own API document. */
async function openServer(t: TestContext, options: TestServerOptions = {}): Promise<TestServer> {
  const purser = await openAnyServer(t, options);
  holdToDocument(purser);
  return purser;
}

/** The same with machines that are only remembered, and a wallet that can pay for some. */
async function openWithLeases(t: TestContext) {
  const purser = await openMemoryServer(t);
  holdToDocument(purser);
  return { purser, ...(await purser.openWallet(LONG)) };
}

/** A purser with one wallet in it. */
async function openWithWallet(t: TestContext, options: TestServerOptions = {}, wallet: Record<string, unknown> = {}) {
  const purser = await openServer(t, options);
  return { purser, ...(await purser.openWallet(wallet)) };
}

/** How each code is reached over HTTP, or why it cannot be. A new code does not compile without a line here. */
const REACHED: Record<RefusalCode, string | ((t: TestContext) => Promise<Answer>)> = {
  async invalid_request(t) {
    const purser = await openServer(t);
    return purser.ask('POST', '/v1/wallets', {
      token: purser.accountKey,
      key: 'a',
      body: { ...WALLET, budget_cents: 99 },
    });
  },
  async invalid_json(t) {
    const purser = await openServer(t);
    return purser.ask('POST', '/v1/wallets', { token: purser.accountKey, key: 'a', body: '{' });
  },
  async idempotency_key_required(t) {
    const purser = await openServer(t);
    return purser.ask('POST', '/v1/wallets', { token: purser.accountKey, body: WALLET });
  },
  async invalid_idempotency_key(t) {
    const purser = await openServer(t);
    return purser.ask('POST', '/v1/wallets', { token: purser.accountKey, key: 'a'.repeat(129), body: WALLET });
  },
  async invalid_cursor(t) {
    const purser = await openServer(t);
    return purser.ask('GET', '/v1/resources?before=never-given', { token: purser.accountKey });
  },
  async streaming_not_supported(t) {
    const { purser, token } = await openWithWallet(t);
    return purser.chat(token, { stream: true });
  },
  async unsupported_parameter(t) {
    const { purser, token } = await openWithWallet(t);
    return purser.chat(token, { web_search_options: {} });
  },
  async unauthenticated(t) {
    const purser = await openServer(t);
    return purser.ask('GET', '/v1/account');
  },
  async insufficient_funds(t) {
    const { purser, token } = await openWithWallet(t, {}, { budget_cents: 100 });
    return purser.chat(token, { model: 'dear', max_tokens: 1000 });
  },
  async funds_held(t) {
    const { purser, token } = await openWithWallet(t, {}, { budget_cents: 100 });
    purser.upstream.handle = gate().handler;
    void purser.chat(token, { model: 'dear', max_tokens: 60 }).catch(() => {}); // ends with the server
    await purser.upstream.arrived(1);
    return purser.chat(token, { model: 'dear', max_tokens: 60 });
  },
  async wrong_token_scope(t) {
    const { purser, token } = await openWithWallet(t);
    return purser.ask('GET', '/v1/account', { token });
  },
  async account_suspended(t) {
    const purser = await openServer(t);
    await purser.run('account.suspend', { id: purser.accountId });
    return purser.ask('POST', '/v1/wallets', { token: purser.accountKey, key: 'a', body: WALLET });
  },
  async not_found(t) {
    const purser = await openServer(t);
    return purser.ask('GET', '/v1/wallets/wal_none', { token: purser.accountKey });
  },
  async model_not_found(t) {
    const { purser, token } = await openWithWallet(t);
    return purser.chat(token, { model: 'none' });
  },
  async offer_not_found(t) {
    const { purser, token } = await openWithLeases(t);
    const body = { provider: 'provider_three', spec: { offer_id: 'none', disk_gb: 5, max_seconds: 60 } };
    return purser.ask('POST', '/v1/compute/create', { token, key: 'a', body });
  },
  async method_not_allowed(t) {
    const purser = await openServer(t);
    return purser.ask('PUT', '/v1/account', { token: purser.accountKey });
  },
  async idempotency_conflict(t) {
    const { purser, token } = await openWithWallet(t);
    assert.equal((await purser.chat(token, { max_tokens: 1 }, 'a')).status, 200);
    return purser.chat(token, { max_tokens: 2 }, 'a');
  },
  async idempotency_in_progress(t) {
    const { purser, token } = await openWithWallet(t);
    purser.upstream.handle = gate().handler;
    void purser.chat(token, {}, 'a').catch(() => {}); // ends with the server
    await purser.upstream.arrived(1);
    // The second waits for the first; once it has looked for it, half a minute passes at once.
    const { find } = purser.app.inFlight;
    const checked = Promise.withResolvers<void>();
    t.mock.method(purser.app.inFlight, 'find', (...key: Parameters<typeof find>) => {
      setImmediate(checked.resolve);
      return find(...key);
    });
    t.mock.timers.enable({ apis: ['setTimeout'] });
    const second = purser.chat(token, {}, 'a');
    await checked.promise;
    t.mock.timers.tick(29_999);
    assert.equal(purser.app.inFlight.count(), 1);
    t.mock.timers.tick(1);
    const answer = await second;
    t.mock.timers.reset(); // before the server closes, which clears what it set
    return answer;
  },
  async idempotency_key_expired(t) {
    const { purser, token } = await openWithWallet(t, {}, { expires_in_seconds: 0 });
    assert.equal((await purser.chat(token, {}, 'a')).status, 200);
    purser.clock.advance(72 * 3600);
    await purser.app.reaper.runOnce();
    return purser.chat(token, {}, 'a');
  },
  async cleanup_pending(t) {
    const { purser, token } = await openWithWallet(t, { settings: { close_wait_seconds: 0 } });
    purser.upstream.handle = gate().handler;
    void purser.chat(token).catch(() => {}); // ends with the server
    await purser.upstream.arrived(1);
    return purser.ask('POST', '/v1/run/close', { token });
  },
  async wallet_closed(t) {
    const { purser, id, token } = await openWithWallet(t);
    await purser.run('wallet.close', { id });
    return purser.chat(token);
  },
  async wallet_frozen(t) {
    const { purser, id, token } = await openWithWallet(t);
    await purser.run('wallet.freeze', { id, reason: 'it loops' });
    return purser.chat(token);
  },
  async wallet_limit_exceeded(t) {
    const { purser, token } = await openWithWallet(t, { settings: { child_wallets: { open: 0 } } });
    return purser.ask('POST', '/v1/run/wallets', { token, key: 'a', body: { name: 'child', budget_usd: '1' } });
  },
  async wallet_expired(t) {
    const { purser, id } = await openWithWallet(t, {}, { expires_in_seconds: 60 });
    purser.clock.advance(60);
    return purser.ask('GET', `/v1/wallets/${id}/token`, { token: purser.accountKey });
  },
  async resource_not_active(t) {
    const { purser, token } = await openWithLeases(t);
    const { id } = (await purser.rent(token)).body;
    await purser.stop(token, id);
    return purser.extend(token, id, 60);
  },
  async extension_not_supported(t) {
    const { purser, token } = await openWithLeases(t);
    return purser.extend(token, (await purser.lease(token)).body.id, 60);
  },
  async lease_limit_exceeded(t) {
    const { purser, token } = await openWithLeases(t);
    return purser.lease(token, 'a', { max_seconds: 3601 });
  },
  async context_length_exceeded(t) {
    const { purser, token } = await openWithWallet(t);
    purser.upstream.handle = failure(400, { error: { message: 'Too long.', code: 'context_length_exceeded' } });
    return purser.chat(token);
  },
  async answer_lost(t) {
    const { purser, token } = await openWithWallet(t);
    purser.upstream.handle = reset;
    assertRefused(await purser.chat(token, {}, 'a'), 503, 'operation_uncertain');
    const [operation] = (await purser.run('operation.list', { uncertain: true })).operations;
    await purser.run('operation.resolve', {
      id: operation?.id as string,
      decision: 'charge',
      reason: 'the bill has it',
    });
    return purser.chat(token, {}, 'a');
  },
  async payload_too_large(t) {
    const purser = await openServer(t);
    return purser.ask('POST', '/v1/wallets', { token: purser.accountKey, key: 'a', body: ' '.repeat(65_537) });
  },
  async unsupported_media_type(t) {
    const purser = await openServer(t);
    const headers = { 'content-type': 'text/plain' };
    return purser.ask('POST', '/v1/wallets', { token: purser.accountKey, key: 'a', body: WALLET, headers });
  },
  upgrade_not_supported: 'Only the gateway says it, in the shape of OpenAI: test/http/gateway-paths.test.ts.',
  async rate_limited(t) {
    const limits = { wallet_requests_per_minute: 0, account_requests_per_minute: 1, failed_auth_per_minute: 0 };
    const purser = await openServer(t, { settings: { limits } });
    assert.equal((await purser.ask('GET', '/v1/account', { token: purser.accountKey })).status, 200);
    return purser.ask('GET', '/v1/account', { token: purser.accountKey });
  },
  async internal_error(t) {
    const { purser, token } = await openWithWallet(t);
    t.mock.method(purser.app.catalogue, 'find', () => {
      throw new TypeError('canary of the inside');
    });
    const answer = await purser.chat(token);
    assert.doesNotMatch(answer.text, /canary|TypeError|\.ts\b/, 'a 500 says nothing of the inside');
    const line = purser.log.find((it) => it.includes('canary of the inside'));
    assert.ok(line?.includes(answer.body.request_id), 'the log has it under the request id');
    return answer;
  },
  async port_unreachable(t) {
    const purser = await openMemoryServer(t);
    const { token } = await purser.openWallet(LONG);
    const { id } = (await purser.lease(token)).body;
    Object.assign(purser.backend.guest, { session: hostSession(), relay: undefined });
    return purser.ask('GET', `/v1/compute/${id}/port/1/`, { token });
  },
  async transfer_not_configured(t) {
    const { purser, token } = await openWithWallet(t);
    return purser.ask('POST', '/v1/transfer/sign', { token, body: { object: 'a', operation: 'get' } });
  },
  async billing_not_configured(t) {
    const purser = await openServer(t);
    return purser.ask('POST', '/v1/billing/checkout', {
      token: purser.operatorKey,
      key: 'a',
      body: { amount_cents: 500 },
    });
  },
  async provider_not_configured(t) {
    const { purser, token } = await openWithWallet(t);
    const body = { provider: 'provider_two', spec: { chip: 'h100', max_seconds: 60 } };
    return purser.ask('POST', '/v1/compute/create', { token, key: 'a', body });
  },
  async provider_unavailable(t) {
    const { purser, token } = await openWithLeases(t);
    const { id } = (await purser.lease(token)).body;
    purser.memory.before.exec = () => Promise.reject(new Error('the engine is gone'));
    return purser.ask('POST', '/v1/compute/exec', { token, body: { id, command: 'true' } });
  },
  async capacity_unavailable(t) {
    const { purser, token } = await openWithLeases(t);
    purser.memory.room = 0;
    return purser.lease(token);
  },
  async gateway_unavailable(t) {
    const { purser, token } = await openWithWallet(t);
    purser.upstream.handle = failure(503);
    return purser.chat(token);
  },
  async operation_uncertain(t) {
    const { purser, token } = await openWithWallet(t);
    purser.upstream.handle = reset;
    return purser.chat(token);
  },
  async read_only(t) {
    const { purser, token } = await openWithWallet(t);
    await purser.run('freeze', {});
    return purser.chat(token);
  },
  request_timeout: 'Node looks for slow clients by the clock of the machine (test/http/unreadable.test.ts).',
  head_too_large: 'Node refuses such a head before it is a request (test/http/unreadable.test.ts).',
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
  const { purser, token } = await openWithWallet(t);
  t.mock.method(purser.app.catalogue, 'find', () => {
    throw 'canary of the inside';
  });
  const answer = await purser.chat(token);
  assertRefused(answer, 500, 'internal_error');
  assert.doesNotMatch(answer.text, /canary/);
  assert.ok(purser.log.some((line) => line.includes('canary') && line.includes(answer.body.request_id)));
});
