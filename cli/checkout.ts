import type { Command } from 'commander';
import { askAndPrintList, example, footOf, type ListOptions, pageOptions, showCommand, showTable } from './context.ts';

const listCheckouts = (options: ListOptions<'checkout.list'>, command: Command) =>
  askAndPrintList(
    command,
    'checkout.list',
    'checkouts',
    options,
    ({ checkouts, total }, view) =>
      showTable(
        checkouts,
        ['id', 'account_id?', 'amount_cents', 'status', 'taken_cents', 'created_at', 'session_id?'],
        view,
      ) + footOf(checkouts, total, ', --all shows all'),
  );

/** Registers `checkout`: top-ups through the payment provider. */
export function checkoutCommands(program: Command): void {
  const group = program.command('checkout').description('top-ups through the payment provider');
  pageOptions(group.command('list'))
    .description('list checkouts, newest first')
    .option('--all', 'all of them')
    .option('--trouble', 'only those that need the operator')
    .option('--account <account>', 'of this account: its id or name')
    .option('--status <status>', 'as paid, open or mismatch')
    .addHelpText('after', example('purser checkout list --trouble'))
    .action(listCheckouts);
  showCommand(group, 'checkout.show', 'show one checkout', 'chk_01k9…');
}
