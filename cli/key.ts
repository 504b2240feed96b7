import { type Command, Option } from 'commander';
import { confirm, irreversible } from './confirm.ts';
import {
  askAndPrint,
  example,
  footOf,
  type ListView,
  listOptions,
  parseWholeNumber,
  showRecord,
  showTable,
  withoutView,
} from './context.ts';

const COLUMNS = ['id', 'name', 'prefix?', 'last4', 'created_at?', 'last_used_at', 'revoked_at', 'minted_by?'];
const WALLET_COLUMNS = ['id', 'prefix', 'last4', 'options', 'created_at', 'revoked_at'];

type KeyListOptions = {
  account?: string;
  wallet?: string;
  before?: string;
  limit?: number;
};

/** Registers `key`: account keys. */
export function keyCommands(program: Command): void {
  const group = program.command('key').description('account keys, for hosts and CI');
  group
    .command('create')
    .description('create an account key; it is printed once')
    .requiredOption('--account <id>', 'the account of the key')
    .requiredOption('--name <name>', 'a name to tell keys apart')
    .addHelpText('after', example('purser key create --account acct_01k9… --name ci'))
    .action((options: { account: string; name: string }, command: Command) =>
      askAndPrint(command, 'key.create', options, showRecord),
    );
  listOptions(group.command('list'))
    .description('list the keys of an account, newest first, or the gateway keys of a wallet; never their secrets')
    .addOption(new Option('--account <id>', 'the account').conflicts('wallet'))
    .addOption(new Option('--wallet <id>', 'the wallet, for its gateway keys'))
    .option('--before <id>', 'the next page: what is older than this one')
    .option('--limit <n>', 'at most so many, 1 to 1000 (default 100)', parseWholeNumber)
    .addHelpText('after', example('purser key list --account acct_01k9…', 'purser key list --wallet wal_01k9…'))
    .action((options: KeyListOptions & ListView, command: Command) => {
      const { account, wallet, ...page } = withoutView<KeyListOptions>(options);
      if (wallet !== undefined && Object.keys(page).length)
        command.error('error: --wallet shows every valid key of the wallet; leave out --before and --limit');
      if (wallet !== undefined)
        return askAndPrint(command, 'wallet.gateway-keys', { id: wallet }, ({ keys }, view) =>
          showTable(
            keys.map((key) => ({ ...key, options: JSON.stringify(key.options) })),
            WALLET_COLUMNS,
            view,
          ),
        );
      if (account === undefined) command.error('error: give --account <id> or --wallet <id>');
      return askAndPrint(
        command,
        'key.list',
        { account, ...page },
        ({ keys, total }, view) => showTable(keys, COLUMNS, view) + footOf(keys, total),
      );
    });
  irreversible(group.command('revoke'))
    .argument('<id>')
    .description('revoke an account key or a gateway key at once')
    .addHelpText('after', example('purser key revoke key_01k9…'))
    .action(async (id: string, _, command: Command) => {
      await confirm(command, `Revoke the key ${id} for good? Who uses it is refused at once.`);
      return askAndPrint(command, 'key.revoke', { id }, showRecord);
    });
}
