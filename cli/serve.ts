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
      const signalled = untilSignal(); // A signal during the start stops the server as soon as it has opened.
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

/** Resolves at the next SIGTERM or SIGINT; a second one kills the process. */
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
 * Ends the process after a failed COMMIT or fsync, when the state on disk is unknown. No response may be sent and no
 * `finally` that writes may run. The next start recovers, and idempotency keys make retries safe (design, section 6).
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
