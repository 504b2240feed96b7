import assert from 'node:assert/strict';
import test from 'node:test';
import type { Answer, TestServer } from '../helper/server.ts';
import { failure } from '../helper/upstream.ts';
import { ask, DEAR, later, lineUp, open, refusalOf, waiting } from './funds-wait-shared.ts';

/** The events that leave money to a request for 900 tokens of 1,000, while another holds 600. */
const WAKES: Record<string, (it: Awaited<ReturnType<typeof open>>) => unknown> = {
  'an answer': ({ calls }) => calls[0]?.answer(),
  'a refusal of the model server': ({ calls }) => calls[0]?.answer(failure(400)),
  'a raise by the account': ({ purser, gateway }) =>
    later(purser, `/v1/wallets/${gateway.walletId}/budget`, { add_cents: 500 }),
  'a raise by the operator': ({ purser, gateway }) =>
    purser.run('wallet.budget', { id: gateway.walletId, key: 'k', add_cents: 500 } as never),
};

for (const [what, happens] of Object.entries(WAKES))
  test(`woken by ${what}`, async (t) => {
    // In this thread every commit counts as one that may have changed any wallet.
    const it = await open(t, { writesHere: !what.startsWith('an answer') });
    const { purser, calls } = it;
    const { others } = await lineUp(it, 600, 900);
    await happens(it);
    await purser.upstream.arrived(2);
    calls[1]?.answer();
    assert.equal((await (others[0] as Promise<Answer>)).status, 200);
    assert.equal(purser.app.fundsQueue.count(), 0);
    assert.deepEqual(purser.problems(), []);
  });

test('woken by the close of a child, and by a refill', async (t) => {
  const it = await open(t);
  const { purser, gateway, calls } = it;
  const body = { name: 'c', budget_usd: '5' };
  const child = (await purser.ask('POST', '/v1/run/wallets', { token: gateway.token, key: 'c', body })).body;
  const { others } = await lineUp(it, 300, 450);
  await purser.ask('POST', '/v1/run/close', { token: child.agent_token, body: {} });
  await purser.upstream.arrived(2);
  calls[1]?.answer();
  assert.equal((await (others[0] as Promise<Answer>)).status, 200);

  const refill = { cents: 1000, every: 'day', zone: 'UTC', carry: 'all' };
  await purser.run('wallet.refill', { id: gateway.walletId, refill } as never);
  const again = ask(gateway, 900);
  await waiting(purser, 1);
  await purser.run('wallet.extend', { id: gateway.walletId, key: 'e', seconds: 3 * 86_400 } as never);
  purser.clock.advance(86_400);
  await purser.app.reaper.runOnce();
  await purser.upstream.arrived(3);
  calls[2]?.answer();
  assert.equal((await again).status, 200);
  assert.deepEqual(purser.problems(), []);
});

/** The events that end the wait of all in a wallet, and how they are refused. */
const ENDS: Record<
  string,
  { happens: (purser: TestServer, id: string, key: string) => unknown; refused: [number, string] }
> = {
  'the revocation of the gateway key': {
    happens(purser, _, key) {
      const id = (purser.app.tokens.find(key) as { routerKeyId: string }).routerKeyId;
      return purser.run('key.revoke', { id } as never);
    },
    refused: [401, 'unauthenticated'],
  },
  'a freeze': {
    happens: (purser, id) => purser.run('wallet.freeze', { id }),
    refused: [402, 'wallet_frozen'],
  },
  'a freeze of everything': {
    happens: (purser) => purser.run('freeze', {} as never),
    refused: [503, 'read_only'],
  },
  'the suspension of the account': {
    happens: (purser) => purser.run('account.suspend', { id: purser.accountId }),
    refused: [403, 'account_suspended'],
  },
  'the expiry of the wallet': {
    async happens(purser) {
      purser.clock.advance(4000);
      await purser.app.reaper.runOnce();
    },
    refused: [409, 'wallet_expired'],
  },
  'the end of its time': { happens: () => {}, refused: [429, 'funds_held'] },
  'the stop of the server': {
    happens: (purser) => void purser.app[Symbol.asyncDispose](),
    refused: [503, 'read_only'],
  },
};

for (const [what, { happens, refused }] of Object.entries(ENDS))
  test(`ended by ${what}`, async (t) => {
    const it = await open(t);
    const { purser, gateway, time, calls } = it;
    const { first, others } = await lineUp(it, 600, 900, 100, 900);
    if (what === 'the end of its time') time.expire();
    else await happens(purser, gateway.walletId, gateway.key);
    for (const answer of await Promise.all(others)) assert.deepEqual(refusalOf(answer), refused, answer.text);
    assert.equal(purser.upstream.calls.length, 1);
    calls[0]?.answer();
    assert.equal((await first).status, 200);
  });

test('ended by the close of the wallet above', async (t) => {
  const it = await open(t);
  const { purser, gateway, calls } = it;
  const body = { name: 'c', budget_usd: '9' };
  const child = (await purser.ask('POST', '/v1/run/wallets', { token: gateway.token, key: 'c', body })).body;
  const { api_key: key } = (await purser.ask('POST', '/v1/router/key', { token: child.agent_token, body: {} })).body;
  const post = (tokens: number) =>
    purser.ask('POST', '/v1/router/chat/completions', {
      token: key,
      body: { ...DEAR, messages: [{ role: 'user', content: 'hi' }], max_tokens: tokens },
    });
  const first = post(600);
  await purser.upstream.arrived(1);
  const second = post(700);
  await waiting(purser, 1);
  const closing = purser.ask('POST', '/v1/run/close', { token: gateway.token, body: {} });
  assert.deepEqual(refusalOf(await second), [409, 'wallet_closed']);
  calls[0]?.answer();
  assert.equal((await first).status, 200);
  await closing;
});
