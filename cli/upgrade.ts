import { resolve } from 'node:path';
import type { Command } from 'commander';
import { example, output } from './context.ts';
import { whileWorking } from './spinner.ts';

/** Registers `upgrade`: replaces the executable of the service by a newer one, and goes back where that fails. */
export function upgradeCommand(program: Command): void {
  program
    .command('upgrade')
    .argument('<file>')
    .description(
      "as root: replace the service's executable by this one of a release, after a try on a copy of the books; goes back by itself if it fails",
    )
    .option('--insecure', 'without the signature: whoever gave you the file and its SHA256SUMS is trusted')
    .addHelpText('after', example('purser upgrade /root/release/purser-0.3.0-linux-x64'))
    .action(async (file: string, { insecure = false }: { insecure?: boolean }, command: Command) => {
      const { upgrade } = await import('../src/service/upgrade.ts');
      const upgraded = await whileWorking('upgrading', () => upgrade({ file: resolve(file), insecure }));
      output(command, upgraded, ({ done }) => done.join('\n'));
    });
}
