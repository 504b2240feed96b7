import type { Command } from 'commander';
import { askAndPrint, example, showRecord, showTable } from './context.ts';

export function operationCommands(program: Command): void {
  const group = program.command('operation').description('attempts at paid requests: their holds and outcomes');
  group
    .command('list')
    .description('list the latest 100 operations')
    .option('--uncertain', 'only those with an unknown outcome, oldest first')
    .addHelpText('after', example('purser operation list --uncertain'))
    .action((options: { uncertain?: boolean }, command: Command) =>
      askAndPrint(command, 'operation.list', options, ({ operations }) =>
        showTable(
          operations,
          'id',
          'wallet_id',
          'kind',
          'subject',
          'state',
          'outcome',
          'hold_usd',
          'charge_usd',
          'created_at',
          'reason',
        ),
      ),
    );
  group
    .command('show')
    .argument('<id>')
    .description('show one operation with its price and usage')
    .addHelpText('after', example('purser operation show op_01k9…'))
    .action((id: string, _, command: Command) => askAndPrint(command, 'operation.show', { id }, showRecord));
  group
    .command('resolve')
    .argument('<id>')
    .description('resolve an uncertain operation by hand')
    .option('--charge', 'charge its whole hold')
    .option('--release', 'release its whole hold')
    .requiredOption('--reason <text>', 'stored with the operation')
    .addHelpText(
      'after',
      example('purser operation resolve op_01k9… --release --reason "the model server never got it"'),
    )
    .action((id: string, options: { charge?: boolean; release?: boolean; reason: string }, command: Command) => {
      if (Boolean(options.charge) === Boolean(options.release))
        command.error('error: give either --charge or --release');
      const decision = options.charge ? 'charge' : 'release';
      return askAndPrint(command, 'operation.resolve', { id, decision, reason: options.reason }, showRecord);
    });
}
