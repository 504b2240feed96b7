import { resolve } from 'node:path';
import type { Command } from 'commander';
import type { CommandOutput } from '../src/operator/commands.ts';
import type { Restored } from '../src/recovery/restore.ts';
import { example, readContext, showRecord, showTable } from './context.ts';
import { print, say } from './report.ts';

export function restoreCommand(program: Command): void {
  program
    .command('restore')
    .argument('<file>')
    .description('replace the database by a backup and keep the old one under another name; stop the server first')
    .option('--force', 'accept a file that `purser backup` did not make, or one of another installation')
    .addHelpText('after', example('purser restore /mnt/backups/purser-2026-11-21.db'))
    .action(async (file: string, options: { force?: boolean }, command: Command) => {
      const context = await readContext(command);
      const { restore } = await import('../src/recovery/restore.ts');
      const { config, secrets, log } = context;
      const restored = await restore(config, secrets, { file: resolve(file), force: options.force ?? false, log });
      const reconciled = await compareBackends(command);
      if (context.globals.json) print(JSON.stringify({ ...restored, ...reconciled }));
      else print([showRecord({ ...restored }), ...described(reconciled)].join('\n'));
      for (const sentence of whatNow(restored, reconciled)) say(sentence);
    });
}

type Reconciled = Pick<CommandOutput<'resource.reconcile'>, 'leases' | 'orphans' | 'faults'>;

/** Lists the machines that the restored books do not know, and the state of those that they know. Changes nothing. */
async function compareBackends(command: Command): Promise<Reconciled> {
  const { ask } = await import('./operator-client.ts');
  try {
    const { leases, orphans, faults } = await ask(command, 'resource.reconcile', { apply: false });
    return { leases, orphans, faults };
  } catch (error) {
    const { message } = error as Error; // The restore itself has succeeded.
    return { leases: [], orphans: [], faults: [{ provider: '-', backend: '-', error: message }] };
  }
}

function described({ leases, orphans, faults }: Reconciled): string[] {
  return [
    ...(leases.length ? ['', showTable(leases, 'id', 'provider', 'backend', 'ref', 'machine', 'would_end')] : []),
    ...(orphans.length ? ['', showTable(orphans, 'provider', 'backend', 'ref', 'tag', 'created_at')] : []),
    ...(faults.length ? ['', showTable(faults, 'provider', 'backend', 'error')] : []),
  ];
}

function whatNow({ lost_to_seq: lost, head, kept }: Restored, { leases, orphans }: Reconciled): string[] {
  return [
    kept ? `The database that was here is ${kept}.` : 'There was no database here.',
    ...(lost === null ? [] : [`Entries ${head.seq + 1} to ${lost} were known here and are not in these books.`]),
    `${leases.length} leases of these books are quarantined, and ${orphans.length} machines are unknown to them. None is touched until \`purser resource reconcile --apply\`.`,
  ];
}
