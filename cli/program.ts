import { Command, type ErrorOptions, Help, type OutputConfiguration } from 'commander';
import { visible } from '../src/base/visible.ts';
import { VERSION } from '../src/files/version.ts';
import { accountCommands } from './account.ts';
import { backupCommand } from './backup.ts';
import { checkoutCommands } from './checkout.ts';
import { completionCommand } from './completion.ts';
import { configCommands } from './config.ts';
import { example, notEmpty } from './context.ts';
import { demoCommand } from './demo.ts';
import { doctorCommand } from './doctor.ts';
import { eventsCommands } from './events.ts';
import { freezeCommands } from './freeze.ts';
import { initCommand } from './init.ts';
import { installCommand } from './install.ts';
import { keyCommands } from './key.ts';
import { ledgerCommands } from './ledger.ts';
import { licensesCommand } from './licenses.ts';
import { masterKeyCommands } from './master-key.ts';
import { modelsCommands } from './models.ts';
import { operationCommands } from './operation.ts';
import { operatorKeyCommands } from './operator-key.ts';
import { passkeyCommands } from './passkey.ts';
import { reloadCommand } from './reload.ts';
import { resourceCommands } from './resource.ts';
import { restoreCommand } from './restore.ts';
import { runCommand } from './run.ts';
import { serveCommand } from './serve.ts';
import { spendCommand } from './spend.ts';
import { statusCommand } from './status.ts';
import { uiCommand } from './ui.ts';
import { upgradeCommand } from './upgrade.ts';
import { versionCommand } from './version.ts';
import { walletCommands } from './wallet.ts';

/** The commands of Purser, in the order in which an operator usually needs them. */
const COMMANDS = [
  installCommand,
  upgradeCommand,
  initCommand,
  serveCommand,
  demoCommand,
  operatorKeyCommands,
  accountCommands,
  checkoutCommands,
  keyCommands,
  walletCommands,
  runCommand,
  statusCommand,
  uiCommand,
  passkeyCommands,
  spendCommand,
  resourceCommands,
  modelsCommands,
  operationCommands,
  eventsCommands,
  ledgerCommands,
  backupCommand,
  restoreCommand,
  masterKeyCommands,
  freezeCommands,
  configCommands,
  reloadCommand,
  doctorCommand,
  completionCommand,
  licensesCommand,
  versionCommand,
];

const EXIT_CODES =
  '\nExit codes: 0 done, 1 failed, 2 usage, 3 not found, 4 refused or in conflict,\n5 unavailable at the moment, 6 the disk of a server failed';

/** A command that reports a misspelled option before a missing one, as that may be the one meant. */
class PurserCommand extends Command {
  override createCommand(name?: string): Command {
    return new PurserCommand(name);
  }

  override error(message: string, options?: ErrorOptions): never {
    const unknown = this.args.find((it) => /^--[a-z]/.test(it))?.split('=')[0];
    if (options?.code === 'commander.missingMandatoryOptionValue' && unknown !== undefined)
      (this as unknown as { unknownOption(flag: string): void }).unknownOption(unknown); // Suggests the right one.
    return super.error(message, options);
  }
}

/** Builds the command line program. `output` receives help and usage errors instead of stdout and stderr. */
export function createProgram(output: OutputConfiguration = {}): Command {
  const program = new PurserCommand('purser')
    .configureOutput({ writeErr: (text) => void process.stderr.write(visible(text)), ...output })
    .description('Bounded spending wallets for software agents.')
    .version(VERSION, '-V')
    .version(VERSION, '-v, --version')
    .option('--data <dir>', 'data directory (default ./purser-data, or PURSER_DATA)', notEmpty)
    .option('--config <file>', 'configuration (default DIR/purser.yaml if it exists, or PURSER_CONFIG)')
    .option('--json', 'print one JSON value on stdout, nothing else')
    .configureHelp({
      subcommandTerm: (command) => command.name(), // Its arguments would leave no room for the descriptions.
      optionDescription: (option) =>
        `${Help.prototype.optionDescription(option)}${option.mandatory ? ' (required)' : ''}`,
    })
    .showHelpAfterError('Add --help for the full help.')
    .addHelpText('after', example('purser init', 'purser serve', 'purser wallet create --help'))
    .exitOverride();
  program.options.find(({ flags }) => flags === '-V')?.hideHelp(); // Accepted out of habit.
  program.addHelpText('after', EXIT_CODES);
  for (const add of COMMANDS) add(program);
  for (const group of program.commands.filter((it) => it.commands.length))
    group.addHelpText('after', example(`purser ${group.name()} ${group.commands[0]?.name()} --help`));
  return program;
}
