import { resolve } from 'node:path';
import type { Command } from 'commander';
import { files, prepareDirectory } from '../src/files/data-directory.ts';
import { example, type Globals, showRecord } from './context.ts';
import { print } from './report.ts';
import { VERSION } from './version.ts';

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
      prepareDirectory(directory, false);
      const [{ backUp }, { systemTime }] = await Promise.all([
        import('../src/recovery/backup.ts'),
        import('../src/clock.ts'),
      ]);
      const now = Math.floor(systemTime.wall() / 1000);
      const backup = await backUp(files(directory), resolve(file), VERSION, now);
      print(globals.json ? JSON.stringify(backup) : showRecord(backup));
    });
}
