import { setTimeout as sleep } from 'node:timers/promises';
import { type Command, InvalidArgumentError, Option } from 'commander';
import { formatCents, formatUsd, Nanos, parseUsd, ZERO } from '../src/base/money.ts';
import { Refusal } from '../src/base/refusal.ts';
import type { CommandInput, CommandOutput } from '../src/operator/commands.ts';
import { confirm, irreversible } from './confirm.ts';
import {
  askAndPrint,
  askAndPrintList,
  example,
  fitted,
  footOf,
  type Globals,
  type ListOptions,
  listOptions,
  output,
  pageOptions,
  parseAmount,
  parseBudget,
  parseCents,
  parseExpiry,
  parseExtension,
  parsePositiveAmount,
  showCommand,
  showRecord,
  showTable,
} from './context.ts';
import { say } from './report.ts';
import type { View } from './table.ts';
import { exact } from './time.ts';
import { walletEnvCommand } from './wallet-env.ts';

const WAIT_MILLISECONDS = 1000;
const KEY_HELP = 'makes the command safe to repeat: the same key changes nothing again';

const COLUMNS = [
  ...['id', 'name', 'status', 'budget_usd', 'used_usd', 'held_usd?', 'delegated_usd?', 'available_usd?'],
  ...['frozen_at?', 'expires_at'],
];

const showWallets = ({ wallets }: { wallets: Record<string, unknown>[] }, view?: View) =>
  showTable(wallets, COLUMNS, view);

function parseCarry(value: string): 'none' | 'all' | number {
  if (value === 'none' || value === 'all') return value;
  try {
    return parseAmount(value);
  } catch (error) {
    throw new InvalidArgumentError(`${(error as Error).message} Or write "none" or "all".`);
  }
}

/** Returns whether a command is for one wallet or all of an account. Ends with a usage error unless it is one of them. */
function oneOrAll(command: Command, id: string | undefined, account: string | undefined): 'one' | 'all' {
  if ((id === undefined) === (account === undefined)) command.error('error: name one wallet, or --account <id>');
  return id === undefined ? 'all' : 'one';
}

