import type { Installation } from '../helper/executable.ts';

export async function walletWith(purser: Installation): Promise<{ id: string; agent_token: string }> {
  const { accounts } = await purser.json('account', 'list');
  await purser.json('account', 'credit', accounts[0].id, '1000c');
  return purser.json('wallet', 'create', '--account', accounts[0].id, '--name', 'agent', '--budget-cents', '500');
}
