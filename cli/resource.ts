import type { Command } from 'commander';
import type { CommandInput, CommandOutput } from '../src/operator/commands.ts';
import { confirm, irreversible } from './confirm.ts';
import { askAndPrint, example, footOf, pageOptions, showCommand, showRecord, showTable } from './context.ts';
import { exact } from './time.ts';

/** Registers `resource`: leases, and their comparison with the backends. */
export function resourceCommands(program: Command): void {
  const group = program.command('resource').description('leases: machines that wallets have paid for');
  pageOptions(group.command('list'))
    .description('list live resources, newest first')
    .option('--all', 'ended ones too')
    .option('--wallet <wallet>', 'of this wallet: its id or name')
    .option('--account <account>', 'of this account: its id or name')
    .option('--status <status>', 'provisioning, running, paused, stopping, stopped, failed or unknown')
    .addHelpText('after', example('purser resource list --all'))
    .action((options: CommandInput<'resource.list'>, command: Command) =>
      askAndPrint(
        command,
        'resource.list',
        options,
        ({ resources, total }, view) =>
          showTable(
            resources.map((it) => (it.unreachable_since === null ? it : { ...it, status: 'unreachable' })),
            [
              'id',
              'wallet_id',
              'provider?',
              'backend',
              'status',
              'billing_state?',
              'charged_usd',
              'expires_at',
              'end_reason',
              'last_error?',
            ],
            view,
          ) + footOf(resources, total),
      ),
    );
  showCommand(group, 'resource.show', 'show one resource', 'res_01k9…');
  irreversible(group.command('stop'))
    .argument('<id>')
    .description('end a lease early; nothing is refunded')
    .addHelpText('after', example('purser resource stop res_01k9…'))
    .action(async (id: string, _, command: Command) => {
      await confirm(command, `End the lease ${id} now? Its machine is destroyed, and nothing is refunded.`);
      return askAndPrint(command, 'resource.stop', { id }, showRecord);
    });
  irreversible(group.command('reconcile'))
    .description('compare the machines at the backends with the database')
    .option('--apply', 'destroy machines without a row; after a restore, a loss or a move, also end report-only')
    .addHelpText('after', example('purser resource reconcile', 'purser resource reconcile --apply'))
    .action(async ({ apply }: { apply?: boolean }, command: Command) => {
      if (apply) await confirm(command, 'Destroy every machine that no row knows, and end report-only?');
      return askAndPrint(command, 'resource.reconcile', apply ? { apply } : {}, showReconciliation);
    });
  irreversible(group.command('abandon'))
    .argument('<id>')
    .description('give up a lease whose backend is gone for good')
    .requiredOption('--reason <text>', 'stored with the resource')
    .addHelpText('after', example('purser resource abandon res_01k9… --reason "the host burned down"'))
    .action(async (id: string, { reason }: { reason: string }, command: Command) => {
      await confirm(command, `Give up the lease ${id}? Purser will never end its machine.`);
      return askAndPrint(command, 'resource.abandon', { id, reason }, showRecord);
    });
}

function showReconciliation({
  applied,
  report_only: state,
  leases,
  orphans,
  faults,
}: CommandOutput<'resource.reconcile'>): string {
  const parts = [
    `Machines that no row knows:\n${showTable(orphans, ['provider?', 'backend', 'ref', 'tag', 'created_at', 'destroyed'])}`,
  ];
  if (applied && orphans.some((it) => !it.destroyed))
    parts.push(
      'Not destroyed: what is younger than 5 minutes, what is beyond ten at a time, and what is not ours to end. The sweep looks again every minute.',
    );
  if (state) {
    const since = `Since ${exact(state.since)} this installation only reports: ${state.reason}.`;
    const next = applied ? 'That is over.' : 'Nothing below is ended until you run: purser resource reconcile --apply';
    const table = showTable(leases, [
      'id',
      'wallet_id?',
      'provider?',
      'backend',
      'engine?',
      'status',
      'expires_at',
      'machine',
      'deadline_at',
      'would_end',
    ]);
    parts.unshift(`${since} ${next}`, `Leases of before:\n${table}`);
  }
  if (faults.length)
    parts.push(`Backends that could not be asked:\n${showTable(faults, ['provider', 'backend', 'error'])}`);
  return parts.join('\n\n');
}
