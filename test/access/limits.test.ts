import assert from 'node:assert/strict';
import test from 'node:test';
import { createLimit, type Limit } from '../../src/base/limits.ts';
import { Refusal } from '../../src/base/refusal.ts';
import fc from '../helper/property.ts';
import { openTestServer, type TestServer } from '../helper/server.ts';
import { completion, failure } from '../helper/upstream.ts';
import { assertNothingMoves, assertRefused } from '../http/refused.ts';
import { LONG, openMemoryServer } from '../lease/leases.ts';

/** A limit with a clock in the hand. */
function limitAt(perMinute: number) {
  const clock = { milliseconds: 1_000_000 };
  return { clock, limit: createLimit(perMinute, () => clock.milliseconds) };
}

/** Takes one; the seconds to wait when it is refused, 0 when it is let through. */
function wait(limit: Limit, caller = 'a'): number {
  try {
    limit.take(caller);
    return 0;
  } catch (error) {
    assert.ok(error instanceof Refusal);
    assert.equal(error.code, 'rate_limited');
    return error.retryAfterSeconds as number;
  }
}

test('a caller may use up a minute at once, and then waits for the next one', () => {
  const { clock, limit } = limitAt(60);
  for (let i = 0; i < 60; i++) assert.equal(wait(limit), 0);
  assert.equal(wait(limit), 1);
  clock.milliseconds += 999;
  assert.equal(wait(limit), 1);
  clock.milliseconds += 1;
  assert.equal(wait(limit), 0);
  assert.equal(wait(limit), 1);
});

test('what is refused costs nothing: asking again and again does not put the next one off', () => {
  const { clock, limit } = limitAt(2);
  for (let i = 0; i < 2; i++) assert.equal(wait(limit), 0);
  for (let i = 0; i < 30; i++) {
    assert.equal(wait(limit), 30 - i);
    clock.milliseconds += 1000;
  }
  assert.equal(wait(limit), 0);
});

test('whoever was silent for long has one minute’s worth, not more', () => {
  const { clock, limit } = limitAt(3);
  assert.equal(wait(limit), 0);
  clock.milliseconds += 24 * 3_600_000;
  assert.deepEqual([wait(limit), wait(limit), wait(limit)], [0, 0, 0]);
  assert.equal(wait(limit), 20);
});

test('callers do not share their limits', () => {
  const { limit } = limitAt(1);
  assert.equal(wait(limit, 'a'), 0);
  assert.equal(wait(limit, 'b'), 0);
  assert.equal(wait(limit, 'a'), 60);
  assert.equal(wait(limit, 'b'), 60);
});

test('0 a minute is no limit', () => {
  const { limit } = limitAt(0);
  for (let i = 0; i < 10_000; i++) assert.equal(wait(limit), 0);
});

test('of too many callers those who were silent longest are forgotten first, and the others are not', () => {
  const { limit } = limitAt(1);
  assert.equal(wait(limit, 'silent'), 0);
  assert.equal(wait(limit, 'busy'), 0);
  for (let i = 0; i < 99_998; i++) limit.take(`other ${i}`);
  assert.equal(wait(limit, 'busy'), 60, '100,000 callers are remembered');
  limit.take('one more');
  assert.equal(wait(limit, 'busy'), 60, 'it asked a moment ago');
  assert.equal(wait(limit, 'silent'), 0, 'it was the one to go');
});

test('after Retry-After the next one is always let through, and never a whole second before', () => {
  const pauses = fc.array(fc.integer({ min: 0, max: 90_000 }), { minLength: 1, maxLength: 60 });
  fc.assert(
    fc.property(fc.integer({ min: 1, max: 100_000 }), pauses, (perMinute, milliseconds) => {
      const { clock, limit } = limitAt(perMinute);
      for (const pause of milliseconds) {
        clock.milliseconds += pause;
        let seconds = 0;
        for (let i = 0; i < 100 && !seconds; i++) seconds = wait(limit);
        if (!seconds) continue;
        assert.ok(Number.isInteger(seconds) && seconds >= 1 && seconds <= 60, `${seconds}`);
        clock.milliseconds += (seconds - 1) * 1000;
        if (seconds > 1) assert.notEqual(wait(limit), 0, `${seconds - 1} s would have been enough`);
        clock.milliseconds += 1000;
        assert.equal(wait(limit), 0);
      }
    }),
    { numRuns: 1000 },
  );
});

test('in any minute nobody gets more than what was saved up and what came in', () => {
  const pauses = fc.array(fc.integer({ min: 0, max: 5000 }), { maxLength: 200 });
  fc.assert(
    fc.property(fc.integer({ min: 1, max: 100 }), pauses, (perMinute, milliseconds) => {
      const { clock, limit } = limitAt(perMinute);
      const start = clock.milliseconds;
      let granted = 0;
      for (const pause of milliseconds) {
        clock.milliseconds += pause;
        if (wait(limit) === 0) granted++;
        const max = perMinute + ((clock.milliseconds - start) / 60_000) * perMinute;
        assert.ok(granted <= max + 1e-6, `${granted} of at most ${max}`);
      }
    }),
  );
});

