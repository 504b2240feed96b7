import type { Command } from 'commander';
import type { CommandOutput } from '../src/operator/commands.ts';
import { askAndPrint, example, showRecord, showTable } from './context.ts';
import { when } from './report.ts';

export function resourceCommands(program: Command): void {
  const group = program.command('resource').description('leases: machines that wallets have paid for');
  group
    .command('list')
    .description('list live resources')
    .option('--all', 'the latest 100, ended ones included')
    .addHelpText('after', example('purser resource list --all'))
    .action((options: { all?: boolean }, command: Command) =>
      askAndPrint(command, 'resource.list', options, ({ resources }) =>
        showTable(
          resources,
          'id',
          'wallet_id',
          'provider',
          'backend',
          'status',
          'billing_state',
          'charged_usd',
          'expires_at',
          'end_reason',
          'last_error',
        ),
      ),
    );
  group
    .command('stop')
    .argument('<id>')
    .description('end a lease early; nothing is refunded')
    .addHelpText('after', example('purser resource stop res_01k9…'))
    .action((id: string, _, command: Command) => askAndPrint(command, 'resource.stop', { id }, showRecord));
  group
    .command('reconcile')
    .description('compare the machines at the backends with the database')
    .option('--apply', 'destroy machines without a row; after a restore, a loss or a move, also end report-only')
    .addHelpText('after', example('purser resource reconcile', 'purser resource reconcile --apply'))
    .action((options: { apply?: boolean }, command: Command) =>
      askAndPrint(command, 'resource.reconcile', options, showReconciliation),
    );
  group
    .command('abandon')
    .argument('<id>')
    .description('give up a lease whose backend is gone for good')
    .requiredOption('--reason <text>', 'stored with the resource')
    .addHelpText('after', example('purser resource abandon res_01k9… --reason "the host burned down"'))
    .action((id: string, options: { reason: string }, command: Command) =>
      askAndPrint(command, 'resource.abandon', { id, reason: options.reason }, showRecord),
    );
}

function showReconciliation({
  applied,
  report_only: state,
  leases,
  orphans,
  faults,
}: CommandOutput<'resource.reconcile'>): string {
  const parts = [
    `Machines that no row knows:\n${showTable(orphans, 'provider', 'backend', 'ref', 'tag', 'created_at', 'destroyed')}`,
  ];
  if (state) {
    const since = `Since ${when(state.since)} this installation only reports: ${state.reason}.`;
    const next = applied ? 'That is over.' : 'Nothing below is ended until you run: purser resource reconcile --apply';
    const table = showTable(
      leases,
      'id',
      'wallet_id',
      'provider',
      'backend',
      'status',
      'expires_at',
      'machine',
      'deadline_at',
      'would_end',
    );
    parts.unshift(`${since} ${next}`, `Leases of before:\n${table}`);
  }
  if (faults.length)
    parts.push(`Backends that could not be asked:\n${showTable(faults, 'provider', 'backend', 'error')}`);
  return parts.join('\n\n');
}
