import type { Command } from 'commander';
import { example, type Globals, readContext } from './context.ts';
import { report } from './findings.ts';
import { whileWorking } from './spinner.ts';

/** Registers `doctor`. Exits with 1 if a check fails. */
export function doctorCommand(program: Command): void {
  program
    .command('doctor')
    .description('check this installation; every finding names its remedy')
    .addHelpText('after', example('purser doctor'))
    .action(async (_, command: Command) => {
      const { examine } = await import('../src/doctor/doctor.ts');
      const findings = await readContext(command, { withoutKey: true }).then(
        ({ config }) => whileWorking('examining', () => examine(config)),
        (fault: Error) => [{ name: 'configuration', ok: false, detail: fault.message }],
      );
      report(findings, command.optsWithGlobals<Globals>());
    });
}
