import type { Command } from 'commander';
import { ConfigurationFault } from '../src/config/fault.ts';
import { example, type Globals, readContext } from './context.ts';
import { print, say } from './report.ts';

/** Registers `config`: checks and prints the configuration, without secrets. */
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
        const { certificateOf } = await import('../src/config/certificate.ts');
        certificateOf(config);
        if (json) print(JSON.stringify({ ok: true, file: config.file ?? null, faults: [] }));
        else
          print(`The configuration is good${config.file ? ` (${config.file})` : ': every setting has its default'}.`);
        const { adviceOn } = await import('../src/compute/settings.ts');
        const { adviceOnDisk } = await import('../src/compute/engines/container/disk-advice.ts');
        const { adviceOnServices } = await import('../src/config/advice-services.ts');
        const { adviceOnStart } = await import('../src/config/advice-start.ts');
        const { adviceOnRouter } = await import('../src/config/advice-router.ts');
        const notes = [
          ...adviceOnStart(config),
          ...adviceOnRouter(config),
          ...adviceOn(config.compute),
          ...(await adviceOnDisk(config.compute)),
          ...adviceOnServices(config),
        ];
        for (const note of notes) (json ? say : print)(`note: ${note}`);
      } catch (error) {
        if (!(error instanceof ConfigurationFault) || !json) throw error;
        const { settingsFile } = await import('../src/config/config.ts');
        print(
          JSON.stringify({
            ok: false,
            file: settingsFile(command.optsWithGlobals<Globals>()) ?? null,
            faults: error.faults,
          }),
        );
        process.exitCode = 1;
      }
    });
  group
    .command('print')
    .description('print the settings in force as a purser.yaml, with [set] for each secret')
    .addHelpText('after', example('purser config print'))
    .action(async (_, command: Command) => {
      const { config, globals } = await readContext(command);
      const { printable, printedText } = await import('../src/config/config.ts');
      print(globals.json ? JSON.stringify(printable(config)) : printedText(config).trimEnd());
    });
}