const OPEN = {
  wallet_requests_per_minute: 0,
  account_requests_per_minute: 0,
  failed_auth_per_minute: 0,
  released_per_minute: 0,
};
const withLimits = (limits: Partial<typeof OPEN>) => ({ settings: { limits: { ...OPEN, ...limits } } });

/** Asks until the limit answers; the limit has to hold at exactly `count`. */
async function useUp(purser: TestServer, path: string, token: string, count: number, status = 200) {
  for (let i = 0; i < count; i++) assert.equal((await purser.ask('GET', path, { token })).status, status);
  const answer = await purser.ask('GET', path, { token });
  assertRefused(answer, 429, 'rate_limited');
  const seconds = Number(answer.headers['retry-after']);
  assert.ok(
    Number.isInteger(seconds) && seconds >= 1 && seconds <= 60,
    `Retry-After: ${answer.headers['retry-after']}`,
  );
}

test('a wallet token has a limit of its own, whatever it asks for', async (t) => {
  const purser = await openTestServer(t, withLimits({ wallet_requests_per_minute: 3 }));
  const [one, two] = [await purser.openWallet(), await purser.openWallet()];
  await useUp(purser, '/v1/budget', one.token, 3);
  assertRefused(await purser.chat(one.token), 429, 'rate_limited');
  assertRefused(await purser.ask('POST', '/v1/run/close', { token: one.token }), 429, 'rate_limited');
  assert.deepEqual(purser.upstream.calls, []);
  assert.equal((await purser.budget(two.token)).status, 'active', 'another wallet is not concerned');
  assert.equal(
    (await purser.ask('GET', '/v1/account', { token: purser.accountKey })).status,
    200,
    'nor is the account',
  );
  assert.equal((await purser.ask('POST', `/v1/wallets/${one.id}/close`, { token: purser.accountKey })).status, 200);
});

test('every account key and every operator key has a limit of its own', async (t) => {
  const purser = await openTestServer(t, withLimits({ account_requests_per_minute: 2 }));
  const other = (await purser.run('key.create', { account: purser.accountId, name: 'other' })).key;
  await useUp(purser, '/v1/account', purser.accountKey, 2);
  await useUp(purser, '/v1/account', other, 2);
  await useUp(purser, '/v1/account', purser.operatorKey, 2);
});

test('a token in the wrong place uses up its limit like any other request', async (t) => {
  const purser = await openTestServer(t, withLimits({ account_requests_per_minute: 2 }));
  await useUp(purser, '/v1/budget', purser.accountKey, 2, 403);
});

test('an address that fails too often hears 429, and a valid token from the same address never does', async (t) => {
  const purser = await openTestServer(t, withLimits({ failed_auth_per_minute: 3 }));
  const { token } = await purser.openWallet();
  await useUp(purser, '/v1/account', 'cnv_live_guess', 3, 401);
  for (let i = 0; i < 10; i++) {
    assert.equal((await purser.ask('GET', '/v1/account', { token: purser.accountKey })).status, 200);
    assert.equal((await purser.ask('GET', '/v1/budget', { token })).status, 200);
    assertRefused(await purser.ask('GET', '/v1/account', { token: `cnv_live_guess${i}` }), 429, 'rate_limited');
    assertRefused(await purser.ask('GET', '/v1/account'), 401, 'unauthenticated');
  }
  assert.equal((await purser.chat(token)).status, 200);
});

test('a request without a credential is no failed one: only what was sent and is wrong counts', async (t) => {
  const purser = await openTestServer(t, withLimits({ failed_auth_per_minute: 2 }));
  for (let i = 0; i < 10; i++) assertRefused(await purser.ask('GET', '/v1/account'), 401, 'unauthenticated');
  await useUp(purser, '/v1/account', 'guess', 2, 401);
  assertRefused(
    await purser.ask('GET', '/v1/account', { headers: { authorization: 'Basic YTpi' } }),
    429,
    'rate_limited',
    'another scheme is a wrong credential',
  );
});

test('as shipped nothing stands in the way of wallets and accounts, and 600 wrong tokens a minute are answered', async (t) => {
  const purser = await openTestServer(t, { change: ({ limits: _, ...settings }) => settings });
  const { token } = await purser.openWallet();
  const many = (count: number, path: string, asked: object) =>
    Promise.all(Array.from({ length: count }, () => purser.ask('GET', path, asked)));
  for (const [path, bearer] of [
    ['/v1/budget', token],
    ['/v1/account', purser.accountKey],
  ] as const)
    for (const answer of await many(700, path, { token: bearer })) assert.equal(answer.status, 200);
  for (const answer of await many(700, '/v1/account', {})) assert.equal(answer.status, 401);
  for (const answer of await many(600, '/v1/account', { token: 'guess' })) assert.equal(answer.status, 401);
});

/** What the model server answers to what it does not take. */
const refuses = failure(400, { error: { message: 'No.' } });

