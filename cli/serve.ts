import { existsSync } from 'node:fs';
import type { Command } from 'commander';
import { redactedTexts } from '../src/base/secret.ts';
import { type MasterKeySource, readConfig } from '../src/config/config.ts';
import { examineStart } from '../src/doctor/settings.ts';
import { files, prepareDirectory } from '../src/files/data-directory.ts';
import { readReplicas } from '../src/files/drbd.ts';
import { readMount } from '../src/files/mount.ts';
import type { Served } from '../src/main/serve.ts';
import { example, type Globals, readContext, repeated } from './context.ts';
import { plainLine } from './findings.ts';
import { say } from './report.ts';

type ServeOptions = { acceptLoss?: boolean; acceptClock?: boolean; unsafeStorage?: boolean };

/** Registers `serve`: runs the server until SIGTERM or SIGINT. */
export function serveCommand(program: Command): void {
  program
    .command('serve')
    .description('run the service; creates the data directory and migrates on first start')
    .option('--accept-loss', 'begin a new epoch where acknowledged entries are lost or the chain is broken')
    .option(
      '--accept-clock',
      "believe this machine's clock, where it does not agree with the books and no time service vouches for it",
    )
    .option('--unsafe-storage', 'start on a network file system too, where two servers could write the same books')
    .addHelpText('after', example('purser --data /var/lib/purser serve'))
    .action(async (options: ServeOptions, command: Command) => {
      // Kept until the process ends: SIGHUP never ends it (cli/hang-up.ts).
      let reload: (() => Promise<unknown>) | undefined;
      let isWanted = false;
      process.on('SIGHUP', () => {
        isWanted = true;
        reload?.().catch(() => {}); // The log has the reason of a refusal.
      });
      const { config } = await readContext(command);
      const [{ createLog, logConsole }, { serve }] = await Promise.all([
        import('../src/base/log.ts'),
        import('../src/main/serve.ts'),
      ]);
      const hidden = redactedTexts(config);
      const format = config.log_format ?? (process.stderr.isTTY ? 'text' : 'json');
      const log = createLog(config.log_level, hidden, undefined, format);
      logConsole(log);
      prepareDirectory(config.dataDirectory, true);
      const isNew = !existsSync(files(config.dataDirectory).database);
      if (isNew) {
        say(`Creating a new installation in ${config.dataDirectory}.`);
        if (!process.stderr.isTTY && config.masterKey.from === 'data directory')
          // On a terminal it is printed below.
          say(`Copy ${config.masterKey.path} to another place once it is there: no backup contains it.`);
      }
      const signalled = untilSignal(); // A signal during the start stops the server as soon as it has opened.
      const served = await serve(config, {
        log,
        reread() {
          const next = readConfig({ ...command.optsWithGlobals<Globals>(), withoutKey: true });
          hidden.push(...redactedTexts(next).filter((it) => !hidden.includes(it)));
          return next;
        },
        who: 'purser serve',
        create: true,
        acceptLoss: options.acceptLoss ?? false,
        acceptClock: options.acceptClock ?? false,
        storage: {
          readMount,
          readReplicas: (mount) => readReplicas(mount),
          isAnyAccepted: options.unsafeStorage ?? false,
        },
        fatal: stopAtOnce,
        ownsProcess: true,
      });
      reload = served.reload;
      if (isWanted) reload?.().catch(() => {}); // The file may have changed after the start had read it.
      await sayOnStart(served, isNew, config.masterKey, command.optsWithGlobals<Globals>());
      await signalled;
      await served[Symbol.asyncDispose]();
      log.info({ event: 'stopped' }, 'stopped');
    });
}

/** Reports what is missing and what to do next: on a terminal in words, otherwise in the log, as a warning. */
async function sayOnStart(served: Served, isNew: boolean, { path }: MasterKeySource, globals: Globals) {
  const notes = examineStart({ ...served.config, listen: served.address });
  if (!process.stderr.isTTY) {
    for (const it of notes) served.log.warn({ event: 'settings.advice' }, plainLine(it));
    return;
  }
  const { welcome } = await import('./welcome.ts');
  say(welcome(served, { globals: repeated(globals), isNew, masterKeyFile: path, notes }));
}

/** Resolves at the next of these signals; a second one kills the process. */
export function untilSignal(signals: readonly NodeJS.Signals[] = ['SIGTERM', 'SIGINT']): Promise<void> {
  return new Promise((resolve) => {
    const stop = () => {
      for (const signal of signals) process.off(signal, stop).once(signal, () => process.kill(process.pid, 'SIGKILL'));
      resolve();
    };
    for (const signal of signals) process.on(signal, stop);
  });
}

/**
 * Ends the process after a commit that failed or was not confirmed in time, when the state on disk is unknown. No `finally` that
 * writes may run. The next start recovers, and idempotency keys make retries safe (design, section 6).
 */
export function stopAtOnce(error: unknown): never {
  say(
    JSON.stringify({
      level: 60,
      event: 'commit.failed',
      message: `a commit failed, stopping: ${(error as Error).message}`,
    }),
  );
  process.exit(6);
}
