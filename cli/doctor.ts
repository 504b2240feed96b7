import type { Command } from 'commander';
import { example, type Globals, readContext } from './context.ts';
import { print, show } from './report.ts';
import { whileWorking } from './spinner.ts';
import { type Tone, toned } from './terminal.ts';

/** Registers `doctor`. Exits with 1 if a check fails. */
export function doctorCommand(program: Command): void {
  program
    .command('doctor')
    .description('check this installation; every finding names its remedy')
    .addHelpText('after', example('purser doctor'))
    .action(async (_, command: Command) => {
      const [{ examine }, { WARNING }] = await Promise.all([
        import('../src/doctor/doctor.ts'),
        import('../src/compute/finding.ts'),
      ]);
      const checks = await readContext(command, { withoutKey: true }).then(
        ({ config }) => whileWorking('examining', () => examine(config)),
        (fault: Error) => [{ name: 'configuration', ok: false, detail: fault.message }],
      );
      const ok = checks.every((check) => check.ok);
      if (command.optsWithGlobals<Globals>().json) print(JSON.stringify({ ok, checks }));
      else
        for (const { name, ok, detail } of checks) {
          const isWarning = ok && detail.startsWith(WARNING);
          const text = isWarning ? detail.slice(WARNING.length) : detail;
          show(`${mark(ok, isWarning)} ${name}: ${text}`);
        }
      process.exitCode = ok ? 0 : 1;
    });
}

/** Returns the word before a finding, in a column of four characters. */
export function mark(ok: boolean, isWarning = false): string {
  const [tone, word]: [Tone, string] = !ok ? ['bad', 'BAD'] : isWarning ? ['warn', 'warn'] : ['good', 'ok'];
  return toned(tone, word) + ' '.repeat(4 - word.length);
}
