import type { Command } from 'commander';
import { askAndPrint, example, showRecord, showTable } from './context.ts';

export function checkoutCommands(program: Command): void {
  const group = program.command('checkout').description('top-ups through the payment provider');
  group
    .command('list')
    .description('list the latest 100')
    .option('--trouble', 'only those that need the operator')
    .addHelpText('after', example('purser checkout list --trouble'))
    .action((options: { trouble?: boolean }, command: Command) =>
      askAndPrint(command, 'checkout.list', options, ({ checkouts }) =>
        showTable(checkouts, 'id', 'account_id', 'amount_cents', 'status', 'taken_cents', 'created_at', 'session_id'),
      ),
    );
  group
    .command('show')
    .argument('<id>')
    .description('show one checkout')
    .addHelpText('after', example('purser checkout show chk_01k9…'))
    .action((id: string, _, command: Command) => askAndPrint(command, 'checkout.show', { id }, showRecord));
}
