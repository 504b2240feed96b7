import { existsSync } from 'node:fs';
import type { Command } from 'commander';
import { files } from '../src/files/data-directory.ts';
import { createLog } from '../src/log.ts';
import { example, readContext, secretsOf } from './context.ts';
import { say } from './report.ts';

export function serveCommand(program: Command): void {
  program
    .command('serve')
    .description('run the service; creates the data directory and migrates on first start')
    .option('--accept-loss', 'begin a new epoch where acknowledged entries are lost or the chain is broken')
    .addHelpText('after', example('purser --data /var/lib/purser serve'))
    .action(async (options: { acceptLoss?: boolean }, command: Command) => {
      const { config, secrets } = await readContext(command);
      const { serve } = await import('../src/serve.ts');
      const log = createLog(config.logLevel, secretsOf(secrets));
      if (!existsSync(files(config.dataDirectory).database))
        say(`Creating a new installation in ${config.dataDirectory}.`);
      const signalled = untilSignal(); // From here on: one that comes during the start ends it as soon as it has opened.
      const served = await serve(config, secrets, {
        log,
        who: 'purser serve',
        create: true,
        acceptLoss: options.acceptLoss ?? false,
        fatal: stopAtOnce,
      });
      await signalled;
      await served[Symbol.asyncDispose]();
      log.info({ event: 'stopped' }, 'stopped');
    });
}

const SIGNALS = ['SIGTERM', 'SIGINT'] as const;

/** Resolves at the first SIGTERM or SIGINT from now on; a second one ends the process at once. */
export function untilSignal(): Promise<void> {
  return new Promise((resolve) => {
    const stop = () => {
      for (const signal of SIGNALS) process.off(signal, stop).once(signal, () => process.kill(process.pid, 'SIGKILL'));
      resolve();
    };
    for (const signal of SIGNALS) process.on(signal, stop);
  });
}

/**
 * A COMMIT or fsync failed: nobody knows what is on disk. No answer may leave any more, and no `finally` may run that
 * would write: the process ends here, and recovery and the idempotency keys decide (design, section 6).
 */
export function stopAtOnce(error: unknown): never {
  say(
    JSON.stringify({
      level: 60,
      event: 'commit.failed',
      message: `a commit failed, stopping: ${(error as Error).message}`,
    }),
  );
  process.exit(1);
}