test('requests that the model server refuses are limited for each wallet, before anything is held', async (t) => {
  const purser = await openTestServer(t, withLimits({ released_per_minute: 2 }));
  const [one, two] = [await purser.openWallet(), await purser.openWallet()];
  purser.upstream.handle = refuses;
  for (
    let i = 0;
    i < 5;
    i++ // Refused before a hold: not counted.
  )
    assertRefused(await purser.chat(one.token, { web_search_options: {} }), 400, 'unsupported_parameter');
  for (let i = 0; i < 2; i++) assertRefused(await purser.chat(one.token), 400, 'invalid_request');
  await assertNothingMoves(purser, async () => {
    for (let i = 0; i < 3; i++) {
      const answer = await purser.chat(one.token);
      assertRefused(answer, 429, 'rate_limited');
      const seconds = Number(answer.headers['retry-after']);
      assert(seconds >= 1 && seconds <= 30, `Retry-After: ${seconds}`);
    }
  });
  assert.equal((await purser.budget(one.token)).held_usd, '0.00', 'reads are answered');
  assertRefused(await purser.chat(two.token), 400, 'invalid_request', 'another wallet is not concerned');
  purser.upstream.handle = completion();
  assertRefused(await purser.chat(one.token), 429, 'rate_limited', 'until its time has passed');
  assert.equal((await purser.chat(two.token)).status, 200);
  assertRefused(
    await purser.chat((await purser.openWallet({ budget_cents: 100 })).token, { model: 'dear', max_tokens: 1000 }),
    402,
    'insufficient_funds',
  );
});

test('leases that the provider refuses count among them, and so do those that end before they are ready', async (t) => {
  const purser = await openMemoryServer(t, withLimits({ released_per_minute: 2 }));
  const [one, two, other] = [
    await purser.openWallet(LONG),
    await purser.openWallet(LONG),
    await purser.openWallet(LONG),
  ];
  purser.memory.room = 0;
  for (let i = 0; i < 2; i++) assertRefused(await purser.lease(one.token), 503, 'capacity_unavailable');
  for (let i = 0; i < 3; i++) assertRefused(await purser.lease(one.token), 429, 'rate_limited');
  assert.equal((await purser.run('operation.list', {})).operations.length, 2, 'nothing was held for these');
  purser.memory.room = 10;
  purser.memory.ready = false;
  purser.app.answerSeconds = 0;
  for (let i = 0; i < 2; i++) {
    const { id } = (await purser.lease(two.token)).body;
    assert.equal((await purser.stop(two.token, id)).body.status, 'stopped');
  }
  assertRefused(await purser.lease(two.token), 429, 'rate_limited');
  assert.equal((await purser.lease(other.token)).status, 200, 'another wallet is not concerned');
});

test('however many are refused at once, all of them count, and what succeeds does not', async (t) => {
  const purser = await openTestServer(t, withLimits({ released_per_minute: 60 }));
  const { token } = await purser.openWallet();
  for (let i = 0; i < 70; i++) assert.equal((await purser.chat(token)).status, 200);
  purser.upstream.handle = refuses;
  const all = await Promise.all(Array.from({ length: 150 }, () => purser.chat(token)));
  const held = purser.upstream.calls.length - 70;
  assert.equal(all.filter((it) => it.status === 400).length, held);
  const answer = await purser.chat(token);
  assertRefused(answer, 429, 'rate_limited');
  const owed = held - 59;
  assert(Math.abs(Number(answer.headers['retry-after']) - owed) <= 3, `${answer.headers['retry-after']} for ${held}`);
});

test('a limit that is counted afterwards may go below nothing, and is waited for', () => {
  const { clock, limit } = limitAt(60);
  for (let i = 0; i < 100; i++) limit.count('a');
  const check = () => {
    try {
      limit.check('a');
      return 0;
    } catch (error) {
      return (error as Refusal).retryAfterSeconds;
    }
  };
  assert.equal(check(), 41);
  clock.milliseconds += 40_999;
  assert.equal(check(), 1);
  clock.milliseconds += 1;
  assert.equal(check(), 0);
  assert.equal(check(), 0, 'looking takes nothing');
});

test('a valid token, even in the wrong place, does not count as a failure of its address', async (t) => {
  const purser = await openTestServer(t, withLimits({ failed_auth_per_minute: 1 }));
  for (let i = 0; i < 5; i++)
    assertRefused(await purser.ask('GET', '/v1/budget', { token: purser.accountKey }), 403, 'wrong_token_scope');
  assertRefused(await purser.ask('GET', '/v1/budget', { token: 'guess' }), 401, 'unauthenticated');
});

test('what needs no token has no limit', async (t) => {
  const purser = await openTestServer(
    t,
    withLimits({ wallet_requests_per_minute: 1, account_requests_per_minute: 1, failed_auth_per_minute: 1 }),
  );
  await useUp(purser, '/v1/account', 'guess', 1, 401);
  for (let i = 0; i < 5; i++)
    for (const path of ['/v1/openapi.json', '/healthz', '/readyz'])
      assert.equal((await purser.ask('GET', path)).status, 200);
});
