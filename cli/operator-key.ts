import type { Command } from 'commander';
import { confirm, irreversible } from './confirm.ts';
import { askAndPrint, example, listOptions, showRecord, showTable } from './context.ts';

const COLUMNS = ['id', 'name', 'account_id?', 'prefix?', 'last4', 'created_at?', 'last_used_at', 'revoked_at'];

/** Registers `operator-key`: keys of the operator. */
export function operatorKeyCommands(program: Command): void {
  const group = program.command('operator-key').description('keys of the operator: accepted on every account endpoint');
  group
    .command('mint')
    .description('mint an operator key; it is printed once')
    .option('--account <id>', 'the account it acts for (default: the account named default)')
    .option('--name <name>', 'a name to tell keys apart')
    .addHelpText('after', example('purser operator-key mint --name laptop'))
    .action((options: { account?: string; name?: string }, command: Command) =>
      askAndPrint(command, 'operator-key.mint', options, (key) => showRecord(key)),
    );
  listOptions(group.command('list'))
    .description('list operator keys, never their secrets')
    .addHelpText('after', example('purser operator-key list --json'))
    .action((_, command: Command) =>
      askAndPrint(command, 'operator-key.list', {}, ({ keys }, view) => showTable(keys, COLUMNS, view)),
    );
  irreversible(group.command('revoke'))
    .argument('<id>')
    .description('revoke an operator key at once')
    .addHelpText('after', example('purser operator-key revoke key_01k9…'))
    .action(async (id: string, _, command: Command) => {
      await confirm(command, `Revoke the operator key ${id} for good? Who uses it is refused at once.`);
      return askAndPrint(command, 'operator-key.revoke', { id }, showRecord);
    });
}
