import assert from 'node:assert/strict';
import test from 'node:test';
import { installation } from '../helper/executable.ts';
import { connectMcp } from '../helper/mcp.ts';

test('the executable serves the wallet as MCP, and its key buys one child for a repeated call', async (t) => {
  const purser = installation(t);
  const server = await purser.serve();
  await purser.operate('account.credit', { id: 'default', cents: 2000 });
  const order = { account: 'default', name: 'a', budget_cents: 500 };
  const { agent_token: token } = await purser.operate('wallet.create', order);
  const client = await connectMcp(t, server.url, token);
  assert.equal((await client.listTools()).tools.length, 27);
  const child = { name: 'b', budget_usd: '2.00', idempotency_key: 'once' };
  const [first, second] = [await client.tool('wallet_delegate', child), await client.tool('wallet_delegate', child)];
  assert.equal(first.structuredContent.id, second.structuredContent.id);
  assert.equal((await client.tool('wallet_budget')).structuredContent.available_usd, '3.00');
  await client.tool('wallet_close');
  const { wallets } = await purser.json('wallet', 'list');
  assert(wallets.every((it: { status: string }) => it.status === 'closed'));
  assert.equal((await server.stop()).code, 0);
  for (const secret of [token, first.structuredContent.agent_token]) assert(!server.output.stderr.includes(secret));
});
