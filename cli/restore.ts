import { resolve } from 'node:path';
import type { Command } from 'commander';
import type { CommandOutput } from '../src/operator/commands.ts';
import type { Restored } from '../src/recovery/restore.ts';
import { summaryOf } from './backup.ts';
import { confirm, irreversible } from './confirm.ts';
import { example, output, readContext, showRecord, showTable } from './context.ts';
import { say } from './report.ts';
import { whileWorking } from './spinner.ts';

/** Registers `restore`: replaces the database by a backup. */
export function restoreCommand(program: Command): void {
  irreversible(program.command('restore'))
    .argument('<file>')
    .description('replace the database by a backup and keep the old one under another name; stop the server first')
    .option('--force', 'accept a file that `purser backup` did not make, or one of another installation')
    .option('--without-key', 'the master key is lost: run `purser master-key replace --lost` afterwards')
    .addHelpText('after', example('purser restore /mnt/backups/purser-2026-11-21.db'))
    .action(async (file: string, options: { force?: boolean; withoutKey?: boolean }, command: Command) => {
      const context = await readContext(command, options);
      await confirm(command, `Replace the database of ${context.config.dataDirectory} by ${resolve(file)}?`);
      const { restore } = await import('../src/recovery/restore.ts');
      const { config } = context;
      const { force = false, withoutKey = false } = options;
      const order = { file: resolve(file), force, withoutKey };
      const restored = await whileWorking('restoring', () => restore(config, order));
      const reconciled = await compareBackends(command, withoutKey);
      output(command, { ...restored, ...reconciled }, () =>
        [showRestored(restored), ...described(reconciled)].join('\n'),
      );
      for (const sentence of whatNow(restored, reconciled)) say(sentence);
    });
}

function showRestored({ file, manifest, installation_id, head }: Restored): string {
  return showRecord({ file, ...(manifest ? summaryOf(manifest) : { installation_id }), epoch: head.epoch });
}

type Reconciled = Pick<CommandOutput<'resource.reconcile'>, 'leases' | 'orphans' | 'faults'>;

/** Shown as the provider where no backend could be asked. */
const NO_PROVIDER = '-';

/** Lists the machines that the restored books do not contain, and the state of those that they contain. Changes nothing. */
async function compareBackends(command: Command, withoutKey: boolean): Promise<Reconciled> {
  const { ask } = await import('./operator-client.ts');
  try {
    const { leases, orphans, faults } = await ask(command, 'resource.reconcile', { apply: false });
    return { leases, orphans, faults };
  } catch (error) {
    // The restore itself has succeeded.
    const message = withoutKey ? 'run `purser master-key replace --lost` first' : (error as Error).message;
    return { leases: [], orphans: [], faults: [{ provider: NO_PROVIDER, backend: '-', error: message }] };
  }
}

function described({ leases, orphans, faults }: Reconciled): string[] {
  return [
    ...(leases.length ? ['', showTable(leases, ['id', 'provider?', 'backend', 'ref', 'machine', 'would_end'])] : []),
    ...(orphans.length ? ['', showTable(orphans, ['provider?', 'backend', 'ref', 'tag', 'created_at'])] : []),
    ...(faults.length ? ['', showTable(faults, ['provider', 'backend', 'error'])] : []),
  ];
}

const counted = (count: number, one: string, many = `${one}s`) =>
  count ? [`${count} ${count === 1 ? one : many}`] : [];

/** Describes what stays stopped; undefined where the replaced books stopped no more than the backup. */
function describeCarried(carried: Restored['carried_over']): string | undefined {
  if (!carried)
    return 'What was revoked, suspended, frozen or closed since the backup is not known here, and works again: see `purser key list`, `operator-key list`, `passkey list`, `account list` and `wallet list`.';
  const parts = [
    ...counted(carried.revoked_keys, 'revoked key or passkey', 'revoked keys and passkeys'),
    ...counted(carried.suspended_accounts, 'suspended account'),
    ...counted(carried.frozen_wallets, 'wallet that was frozen or closed', 'wallets that were frozen or closed'),
    ...counted(carried.ended_orders, 'refill or extension that had ended', 'refills and extensions that had ended'),
    ...counted(carried.narrowed_leases, 'narrowed list of egress', 'narrowed lists of egress'),
    ...(carried.frozen_installation ? ['the freeze of the installation'] : []),
  ];
  return parts.length
    ? `Stopped since the backup, and in these books too: ${parts.join(', ')}. Such wallets are frozen.`
    : undefined;
}

function whatNow(
  { lost_to_seq: lost, head, kept, carried_over }: Restored,
  { leases, orphans, faults }: Reconciled,
): string[] {
  const carried = describeCarried(carried_over);
  const fault = faults.find((it) => it.provider === NO_PROVIDER);
  const compared = fault
    ? `The machines were not compared with these books: ${fault.error.replace(/\.$/, '')}`
    : `${leases.length} leases of these books are quarantined, and ${orphans.length} machines are unknown to them`;
  return [
    kept ? `The database that was here is ${kept}.` : 'There was no database here.',
    ...(lost === null ? [] : [`Entries ${head.seq + 1} to ${lost} were known here and are not in these books.`]),
    ...(carried ? [carried] : []),
    `${compared}. None is touched until \`purser resource reconcile --apply\`.`,
  ];
}
