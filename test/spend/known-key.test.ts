import assert from 'node:assert/strict';
import test from 'node:test';
import { Refusal } from '../../src/base/refusal.ts';
import { type Gateway, openGateway } from '../helper/gateway.ts';
import { type Answer, openTestServer, type TestServer } from '../helper/server.ts';
import { completionStream } from '../helper/sse.ts';
import { completion, gate, reset } from '../helper/upstream.ts';

// A key is looked up before anything else (docs/decisions/0062): whatever refuses a new request lets the answer of an earlier one
// through, and the conflict of another body. Neither writes, waits, nor takes a place.

/** Of a wallet of a dollar; a token costs a cent. */
const DEAR = { model: 'dear', max_tokens: 90 };
const USED = { prompt_tokens: 1, completion_tokens: 90, total_tokens: 91 };

type Ask = (body?: object, key?: string) => Promise<Answer>;
type Opened = { purser: TestServer; gateway: Gateway; ask: Ask };

/** What refuses a new request, by its cause. */
const REFUSALS: Record<string, { code: string; begin: (it: Opened) => unknown }> = {
  'its wallet lacks the money': { code: 'insufficient_funds', begin() {} },
  'its wallet has lacked the money before': {
    code: 'insufficient_funds',
    begin: async ({ ask }) => assert.equal((await ask({}, 'before')).body.error.code, 'insufficient_funds'),
  },
  'its wallet is frozen': {
    code: 'wallet_frozen',
    begin: ({ purser, gateway }) => purser.run('wallet.freeze', { id: gateway.walletId }),
  },
  'its wallet is closed': {
    code: 'wallet_closed',
    begin: ({ purser, gateway }) => purser.run('wallet.close', { id: gateway.walletId }),
  },
  'its wallet has expired': { code: 'wallet_expired', begin: ({ purser }) => purser.clock.advance(3600) },
  'the installation is frozen': { code: 'read_only', begin: ({ purser }) => purser.run('freeze', {}) },
  'too many requests are in flight': {
    code: 'rate_limited',
    begin({ purser }) {
      purser.app.inFlight.drive = () => Promise.reject(new Refusal('rate_limited'));
    },
  },
  'nothing can be written': {
    code: 'read_only',
    begin({ purser }) {
      purser.app.ledger.write = () => Promise.reject(new Refusal('read_only'));
    },
  },
  'the circuit of its model server is open': {
    code: 'gateway_unavailable',
    async begin({ purser, ask }) {
      purser.upstream.handle = reset;
      for (let i = 0; i < 3; i++) await ask({ model: 'flat', seed: i }, `reset ${i}`);
    },
  },
};

/** Returns the list of what a request does from now on, beside reading. */
function effectsOf({ app }: TestServer): string[] {
  const effects: string[] = [];
  for (const [of, name] of [
    [app.ledger, 'write'],
    [app.circuits, 'enter'],
    [app.inFlight, 'drive'],
  ] as [Record<string, (...args: unknown[]) => unknown>, string][]) {
    const real = of[name] as (...args: unknown[]) => unknown;
    of[name] = (...args) => {
      effects.push(name);
      return real(...args);
    };
  }
  return effects;
}

for (const [cause, { code, begin }] of Object.entries(REFUSALS))
  for (const isStream of [false, true])
    test(`a known key is answered, ${isStream ? 'streamed, ' : ''}though ${cause}`, async (t) => {
      const purser = await openTestServer(t);
      const isFlat = code === 'gateway_unavailable';
      const gateway = await openGateway(purser, {
        wallet: { budget_cents: isFlat ? 10_000 : 100, expires_in_seconds: 3600 },
      });
      const model = isFlat ? { model: 'flat', max_tokens: 5 } : DEAR;
      const ask: Ask = (body, key) => (isStream ? gateway.streamed : gateway.chat)({ ...model, ...body }, key);
      purser.upstream.handle = isStream ? completionStream(USED) : completion(USED);
      const first = await ask({}, 'known');
      assert.equal(first.status, 200, first.text);
      await begin({ purser, gateway, ask });
      const { held, spent } = purser.wallet(gateway.walletId);
      const count = purser.upstream.calls.length;
      const effects = effectsOf(purser);
      const again = await ask({}, 'known');
      assert.deepEqual([again.status, again.headers['idempotent-replayed']], [200, 'true'], again.text);
      assert.equal(again.text, first.text);
      assert.equal((await ask({ seed: 99 }, 'known')).body.error.code, 'idempotency_conflict');
      assert.deepEqual(effects, [], 'neither writes, asks for a place, nor counts as in flight');
      assert.equal((await ask({}, 'new')).body.error.code, code);
      assert.equal(purser.upstream.calls.length, count, 'nobody outside was asked');
      assert.deepEqual([purser.wallet(gateway.walletId).held, purser.wallet(gateway.walletId).spent], [held, spent]);
      assert.deepEqual(purser.problems(), []);
    });

test('a known key waits for no money', async (t) => {
  const purser = await openTestServer(t, {
    change: (all) => ({ ...all, limits: { ...all.limits, funds_wait_seconds: 600 } }),
  });
  const gateway = await openGateway(purser, { wallet: { budget_cents: 100 } });
  purser.upstream.handle = completion({ ...USED, completion_tokens: 20 });
  const first = await gateway.chat({ ...DEAR, max_tokens: 50 }, 'known');
  const held = gate();
  purser.upstream.handle = held.handler;
  const holding = gateway.chat({ ...DEAR, max_tokens: 70 }, 'holds');
  await purser.upstream.arrived(2);
  for (let i = 0; i < 2; i++) {
    const again = await gateway.chat({ ...DEAR, max_tokens: 50 }, 'known');
    assert.deepEqual([again.headers['idempotent-replayed'], again.text], ['true', first.text]);
  }
  assert.equal(purser.app.fundsQueue.count(), 0);
  held.open();
  await holding;
});
