import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import test from 'node:test';
import { openTestServer, type TestServer } from '../helper/server.ts';
import { completion, failure, gate } from '../helper/upstream.ts';
import { recordOf } from './moves-shared.ts';

/** Parks what a wallet has in a chain of children, as many deep, before a midnight, and closes them after it. */
async function parkOver(
  purser: TestServer,
  token: string,
  depth: number,
  midnight: (deepest: string) => Promise<void>,
) {
  const chain: { id: string; token: string }[] = [];
  for (let parent = token; chain.length < depth; parent = chain.at(-1)?.token as string) {
    const { available_usd: budget_usd } = await purser.budget(parent);
    const body = { name: 'bank', budget_usd, expires_in_seconds: 0 };
    const { body: child } = await purser.ask('POST', '/v1/run/wallets', { token: parent, key: randomUUID(), body });
    chain.push({ id: child.id, token: child.agent_token });
  }
  await midnight(chain.at(-1)?.token as string);
  const closed = await purser.ask('POST', `/v1/run/wallets/${chain[0]?.id}/close`, { token });
  assert.equal(closed.status, 200, closed.text);
}

for (const [carry, available] of [
  ['none', '2.00'],
  [50, '2.50'],
  ['all', '22.00'],
] as const)
  for (const depth of [1, 2])
    test(`what is parked in children ${depth} deep over ten midnights is left over: carry ${carry} has ${available}`, async (t) => {
      const purser = await openTestServer(t);
      const { id, token } = await purser.openWallet({ budget_cents: 200, expires_in_seconds: 0 });
      await purser.run('wallet.refill', { id, refill: { cents: 200, every: 'day', carry } });
      for (let day = 0; day < 10; day++)
        await parkOver(purser, token, depth, async () => {
          purser.clock.advance(86_400);
          await purser.app.reaper.runOnce();
        });
      assert.equal((await recordOf(purser, id)).available_usd, available);
      assert.deepEqual(purser.problems(), []);
    });

for (const [carry, available] of [
  ['none', '2.00'],
  [100, '3.00'],
  ['all', '10.00'],
] as const)
  for (const where of ['the wallet', 'its child'] as const)
    test(`what ${where} holds over four midnights is left over: carry ${carry} has ${available}`, async (t) => {
      const purser = await openTestServer(t);
      const { id, token } = await purser.openWallet({ budget_cents: 200, expires_in_seconds: 0 });
      await purser.run('wallet.refill', { id, refill: { cents: 200, every: 'day', carry } });
      for (let day = 0; day < 4; day++) {
        const { handler, open } = gate(failure(400));
        purser.upstream.handle = handler;
        const overMidnight = async (holder: string) => {
          const cents = Math.round(Number((await purser.budget(holder)).available_usd) * 100);
          const before = purser.upstream.calls.length;
          const held = purser.chat(holder, { model: 'dear', max_tokens: Math.min(cents, 1000) });
          await purser.upstream.arrived(before + 1);
          purser.clock.advance(86_400);
          await purser.app.reaper.runOnce();
          open();
          assert.equal((await held).status, 400);
        };
        if (where === 'the wallet') await overMidnight(token);
        else await parkOver(purser, token, 1, overMidnight);
      }
      assert.equal((await recordOf(purser, id)).available_usd, available);
      assert.deepEqual(purser.problems(), []);
    });

test('a refill lowers no wallet below what it has itself, and what children have spent is not left over', async (t) => {
  const purser = await openTestServer(t);
  const { id, token } = await purser.openWallet({ budget_cents: 1000, expires_in_seconds: 0 });
  await purser.run('wallet.refill', { id, refill: { cents: 200, every: 'day' } });
  const delegate = async (parent: string, budget_usd: string) => {
    const body = { name: 'child', budget_usd, expires_in_seconds: 0 };
    const { body: child } = await purser.ask('POST', '/v1/run/wallets', { token: parent, key: randomUUID(), body });
    return { id: child.id as string, token: child.agent_token as string };
  };
  const child = await delegate(token, '9.00');
  const grandchild = await delegate(child.token, '8.00');
  const nextDay = async () => {
    purser.clock.advance(86_400);
    await purser.app.reaper.runOnce();
    return (await recordOf(purser, id)).available_usd;
  };
  assert.equal(await nextDay(), '0.00', 'its own dollar goes; nine are with the children');
  purser.upstream.handle = completion({ prompt_tokens: 1, completion_tokens: 800 });
  assert.equal((await purser.chat(grandchild.token, { model: 'dear', max_tokens: 800 })).status, 200);
  assert.equal((await purser.budget(grandchild.token)).available_usd, '0.00');
  assert.equal(await nextDay(), '1.00', 'the child has the other one');
  assert.deepEqual(purser.problems(), []);
});
