import type { Command } from 'commander';
import { ConfigurationFault } from '../src/config/fault.ts';
import { example, type Globals, readContext } from './context.ts';
import { report } from './findings.ts';
import { print } from './report.ts';

/** Registers `config`: checks and prints the configuration, without secrets. */
export function configCommands(program: Command): void {
  const group = program.command('config').description('the configuration: flags, environment and purser.yaml');
  group
    .command('check')
    .description('name every fault of the configuration, with file and line, and what a backend does not enforce')
    .addHelpText('after', example('purser --config /etc/purser/purser.yaml config check'))
    .action(async (_, command: Command) => {
      const { settingsFile } = await import('../src/config/config.ts');
      const globals = command.optsWithGlobals<Globals>();
      try {
        const { config } = await readContext(command);
        const { certificateOf } = await import('../src/config/certificate.ts');
        certificateOf(config);
        const { examineSettings } = await import('../src/doctor/settings.ts');
        report(await examineSettings(config), globals, { file: config.file ?? null, faults: [] });
      } catch (error) {
        if (!(error instanceof ConfigurationFault) || !globals.json) throw error;
        print(JSON.stringify({ ok: false, file: settingsFile(globals) ?? null, faults: error.faults }));
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
