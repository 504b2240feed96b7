import { resolve } from 'node:path';
import type { Command } from 'commander';
import { VERSION } from '../src/files/version.ts';
import type { Manifest } from '../src/recovery/manifest.ts';
import { example, type Globals, output, showRecord } from './context.ts';
import { whileWorking } from './spinner.ts';

/** Registers `backup`. This process copies from its own snapshot, so a running server is not disturbed. */
export function backupCommand(program: Command): void {
  program
    .command('backup')
    .argument('<file>')
    .description('write a verified copy of the books to a new file, also while the server runs')
    .addHelpText('after', example('purser backup /mnt/backups/purser-$(date +%F).db'))
    .action(async (file: string, _, command: Command) => {
      const globals = command.optsWithGlobals<Globals>();
      const { dataDirectoryOf } = await import('../src/config/config.ts');
      const directory = dataDirectoryOf(globals);
      const [{ backUp }, { systemTime }] = await Promise.all([
        import('../src/recovery/backup.ts'),
        import('../src/base/clock.ts'),
      ]);
      const now = Math.floor(systemTime.wall() / 1000);
      const backup = await whileWorking('backing up', () => backUp(directory, resolve(file), VERSION, now));
      output(command, backup, ({ file, bytes, ...manifest }) =>
        showRecord({ file, size: `${Math.ceil(bytes / 1024)} KiB, verified`, ...summaryOf(manifest) }),
      );
    });
}

/** Returns the members of a manifest that are printed for people. The counts of all tables are in --json. */
export function summaryOf({ version, created_at, installation_id, master_key_id, head, counts }: Manifest) {
  const { wallet: wallets = 0, account: accounts = 0 } = counts;
  return { made_at: created_at, version, installation_id, master_key_id, entries: head.seq, accounts, wallets };
}
