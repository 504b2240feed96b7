import { setTimeout as sleep } from 'node:timers/promises';
import type { Command } from 'commander';
import { Refusal } from '../src/base/refusal.ts';
import { dataDirectoryOf } from '../src/config/config.ts';
import { files, LockedError, prepareDirectory } from '../src/files/data-directory.ts';
import { askServer } from '../src/operator/ask.ts';
import type { CommandInput, CommandName, CommandOutput } from '../src/operator/commands.ts';
import { type Globals, readContext } from './context.ts';
import { whileWaiting } from './spinner.ts';

/** Time limit for a starting server, from taking its lock to listening on its socket. */
const STARTING_MILLISECONDS = 10_000;
const TRY_MILLISECONDS = 100;

const COMMIT_FAILED = 'A commit failed, so the command may or may not have taken effect. Check before you repeat it.';

/**
 * Runs one operator command: over the socket while `serve` runs, otherwise in this process, which takes the lock, opens the App,
 * runs the command and closes the App. So there is always a single writer (design, section 4). The configuration is read only in
 * the second case: a running server has its own, and its secrets need not be in this terminal's environment. Throws the command's
 * refusals, ConfigurationFault, `operation_uncertain` when the server hangs, and LockedError when another process holds the lock
 * for 10 s without listening.
 */
export async function ask<N extends CommandName>(
  command: Command,
  name: N,
  input: CommandInput<N>,
): Promise<CommandOutput<N>> {
  const directory = dataDirectoryOf(command.optsWithGlobals<Globals>());
  const at = files(directory);
  prepareDirectory(directory, false);
  const deadline = performance.now() + STARTING_MILLISECONDS;
  for (;;) {
    const answered = await whileWaiting('waiting for the server', askServer(at.socket, name, input));
    if (answered) return answered.value as CommandOutput<N>;
    try {
      return await runHere(command, name, input);
    } catch (error) {
      if (!(error instanceof LockedError) || performance.now() > deadline) throw error;
    }
    await sleep(TRY_MILLISECONDS);
  }
}

/** Runs a command in this process, once. Throws LockedError, before anything has happened, while another process holds the lock. */
async function runHere<N extends CommandName>(
  command: Command,
  name: N,
  input: CommandInput<N>,
): Promise<CommandOutput<N>> {
  // The App is loaded only when there is no server.
  const [{ openApp }, { runCommand }, context] = await Promise.all([
    import('../src/main/app.ts'),
    import('../src/operator/commands.ts'),
    readContext(command),
  ]);
  const failed = Promise.withResolvers<never>();
  failed.promise.catch(() => {});
  const fatal = (cause: unknown) => failed.reject(new Refusal('read_only', COMMIT_FAILED, { cause }));
  const { log } = context;
  const options = { log, who: `purser ${name}`, create: false, fatal };
  await using app = await openApp(context.config, options);
  return (await Promise.race([runCommand(app, name, input), failed.promise])) as CommandOutput<N>;
}
