import { existsSync } from 'node:fs';
import type { Command } from 'commander';
import { files } from '../src/data-directory.ts';
import { createLog } from '../src/log.ts';
import { example, readHouse, secretsOf } from './house.ts';
import { say } from './report.ts';

export function serveCommand(program: Command): void {
  program
    .command('serve')
    .description('run the service; creates the data directory and migrates on first start')
    .option('--accept-loss', 'begin a new epoch where acknowledged entries are lost or the chain is broken')
    .addHelpText('after', example('purser --data /var/lib/purser serve'))
    .action(async (options: { acceptLoss?: boolean }, command: Command) => {
      const { config, secrets } = await readHouse(command);
      const { serve } = await import('../src/serve.ts');
      const log = createLog(config.logLevel, secretsOf(secrets));
      if (!existsSync(files(config.dataDirectory).database))
        say(`Creating a new installation in ${config.dataDirectory}.`);
      const served = await serve(config, secrets, {
        log,
        who: 'purser serve',
        create: true,
        acceptLoss: options.acceptLoss ?? false,
        fatal: stopAtOnce,
      });
      await untilSignal(() => served[Symbol.asyncDispose]());
      log.info({ event: 'stopped' }, 'stopped');
    });
}

/** Resolves when the first SIGTERM or SIGINT has been dealt with by `close`; a second one ends the process now. */
export async function untilSignal(close: () => Promise<void>): Promise<void> {
  await new Promise<void>((resolve) => {
    for (const signal of ['SIGTERM', 'SIGINT'] as const) process.once(signal, () => resolve());
  });
  for (const signal of ['SIGTERM', 'SIGINT'] as const) process.once(signal, () => process.kill(process.pid, 'SIGKILL'));
  await close();
  process.removeAllListeners('SIGTERM').removeAllListeners('SIGINT');
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