/** Registers `wallet`: budgets of agents. */
export function walletCommands(program: Command): void {
  const group = program.command('wallet').description('bounded budgets for agents');
  group
    .command('create')
    .description('reserve credit as a budget and mint its credential')
    .option('--account <account>', 'the account that pays: its id or name', 'default')
    .requiredOption('--name <name>', 'a name to tell wallets apart')
    .option('--budget <amount>', 'what it may spend, as 5.00; from 1 to 10000 USD', parseBudget)
    .addOption(new Option('--budget-cents <cents>', 'the same in US cents').argParser(parseCents).conflicts('budget'))
    .option('--expires <duration>', 'as 30m, 12h or 7d, up to 30d, or never (default 1d)', parseExpiry)
    .addHelpText('after', example('purser wallet create --account research --name agent-7 --budget 5.00'))
    .action(createWallet);
  pageOptions(group.command('list'))
    .description('list wallets of all accounts, newest first')
    .option('--all', 'all of them')
    .option('--account <account>', 'of this account: its id or name')
    .option('--status <status>', 'active, closing, expired or closed')
    .addHelpText('after', example('purser wallet list', 'purser wallet list --all --status active --account research'))
    .action(listWallets);
  showCommand(group, 'wallet.show', 'show one wallet', 'wal_01k9…');
  group
    .command('token')
    .argument('<id>')
    .description('print the credential of an active wallet once more')
    .addHelpText('after', example('purser wallet token wal_01k9…'))
    .action((id: string, _, command: Command) => askAndPrint(command, 'wallet.token', { id }, (it) => it.agent_token));
  walletEnvCommand(group);
  budgetCommand(group, 'raise', 'what to add to its budget, as 5.00', 1)
    .description('add to a wallet’s budget, out of its account’s credit')
    .addHelpText('after', example('purser wallet raise wal_01k9… 5.00'));
  budgetCommand(group, 'lower', 'what to take from its budget, as 2.00', -1)
    .description('return part of a wallet’s budget, at most what is not spent, held or delegated')
    .addHelpText('after', example('purser wallet lower wal_01k9… 2.00'));
  group
    .command('extend')
    .argument('<id>')
    .argument('<duration>', 'as 90s, 30m, 12h or 7d, up to 365d', parseExtension)
    .option('--key <key>', KEY_HELP)
    .description('move a wallet’s expiry further')
    .addHelpText('after', example('purser wallet extend wal_01k9… 7d'))
    .action((id: string, seconds: number, options: { key?: string }, command: Command) =>
      askAndPrint(command, 'wallet.extend', { id, seconds, ...options }, showRecord),
    );
  group
    .command('refill')
    .argument('<id>')
    .option('--amount <amount>', 'what the wallet gets at each boundary, as 5.00', parsePositiveAmount)
    .option('--every <period>', 'day, week (from Monday) or month')
    .option('--zone <zone>', 'time zone of the boundaries, as Europe/Berlin (default UTC)')
    .option('--carry <what>', 'what is left over: none, all, or at most this amount (default none)', parseCarry)
    .option('--off', 'end the refills')
    .description('refill a wallet every day, week or month, out of its account’s credit')
    .addHelpText('after', example('purser wallet refill wal_01k9… --amount 5.00 --every day --zone Europe/Berlin'))
    .action(refillWallet);
  freezeCommands(group);
  irreversible(group.command('close'))
    .argument('[id]')
    .option('--account <id>', 'all wallets of this account instead')
    .option('--wait', 'repeat until nothing is pending')
    .description('end a wallet’s spending, clean up, settle, and return what is left')
    .addHelpText('after', example('purser wallet close wal_01k9… --wait'))
    .action(closeWallets);
  listOptions(group.command('timeline'))
    .argument('<id>')
    .option('--steps', 'one line for every movement: holds, charges and releases apart')
    .description('where a wallet’s money went: one line for each operation and change, with sums at the foot')
    .addHelpText('after', example('purser wallet timeline wal_01k9…', 'purser wallet timeline agent-7 --steps'))
    .action((id: string, { steps }: { steps?: boolean }, command: Command) =>
      askAndPrint(command, 'wallet.timeline', { id }, (it, view) => showTimeline(it, steps === true, view)),
    );
}

type CreateOptions = { account: string; name: string; budget?: number; budgetCents?: number; expires?: number };

async function createWallet(options: CreateOptions, command: Command): Promise<void> {
  const { account, name, budget, budgetCents = budget, expires } = options;
  if (budgetCents === undefined) return command.error("error: required option '--budget <amount>' not specified");
  const expiry = expires === undefined ? {} : { expires_in_seconds: expires };
  const { ask } = await import('./operator-client.ts');
  const order = { account, name, budget_cents: budgetCents, ...expiry };
  const { expires_at, ...made } = await ask(command, 'wallet.create', order);
  output(command, made, () => showRecord({ ...made, expires_at: expires_at ?? 'never' }));
  if (expires === undefined && !command.optsWithGlobals<Globals>().json)
    say('It expires in a day. For another time: --expires 7d, or --expires never.');
}

/** Registers a command that changes a budget: by its amount, or with `sign` -1 by that much less. */
const budgetCommand = (group: Command, name: string, amount: string, sign: 1 | -1): Command =>
  group
    .command(name)
    .argument('<id>')
    .argument('<amount>', amount, parsePositiveAmount)
    .option('--key <key>', KEY_HELP)
    .action((id: string, cents: number, options: { key?: string }, command: Command) =>
      changeBudget(command, { id, add_cents: sign * cents, ...options }),
    );

