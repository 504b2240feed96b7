import assert from 'node:assert/strict';
import test from 'node:test';
import { openGateway } from '../helper/gateway.ts';
import { openTestServer, type TestServerOptions } from '../helper/server.ts';
import { LONG, openMemoryServer, PRICE } from '../lease/leases.ts';
import { documentOf } from './documented.ts';

// What a paid answer says of its cost and of its limit (design, section 14), at the endpoints outside of the gateway and for
// replays.

const MODEL = {
  id: 'long',
  upstream: 'local',
  context_length: 100_000,
  max_output_tokens: 50_000,
  pricing: { prompt: '0', completion: '0.001' },
};
const settings: TestServerOptions = {
  change: (all) => ({ ...all, router: { ...all.router, models: [...all.router.models, MODEL] } }),
};
const NAMES = ['x-purser-cost-usd', 'x-purser-available-usd', 'x-purser-max-tokens'];
const paid = ({ headers }: { headers: Record<string, unknown> }) => NAMES.map((name) => headers[name]);

test('a strict chat says what it cost, what is left, and a limit that was cut to fit; so does its replay', async (t) => {
  const purser = await openTestServer(t, settings);
  const { id, token } = await purser.openWallet({ budget_cents: 100 });
  const body = { model: 'long', max_tokens: undefined };
  const first = await purser.chat(token, body, 'k');
  const { available_usd: left, used_usd: cost } = await purser.budget(token);
  assert.deepEqual(paid(first), [cost, left, '1000']);
  const again = await purser.chat(token, body, 'k');
  assert.equal(again.headers['idempotent-replayed'], 'true');
  assert.deepEqual(paid(again), [cost, left, '1000']);
  const named = await purser.chat(token, { model: 'long', max_tokens: 300 });
  assert.deepEqual(paid(named).slice(2), [undefined], 'a limit that was named is never cut here');
  assert.equal((await purser.chat(token, { model: 'long', max_tokens: 1000 })).headers['x-purser-cost-usd'], undefined);
  assert.equal(purser.wallet(id).held, 0n);
});

for (const stream of [false, true])
  test(`a replay under the gateway says to what its limit was cut, too (stream: ${stream})`, async (t) => {
    const purser = await openTestServer(t, settings);
    const gateway = await openGateway(purser, { wallet: { budget_cents: 100 } });
    for (const replayed of [undefined, 'true']) {
      const { headers, text } = await gateway.chat({ model: 'long', max_tokens: 30_000, stream }, 'k');
      assert.deepEqual([headers['idempotent-replayed'], headers['x-purser-max-tokens']], [replayed, '1000'], text);
    }
  });

test('a closed wallet has nothing left, wherever that is said', async (t) => {
  const purser = await openTestServer(t);
  const gateway = await openGateway(purser, { wallet: { budget_cents: 100 } });
  await purser.chat(gateway.token, {}, 'k');
  assert.equal((await purser.ask('POST', '/v1/run/close', { token: gateway.token })).status, 200);
  const replay = await purser.chat(gateway.token, {}, 'k');
  assert.equal(replay.headers['idempotent-replayed'], 'true');
  const { limit_remaining: remaining } = (await gateway.ask('GET', '/key')).body.data;
  const { available_usd: left } = await purser.budget(gateway.token);
  assert.deepEqual([left, remaining, replay.headers['x-purser-available-usd']], ['0.00', 0, '0.00']);
});

test('a lease and its extension say what they cost, once they are charged', async (t) => {
  const purser = await openMemoryServer(t);
  const { token } = await purser.openWallet(LONG);
  const made = await purser.lease(token, 'k');
  assert.deepEqual(paid(made).slice(0, 2), [PRICE, (await purser.budget(token)).available_usd]);
  const rented = await purser.rent(token);
  const extended = await purser.extend(token, rented.body.id, 600, 'e');
  const { available_usd: left } = await purser.budget(token);
  assert.deepEqual(paid(extended), ['0.06', left, undefined]);
  assert.deepEqual(paid(await purser.extend(token, rented.body.id, 600, 'e')), ['0.06', left, undefined]);
  assert.deepEqual(paid(await purser.lease(token, 'k')), [PRICE, left, undefined]);
});

test('the API document has these headers, where they are sent', async (t) => {
  const { paths } = await documentOf(await openTestServer(t));
  const said = (path: string) => {
    const answer = paths[path]?.post?.responses[200] as { headers?: object } | undefined;
    return Object.keys(answer?.headers ?? {}).filter((name) => name.startsWith('x-purser-'));
  };
  assert.deepEqual(said('/v1/chat/completions'), NAMES);
  assert.deepEqual(said('/v1/compute/create'), NAMES.slice(0, 2));
  assert.deepEqual(said('/v1/compute/extend'), NAMES.slice(0, 2));
  assert.deepEqual(said('/v1/compute/stop'), []);
});
