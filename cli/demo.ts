import type { Command } from 'commander';
import { example, type Globals } from './context.ts';
import { print } from './report.ts';
import { stopAtOnce, untilSignal } from './serve.ts';

/** Registers `demo`: a scenario against an installation in a temporary directory. */
export function demoCommand(program: Command): void {
  program
    .command('demo')
    .description('walk through the life of a wallet with embedded services, step by step; then keep serving')
    .option('--once', 'exit after the last step; the exit code tells whether every figure was right')
    .addHelpText('after', example('purser demo --once'))
    .action(async (options: { once?: boolean }, command: Command) => {
      const { json } = command.optsWithGlobals<Globals>();
      const [{ createLog }, { runDemo }] = await Promise.all([
        import('../src/base/log.ts'),
        import('../src/demo/demo.ts'),
      ]);
      const stop = new AbortController();
      // SIGHUP: the terminal was closed.
      void untilSignal(['SIGTERM', 'SIGINT', 'SIGHUP']).then(() => stop.abort());
      const wrong = await runDemo({
        log: createLog('warn', [], undefined, process.stderr.isTTY ? 'text' : 'json'),
        print: json ? () => {} : print,
        signal: stop.signal,
        keepServing: !options.once,
        fatal: stopAtOnce,
      });
      if (json) print(JSON.stringify({ ok: wrong === 0, wrong: wrong ?? null }));
      process.exitCode = wrong === 0 ? 0 : 1;
    });
}
