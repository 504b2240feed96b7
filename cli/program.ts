import { Command, type OutputConfiguration } from 'commander';
import { visible } from '../src/visible.ts';
import { accountCommands } from './account.ts';
import { backupCommand } from './backup.ts';
import { checkoutCommands } from './checkout.ts';
import { configCommands } from './config.ts';
import { example } from './context.ts';
import { demoCommand } from './demo.ts';
import { doctorCommand } from './doctor.ts';
import { freezeCommands } from './freeze.ts';
import { keyCommands } from './key.ts';
import { ledgerCommands } from './ledger.ts';
import { masterKeyCommands } from './master-key.ts';
import { modelsCommands } from './models.ts';
import { operationCommands } from './operation.ts';
import { operatorKeyCommands } from './operator-key.ts';
import { resourceCommands } from './resource.ts';
import { restoreCommand } from './restore.ts';
import { serveCommand } from './serve.ts';
import { VERSION, versionCommand } from './version.ts';
import { walletCommands } from './wallet.ts';

/** The commands of Purser, in the order in which an operator usually needs them. */
const COMMANDS = [
  serveCommand,
  demoCommand,
  operatorKeyCommands,
  accountCommands,
  checkoutCommands,
  keyCommands,
  walletCommands,
  resourceCommands,
  modelsCommands,
  operationCommands,
  ledgerCommands,
  backupCommand,
  restoreCommand,
  masterKeyCommands,
  freezeCommands,
  configCommands,
  doctorCommand,
  versionCommand,
];

/** Builds the command line program. `output` receives help and usage errors instead of stdout and stderr. */
export function createProgram(output: OutputConfiguration = {}): Command {
  const program = new Command('purser')
    .configureOutput({ writeErr: (text) => void process.stderr.write(visible(text)), ...output })
    .description('Bounded spending wallets for software agents.')
    .version(VERSION)
    .option('--data <dir>', 'data directory (default ./purser-data, or PURSER_DATA)')
    .option('--config <file>', 'configuration (default DIR/purser.yaml if it exists, or PURSER_CONFIG)')
    .option('--json', 'print one JSON value on stdout, nothing else')
    .showHelpAfterError('Add --help for the full help.')
    .addHelpText('after', example('purser serve', 'purser operator-key mint', 'purser wallet create --help'))
    .exitOverride();
  for (const add of COMMANDS) add(program);
  for (const group of program.commands.filter((it) => it.commands.length))
    group.addHelpText('after', example(`purser ${group.name()} ${group.commands[0]?.name()} --help`));
  return program;
}
