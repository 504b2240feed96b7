import type { Command } from 'commander';
import { createLog } from '../src/log.ts';
import { example, type Globals } from './context.ts';
import { print } from './report.ts';
import { stopAtOnce, untilSignal } from './serve.ts';

export function demoCommand(program: Command): void {
  program
    .command('demo')
    .description('walk through the life of a wallet with embedded services, step by step; then keep serving')
    .option('--once', 'exit after the last step; the exit code tells whether every figure was right')
    .addHelpText('after', example('purser demo --once'))
    .action(async (options: { once?: boolean }, command: Command) => {
      const { json } = command.optsWithGlobals<Globals>();
      const { runDemo } = await import('../src/demo/demo.ts');
      const stop = new AbortController();
      void untilSignal().then(() => stop.abort());
      const wrong = await runDemo({
        log: createLog('warn'),
        print: json ? () => {} : print,
        signal: stop.signal,
        keepServing: !options.once,
        fatal: stopAtOnce,
      });
      if (json) print(JSON.stringify({ ok: wrong === 0, wrong: wrong ?? null }));
      process.exitCode = wrong === 0 ? 0 : 1;
    });
}
