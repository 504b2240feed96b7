import type { Command } from 'commander';
import { dataDirectoryOf } from '../src/config/config.ts';
import { files, LockedError, prepareDirectory } from '../src/files/data-directory.ts';
import { askSocket } from '../src/operator/ask.ts';
import type { CommandInput, CommandName, CommandOutput } from '../src/operator/commands.ts';
import { Refusal } from '../src/refusal.ts';
import { type Globals, readContext } from './context.ts';

/** So long a server may take from taking its lock to listening on its socket. */
const STARTING_MILLISECONDS = 10_000;
const TRY_MILLISECONDS = 100;

const COMMIT_FAILED = 'A commit failed: what was asked may or may not have happened. Look before you repeat it.';

/**
 * Asks one thing of the house: over the socket while `serve` runs, so that the same queue writes; otherwise by taking the
 * lock, opening the house, running the one command and closing it again. One writer, always (design, section 4). The
 * configuration is read in the second case only: a server that runs has its own, and its secrets need not be in this
 * terminal's environment. Throws what the command refuses, and ConfigurationFault.
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
    const answered = await askSocket(at.socket, name, input);
    if (answered) return answered.value as CommandOutput<N>;
    // The whole house is loaded only when there is no server to ask.
    const [{ openApp }, { runCommand }, house] = await Promise.all([
      import('../src/app.ts'),
      import('../src/operator/commands.ts'),
      readContext(command),
    ]);
    const failed = Promise.withResolvers<never>();
    failed.promise.catch(() => {});
    const fatal = (cause: unknown) => failed.reject(new Refusal('read_only', COMMIT_FAILED, { cause }));
    try {
      await using app = await openApp(house.config, house.secrets, {
        log: house.log,
        who: `purser ${name}`,
        create: false,
        fatal,
      });
      return (await Promise.race([runCommand(app, name, input), failed.promise])) as CommandOutput<N>;
    } catch (error) {
      if (!(error instanceof LockedError) || performance.now() > deadline) throw error;
    }
    await new Promise((resolve) => setTimeout(resolve, TRY_MILLISECONDS));
  }
}