function freezeCommands(group: Command): void {
  group
    .command('freeze')
    .argument('[id]')
    .option('--account <id>', 'all wallets of this account instead')
    .option('--reason <text>', 'why, for later readers')
    .description('freeze a wallet and all below it: no new holds; stops and settlements go on')
    .addHelpText('after', example('purser wallet freeze wal_01k9… --reason "loops"'))
    .action((id: string | undefined, options: { account?: string; reason?: string }, command: Command) => {
      const { account, reason } = options;
      const why = reason === undefined ? {} : { reason };
      return oneOrAll(command, id, account) === 'all'
        ? askAndPrint(command, 'wallet.freeze-account', { account: account as string, ...why }, showWallets)
        : askAndPrint(command, 'wallet.freeze', { id: id as string, ...why }, showRecord);
    });
  group
    .command('unfreeze')
    .argument('[id]')
    .option('--account <id>', 'all frozen wallets of this account instead')
    .option('--reason <text>', 'accepted as for freeze, and not kept: what is not frozen has no reason')
    .description('unfreeze a wallet')
    .addHelpText('after', example('purser wallet unfreeze wal_01k9…', 'purser wallet unfreeze --account research'))
    .action((id: string | undefined, { account }: { account?: string }, command: Command) =>
      oneOrAll(command, id, account) === 'all'
        ? askAndPrint(command, 'wallet.unfreeze-account', { account: account as string }, showWallets)
        : askAndPrint(command, 'wallet.unfreeze', { id: id as string }, showRecord),
    );
}

type Timeline = CommandOutput<'wallet.timeline'>;
type Step = Timeline['steps'][number];

function showTimeline({ wallet, steps, open }: Timeline, isDetailed: boolean, view: View): string {
  const rows = (isDetailed ? steps : operationLines(steps)).map((it) => ({
    ...it,
    at: exact(it.at),
    usage: usageText(it.usage),
  }));
  const columns = isDetailed
    ? ['seq', 'at', 'what', 'amount_usd', 'available_usd', 'subject', 'usage?', 'settled_by?', 'request_id?', 'reason?']
    : ['at', 'what', 'amount_usd', 'available_usd', 'subject', 'usage?', 'request_id?', 'reason?'];
  return [
    fitted(
      `${wallet.id} ${JSON.stringify(wallet.name)}: ${wallet.status}, budget ${wallet.budget_usd}, used ${wallet.used_usd}, held ${wallet.held_usd}, available ${wallet.available_usd} USD`,
    ),
    showTable(rows, columns, view),
    fitted(footOfTimeline(steps, open)),
    ...(open.length
      ? [
          'Not resolved yet:',
          showTable(open, ['id', 'state', 'hold_usd', 'subject', 'created_at', 'request_id?', 'reason?']),
        ]
      : []),
  ].join('\n');
}

/** Returns one line for each operation, by the outcome of its hold; other movements unchanged. */
function operationLines(steps: readonly Step[]): Step[] {
  const lines = new Map<string, Step>();
  for (const step of steps) {
    const key = step.operation_id ?? `entry ${step.seq}`;
    const before = lines.get(key);
    // A release after a charge is the rest of the hold; a hold comes first, so its time is kept.
    const isRest = before?.what === 'charged';
    const kept = isRest ? { ...before, available_usd: step.available_usd } : step;
    lines.set(key, before ? { ...kept, seq: before.seq, at: before.at } : kept);
  }
  return [...lines.values()];
}

/** Formats counts and sums: "42 charged 4.4561 · 3 released · 2 uncertain 0.25 held · big 4.45 · qwen3-8b 0.0061". */
function footOfTimeline(steps: readonly Step[], open: Timeline['open']): string {
  const sum = (amounts: string[]) => formatUsd(amounts.reduce((total, it) => Nanos(total + parseUsd(it)), ZERO));
  const charged = steps.filter((it) => it.what === 'charged');
  const released = operationLines(steps).filter((it) => it.what === 'released').length;
  const bySubject = Map.groupBy(charged, (it) => it.subject ?? '-');
  const held = (state: string) => {
    const of = open.filter((it) => it.state === state);
    return of.length ? [`${of.length} ${state} ${sum(of.map((it) => it.hold_usd))} held`] : [];
  };
  return [
    `${charged.length} charged ${sum(charged.map((it) => it.amount_usd))}`,
    ...(released ? [`${released} released`] : []),
    ...held('reserved'),
    ...held('uncertain'),
    ...[...bySubject].map(([subject, of]) => `${subject} ${sum(of.map((it) => it.amount_usd))}`),
  ].join(' · ');
}

