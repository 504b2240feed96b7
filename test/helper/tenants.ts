import { randomUUID } from 'node:crypto';
import type { TestServer } from './server.ts';

/** A holder of an account, with its key. */
export type Tenant = { accountId: string; accountKey: string };

/** Adds an account with credit and a key, unrelated to the test's own account. */
export async function addTenant(purser: TestServer, name: string, creditCents = 100_000): Promise<Tenant> {
  const { id } = await purser.run('account.create', { name, creditCents });
  const { key } = await purser.run('key.create', { account: id, name });
  return { accountId: id, accountKey: key };
}

/** Opens a wallet of an account. */
export async function walletOf(
  purser: TestServer,
  { accountKey }: Tenant,
  body: object = {},
): Promise<{ id: string; token: string }> {
  const answer = await purser.ask('POST', '/v1/wallets', {
    token: accountKey,
    key: randomUUID(),
    body: { name: 'test', budget_cents: 1000, expires_in_seconds: 3600, ...body },
  });
  if (answer.status !== 201) throw new Error(`no wallet: ${answer.status} ${answer.text}`);
  return { id: answer.body.id, token: answer.body.agent_token };
}

/** Opens a child of the wallet with this token. */
export async function childOf(
  purser: TestServer,
  token: string,
  budget = '0.50',
): Promise<{ id: string; token: string }> {
  const answer = await purser.ask('POST', '/v1/run/wallets', {
    token,
    key: randomUUID(),
    body: { name: 'child', budget_usd: budget, expires_in_seconds: 0 },
  });
  if (answer.status !== 201) throw new Error(`no child: ${answer.status} ${answer.text}`);
  return { id: answer.body.id, token: answer.body.agent_token };
}
