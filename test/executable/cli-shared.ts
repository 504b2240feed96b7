import type { Installation } from '../helper/executable.ts';

export async function walletWith(purser: Installation): Promise<{ id: string; agent_token: string }> {
  await purser.operate('account.credit', { id: 'default', cents: 1000 });
  return purser.operate('wallet.create', { account: 'default', name: 'agent', budget_cents: 500 });
}