const usageText = (usage: Step['usage']) =>
  usage &&
  Object.entries(usage)
    .map(([name, n]) => `${name}=${n}`)
    .join(' ');

const listWallets = (options: ListOptions<'wallet.list'>, command: Command) =>
  askAndPrintList(
    command,
    'wallet.list',
    'wallets',
    options,
    (it, view) => showWallets(it, view) + footOf(it.wallets, it.total, ', --all shows all'),
  );

/** Prints the wallet record, and explains a reduction that moved less than requested. */
async function changeBudget(command: Command, input: CommandInput<'wallet.budget'>): Promise<void> {
  const { ask } = await import('./operator-client.ts');
  const { moved_cents: moved, ...wallet } = await ask(command, 'wallet.budget', input);
  output(command, wallet, showRecord);
  if (moved >= Math.abs(input.add_cents)) return;
  const why = 'a lower stops at what is spent, held and delegated, and moves whole cents';
  say(`${moved ? `Only ${formatCents(moved)} USD were` : 'Nothing was'} moved: ${why}.`);
}

type RefillOptions = { amount?: number; every?: string; zone?: string; carry?: 'none' | 'all' | number; off?: boolean };

async function refillWallet(id: string, options: RefillOptions, command: Command): Promise<void> {
  const { amount: cents, every, zone, carry, off } = options;
  if (off && [cents, every, zone, carry].some((it) => it !== undefined))
    return command.error('error: give --off alone, or the refills without it');
  if (off) return askAndPrint(command, 'wallet.refill', { id, refill: null }, showRecord);
  if (cents === undefined || every === undefined)
    return command.error('error: give --amount and --every, or --off to end the refills');
  const refill: CommandInput<'wallet.refill'>['refill'] = {
    cents,
    every: every as 'day', // The command checks it.
    ...(zone === undefined ? {} : { zone }),
    ...(carry === undefined ? {} : { carry }),
  };
  return askAndPrint(command, 'wallet.refill', { id, refill }, showRecord);
}

type CloseOptions = { account?: string; wait?: boolean };

async function closeWallets(id: string | undefined, options: CloseOptions, command: Command): Promise<void> {
  const isOne = oneOrAll(command, id, options.account) === 'one';
  const which = isOne ? `the wallet ${id}` : `all wallets of the account ${options.account}`;
  await confirm(command, `Close ${which} for good? Tokens end, and machines are destroyed.`);
  if (isOne) return closeWallet(id as string, options, command);
  const { ask } = await import('./operator-client.ts');
  for (;;) {
    const answer = await ask(command, 'wallet.close-account', { account: options.account as string });
    const pending = answer.wallets.filter((it) => it.status !== 'closed');
    if (!pending.length || !options.wait) {
      output(command, answer, showWallets);
      if (pending.length) say(`${pending.length} are still closing; repeat the command, or give --wait`);
      return;
    }
    say(`${pending.length} are still closing`);
    await sleep(WAIT_MILLISECONDS);
  }
}

async function closeWallet(id: string, options: CloseOptions, command: Command): Promise<void> {
  const { ask } = await import('./operator-client.ts');
  for (;;) {
    try {
      const wallet = await ask(command, 'wallet.close', { id });
      output(command, wallet, showRecord);
      return;
    } catch (error) {
      if (!(error instanceof Refusal) || error.code !== 'cleanup_pending') throw error;
      if (!options.wait) throw new Refusal(error.code, `${error.message} Repeat the command, or give --wait.`);
      say(error.message);
    }
    await sleep(WAIT_MILLISECONDS);
  }
}
