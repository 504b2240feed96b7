import type { Command } from 'commander';
import { askAndPrint, example, showRecord, showTable } from './house.ts';

const COLUMNS = ['id', 'name', 'prefix', 'last4', 'created_at', 'last_used_at', 'revoked_at', 'minted_by'];

export function keyCommands(program: Command): void {
  const group = program.command('key').description('account keys, for hosts and CI');
  group
    .command('create')
    .description('create an account key; it is printed once')
    .requiredOption('--account <id>', 'whose key it is')
    .requiredOption('--name <name>', 'a name to tell keys apart')
    .addHelpText('after', example('purser key create --account acct_01k9… --name ci'))
    .action((options: { account: string; name: string }, command: Command) =>
      askAndPrint(command, 'key.create', options, showRecord),
    );
  group
    .command('list')
    .description('list the latest 100 keys of an account, never their secrets')
    .requiredOption('--account <id>', 'whose keys')
    .addHelpText('after', example('purser key list --account acct_01k9…'))
    .action((options: { account: string }, command: Command) =>
      askAndPrint(command, 'key.list', options, ({ keys }) => showTable(keys, ...COLUMNS)),
    );
  group
    .command('revoke')
    .argument('<id>')
    .description('revoke an account key at once')
    .addHelpText('after', example('purser key revoke key_01k9…'))
    .action((id: string, _, command: Command) => askAndPrint(command, 'key.revoke', { id }, showRecord));
}
