import { type Command, Option } from 'commander';
import { formatCents } from '../src/base/money.ts';
import {
  askAndPrint,
  example,
  fitted,
  listOptions,
  parseAmount,
  parseCents,
  showRecord,
  showTable,
} from './context.ts';
import { exact } from './time.ts';

/** Formats an account for people: with one figure of what it spent, not also that of closed wallets alone. */
const showAccount = ({ reserved_cents: _, spent_cents: __, ...account }: Record<string, unknown>) =>
  showRecord(account);

/** Registers `account`: accounts, their credit and their links to sign-ins. */
export function accountCommands(program: Command): void {
  const group = program.command('account').description('owners of prepaid credit');
  group
    .command('create')
    .argument('<name>')
    .description('open an account')
    .option('--credit <amount>', 'initial credit, as 12.50', parseAmount)
    .addOption(new Option('--credit-cents <cents>', 'the same in US cents').argParser(parseCents).conflicts('credit'))
    .addHelpText('after', example('purser account create research --credit 50.00'))
    .action((name: string, options: { credit?: number; creditCents?: number }, command: Command) => {
      const creditCents = options.credit ?? options.creditCents;
      return askAndPrint(
        command,
        'account.create',
        { name, ...(creditCents === undefined ? {} : { creditCents }) },
        showAccount,
      );
    });
  listOptions(group.command('list'))
    .description('list all accounts')
    .addHelpText('after', example('purser account list'))
    .action((_, command: Command) =>
      askAndPrint(command, 'account.list', {}, ({ accounts }, view) =>
        showTable(accounts, ['id', 'name', 'available_cents', 'in_wallets_usd', 'spent_usd', 'suspended_at'], view),
      ),
    );
  group
    .command('show')
    .argument('<id>')
    .description('show one account')
    .addHelpText('after', example('purser account show acct_01k9…'))
    .action((id: string, _, command: Command) => askAndPrint(command, 'account.show', { id }, showAccount));
  creditCommands(group);
  group
    .command('link')
    .argument('<id>')
    .description('let an identity of the configured issuer sign in as this account')
    .requiredOption('--issuer <url>', 'the issuer’s own identifier')
    .requiredOption('--subject <sub>', 'the subject (sub) at that issuer')
    .addHelpText('after', example('purser account link acct_01k9… --issuer https://id.example/realms/x --subject 4711'))
    .action((id: string, options: { issuer: string; subject: string }, command: Command) =>
      askAndPrint(command, 'account.link', { id, ...options }, showAccount),
    );
  group
    .command('sign-out')
    .argument('<id>')
    .description('end every session of the account on the page; its keys stay')
    .addHelpText('after', example('purser account sign-out research'))
    .action((id: string, _, command: Command) => askAndPrint(command, 'account.sign-out', { id }, showRecord));
  group
    .command('suspend')
    .argument('<id>')
    .description('no new wallets, holds or keys; reads, settlements and cleanup go on')
    .addHelpText('after', example('purser account suspend acct_01k9…'))
    .action((id: string, _, command: Command) => askAndPrint(command, 'account.suspend', { id }, showAccount));
  group
    .command('resume')
    .argument('<id>')
    .description('end a suspension')
    .addHelpText('after', example('purser account resume acct_01k9…'))
    .action((id: string, _, command: Command) => askAndPrint(command, 'account.resume', { id }, showAccount));
}

/** Registers the commands on an account's credit. */
function creditCommands(group: Command): void {
  listOptions(group.command('statement'))
    .argument('<id>')
    .description('every credit, debit, checkout and payment taken back, with its reason')
    .addHelpText('after', example('purser account statement research'))
    .action((id: string, _, command: Command) =>
      askAndPrint(command, 'account.statement', { id }, ({ account, lines }, view) =>
        [
          showTable(
            lines.map((it) => ({ ...it, at: exact(it.at) })),
            ['at', 'kind', 'amount_cents', 'reason', 'key?', 'session_id?'],
            view,
          ),
          fitted(
            `${account.name}: ${formatCents(account.available_cents)} USD available, ${account.in_wallets_usd} in wallets, ${account.spent_usd} spent${account.owed_cents > 0 ? `, ${formatCents(account.owed_cents)} owed` : ''}`,
          ),
        ].join('\n'),
      ),
    );
  group
    .command('credit')
    .argument('<id>')
    .argument('<amount>', 'as 12.50', parseAmount)
    .description('add prepaid credit')
    .option('--reason <text>', 'stored with the entry')
    .option('--key <key>', 'idempotency key: repeated commands with it credit once')
    .addHelpText('after', example('purser account credit research 50.00 --reason "invoice 17" --key invoice-17'))
    .action((id: string, cents: number, options: { reason?: string; key?: string }, command: Command) =>
      askAndPrint(command, 'account.credit', { id, cents, ...options }, showAccount),
    );
  group
    .command('debit')
    .argument('<id>')
    .argument('<amount>', 'as 12.50', parseAmount)
    .description('take credit back, at most what is available')
    .requiredOption('--reason <text>', 'stored with the entry')
    .addHelpText('after', example('purser account debit acct_01k9… 5.00 --reason "credited twice"'))
    .action((id: string, cents: number, options: { reason: string }, command: Command) =>
      askAndPrint(command, 'account.debit', { id, cents, ...options }, showAccount),
    );
}
