import type { Command } from 'commander';
import {
  askAndPrint,
  askAndPrintList,
  example,
  footOf,
  type ListOptions,
  pageOptions,
  showRecord,
  showTable,
} from './context.ts';

const listEvents = (options: ListOptions<'events.list'>, command: Command) =>
  askAndPrintList(
    command,
    'events.list',
    'events',
    options,
    ({ events, total }, view) =>
      showTable(
        events.map(({ data, deliveries, ...it }) => ({
          ...it,
          about: data.wallet_name ?? data.account_name ?? data.upstream ?? data.scope ?? '',
          deliveries: deliveries
            .map((to) => `${to.receiver}: ${to.state}${to.error === null ? '' : ` (${to.error})`}`)
            .join(', '),
        })),
        ['id', 'type', 'created_at', 'about', 'deliveries'],
        view,
      ) + footOf(events, total, ', --all shows all'),
  );

/** Registers `events`: the events for receivers, and their repetition. */
export function eventsCommands(program: Command): void {
  const group = program.command('events').description('what the configured receivers are told: warnings and ends');
  pageOptions(group.command('list'))
    .description('list events, newest first, and what became of each')
    .option('--all', 'all of them')
    .option('--type <type>', 'only of this type, as wallet.threshold')
    .option('--wallet <wallet>', 'only about this wallet, its leases and operations: its id or name')
    .addHelpText('after', example('purser events list --type wallet.threshold --since 7d'))
    .action(listEvents);
  group
    .command('test')
    .description('send a test to every configured receiver; `events list --type test` says what became of it')
    .addHelpText('after', example('purser events test'))
    .action((_, command: Command) => askAndPrint(command, 'events.test', {}, showRecord));
  group
    .command('resend')
    .argument('<id>')
    .description('deliver an event again, to every receiver that is configured for its type')
    .addHelpText('after', example('purser events resend msg_01k9…'))
    .action((id: string, _, command: Command) => askAndPrint(command, 'events.resend', { id }, showRecord));
}
