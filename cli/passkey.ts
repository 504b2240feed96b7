import type { Command } from 'commander';
import { confirm, irreversible } from './confirm.ts';
import { askAndPrint, example, listOptions, showRecord, showTable } from './context.ts';

const COLUMNS = ['id', 'name', 'origin', 'created_at?', 'last_used_at', 'removed_at'];

/** Registers `passkey`: passkeys with which operators sign in to the page. They are made on the page. */
export function passkeyCommands(program: Command): void {
  const group = program.command('passkey').description('passkeys of operators, made on the page under Settings');
  listOptions(group.command('list'))
    .description('list passkeys')
    .addHelpText('after', example('purser passkey list --json'))
    .action((_, command: Command) =>
      askAndPrint(command, 'passkey.list', {}, ({ passkeys }, view) => showTable(passkeys, COLUMNS, view)),
    );
  irreversible(group.command('remove'))
    .argument('<id>')
    .description('remove a passkey, and end the sessions that it opened')
    .addHelpText('after', example('purser passkey remove pass_01k9…'))
    .action(async (id: string, _, command: Command) => {
      await confirm(command, `Remove the passkey ${id} for good? It signs nobody in any more.`);
      return askAndPrint(command, 'passkey.remove', { id }, showRecord);
    });
}
