import type { Command } from 'commander';
import { ConfigurationFault } from '../src/config/fault.ts';
import { example, type Globals, readContext } from './context.ts';
import { print, say } from './report.ts';

export function configCommands(program: Command): void {
  const group = program.command('config').description('the configuration: flags, environment and purser.yaml');
  group
    .command('check')
    .description('name every fault of the configuration, with file and line, and what a backend does not enforce')
    .addHelpText('after', example('purser --config /etc/purser/purser.yaml config check'))
    .action(async (_, command: Command) => {
      const { json } = command.optsWithGlobals<Globals>();
      try {
        const { config } = await readContext(command);
        if (json) print(JSON.stringify({ ok: true, file: config.file ?? null, faults: [] }));
        else say(`The configuration is good${config.file ? ` (${config.file})` : ': every setting has its default'}.`);
        const { adviceOn } = await import('../src/compute/settings.ts');
        const { adviceOnDisk } = await import('../src/compute/backends/container/disk-advice.ts');
        const { adviceOnOutside } = await import('../src/config/advice-services.ts');
        const { adviceOnRouter } = await import('../src/config/advice-router.ts');
        const notes = [
          ...adviceOnRouter(config),
          ...adviceOn(config.compute),
          ...(await adviceOnDisk(config.compute)),
          ...adviceOnOutside(config),
        ];
        for (const note of notes) say(`note: ${note}`);
      } catch (error) {
        if (!(error instanceof ConfigurationFault) || !json) throw error;
        print(JSON.stringify({ ok: false, file: null, faults: error.faults }));
        process.exitCode = 1;
      }
    });
  group
    .command('print')
    .description('print the configuration in force; secrets are left out')
    .addHelpText('after', example('purser config print'))
    .action(async (_, command: Command) => {
      const { config, secrets, globals } = await readContext(command);
      const { printable } = await import('../src/config/config.ts');
      print(JSON.stringify(printable(config, secrets), null, globals.json ? 0 : 2));
    });
}
