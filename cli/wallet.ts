import type { Command } from 'commander';
import { Refusal } from '../src/refusal.ts';
import { askAndPrint, example, type Globals, parseWholeNumber, showRecord, showTable } from './context.ts';
import { print, say } from './report.ts';

const WAIT_MILLISECONDS = 1000;

export function walletCommands(program: Command): void {
  const group = program.command('wallet').description('bounded budgets for agents');
  group
    .command('create')
    .description('reserve credit as a budget and mint its credential')
    .requiredOption('--account <id>', 'the account that pays')
    .requiredOption('--name <name>', 'a name to tell wallets apart')
    .requiredOption('--budget-cents <n>', 'US cents, 100 to 1000000', parseWholeNumber)
    .option('--expires-in-seconds <n>', '60 to 2592000, or 0 for never (default 86400)', parseWholeNumber)
    .addHelpText('after', example('purser wallet create --account acct_01k9… --name agent-7 --budget-cents 500'))
    .action(
      (
        options: { account: string; name: string; budgetCents: number; expiresInSeconds?: number },
        command: Command,
      ) => {
        const { account, name, budgetCents, expiresInSeconds } = options;
        const expiry = expiresInSeconds === undefined ? {} : { expires_in_seconds: expiresInSeconds };
        return askAndPrint(
          command,
          'wallet.create',
          { account, name, budget_cents: budgetCents, ...expiry },
          showRecord,
        );
      },
    );
  group
    .command('list')
    .description('list the latest 100 wallets of all accounts')
    .addHelpText('after', example('purser wallet list'))
    .action((_, command: Command) =>
      askAndPrint(command, 'wallet.list', {}, ({ wallets }) =>
        showTable(wallets, 'id', 'name', 'status', 'budget_usd', 'used_usd', 'held_usd', 'available_usd', 'expires_at'),
      ),
    );
  group
    .command('show')
    .argument('<id>')
    .description('show one wallet')
    .addHelpText('after', example('purser wallet show wal_01k9…'))
    .action((id: string, _, command: Command) => askAndPrint(command, 'wallet.show', { id }, showRecord));
  group
    .command('token')
    .argument('<id>')
    .description('print the credential of an active wallet once more')
    .addHelpText('after', example('purser wallet token wal_01k9…'))
    .action((id: string, _, command: Command) => askAndPrint(command, 'wallet.token', { id }, (it) => it.agent_token));
  group
    .command('close')
    .argument('<id>')
    .description('freeze a wallet, clean up, settle, and return what is left')
    .option('--wait', 'repeat until nothing is pending')
    .addHelpText('after', example('purser wallet close wal_01k9… --wait'))
    .action(closeWallet);
  group
    .command('timeline')
    .argument('<id>')
    .description('every hold, charge and release of a wallet, with time and request id')
    .addHelpText('after', example('purser wallet timeline wal_01k9…'))
    .action((id: string, _, command: Command) =>
      askAndPrint(command, 'wallet.timeline', { id }, ({ wallet, steps, open }) => {
        const rows = steps.map((it) => ({
          ...it,
          usage:
            it.usage &&
            Object.entries(it.usage)
              .map(([name, n]) => `${name}=${n}`)
              .join(' '),
        }));
        const columns = [
          'seq',
          'at',
          'what',
          'amount_usd',
          'available_usd',
          'subject',
          'usage',
          'settled_by',
          'request_id',
          'reason',
        ];
        return [
          `${wallet.id} ${JSON.stringify(wallet.name)}: ${wallet.status}, budget ${wallet.budget_usd}, used ${wallet.used_usd}, held ${wallet.held_usd}, available ${wallet.available_usd} USD`,
          showTable(rows, ...columns),
          ...(open.length
            ? [
                'Not resolved yet:',
                showTable(open, 'id', 'state', 'hold_usd', 'subject', 'created_at', 'request_id', 'reason'),
              ]
            : []),
        ].join('\n');
      }),
    );
}

async function closeWallet(id: string, options: { wait?: boolean }, command: Command): Promise<void> {
  const { ask } = await import('./operator-client.ts');
  for (;;) {
    try {
      const wallet = await ask(command, 'wallet.close', { id });
      print(command.optsWithGlobals<Globals>().json ? JSON.stringify(wallet) : showRecord(wallet));
      return;
    } catch (error) {
      if (!options.wait || !(error instanceof Refusal) || error.code !== 'cleanup_pending') throw error;
      say(error.message);
    }
    await new Promise((resolve) => setTimeout(resolve, WAIT_MILLISECONDS));
  }
}
