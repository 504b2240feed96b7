import type { Command } from 'commander';
import { example, type Globals, readContext } from './context.ts';
import { print } from './report.ts';

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
      const checks = await readContext(command).then(
        ({ config, secrets }) => examine(config, secrets),
        (fault: Error) => [{ name: 'configuration', ok: false, detail: fault.message }],
      );
      const ok = checks.every((check) => check.ok);
      if (command.optsWithGlobals<Globals>().json) print(JSON.stringify({ ok, checks }));
      else
        for (const { name, ok, detail } of checks) {
          const isWarning = ok && detail.startsWith(WARNING);
          const text = isWarning ? detail.slice(WARNING.length) : detail;
          print(`${!ok ? 'BAD ' : isWarning ? 'warn' : 'ok  '} ${name}: ${text}`);
        }
      process.exitCode = ok ? 0 : 1;
    });
}
