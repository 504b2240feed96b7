import type { Command } from 'commander';
import { formatCents } from '../src/base/money.ts';
import { confirm, irreversible } from './confirm.ts';
import {
  askAndPrint,
  askAndPrintList,
  example,
  footOf,
  type ListOptions,
  pageOptions,
  parseAmount,
  parseTime,
  restOf,
  showCommand,
  showRecord,
  showTable,
} from './context.ts';

/** Parses an amount that may be below a cent: USD with a point ("0.0005") or a sign ("$1"), or cents ("5c"). */
function parseCost(value: string): string {
  if (/^(\d{1,7}\.\d{1,9}|\$\d{1,7}(\.\d{1,9})?)$/.test(value)) return value.replace('$', '');
  return formatCents(parseAmount(value));
}

type Options = Omit<ListOptions<'operation.list'>, 'cost_min_usd' | 'cost_max_usd'> & { min?: string; max?: string };

function listOperations({ min, max, ...options }: Options, command: Command): Promise<void> {
  // --uncertain is one page with its own order, the oldest first.
  const costs = { ...(min !== undefined && { cost_min_usd: min }), ...(max !== undefined && { cost_max_usd: max }) };
  const asked = { ...options, ...costs };
  const { all, uncertain, ...rest } = asked;
  if (uncertain && (options.state !== undefined || options.before !== undefined))
    command.error('error: give --uncertain alone, or --state uncertain with --before');
  const filter = all && uncertain ? { ...rest, all, state: 'uncertain' as const } : asked;
  return askAndPrintList(
    command,
    'operation.list',
    'operations',
    filter,
    ({ operations, total, next }, view) =>
      showTable(
        operations,
        ['id', 'wallet_id', 'kind?', 'subject', 'state', 'outcome', 'hold_usd?', 'charge_usd', 'created_at', 'reason?'],
        view,
      ) +
      (uncertain && total !== null ? restOf(operations, total) : footOf(operations, total, ', --all shows all', next)),
  );
}

/** Registers `operation`: attempts at paid requests, and the resolution of uncertain ones. */
export function operationCommands(program: Command): void {
  const group = program.command('operation').description('attempts at paid requests: their holds and outcomes');
  pageOptions(group.command('list'))
    .description('list operations, newest first')
    .option('--uncertain', 'only those with an unknown outcome, oldest first')
    .option('--all', 'all of them')
    .option('--wallet <wallet>', 'of this wallet: its id or name')
    .option('--account <account>', 'of this account: its id or name')
    .option('--state <state>', 'reserved, uncertain, settled, charged or released')
    .option('--model <model>', 'for this model or slot')
    .option('--tag <name=value>', 'with this tag')
    .option('--until <time>', 'made before', parseTime)
    .option('--min <amount>', 'that cost, or hold, at least so much: 0.05, or 5c', parseCost)
    .option('--max <amount>', 'that cost, or hold, at most so much', parseCost)
    .addHelpText(
      'after',
      example('purser operation list --uncertain', 'purser operation list --wallet agent-7 --since 1h --min 0.05'),
    )
    .action(listOperations);
  showCommand(
    group,
    'operation.show',
    'show one operation with its price and usage; also by the id of its request, req_…',
    'op_01k9…',
  );
  irreversible(group.command('resolve'))
    .argument('<id>')
    .description('resolve an uncertain operation by hand')
    .option('--charge', 'charge its whole hold')
    .option('--release', 'release its whole hold')
    .requiredOption('--reason <text>', 'stored with the operation')
    .addHelpText(
      'after',
      example('purser operation resolve op_01k9… --release --reason "the model server never got it"'),
    )
    .action(async (id: string, options: { charge?: boolean; release?: boolean; reason: string }, command: Command) => {
      if (Boolean(options.charge) === Boolean(options.release))
        command.error('error: give either --charge or --release');
      const decision = options.charge ? 'charge' : 'release';
      await confirm(command, `${options.charge ? 'Charge' : 'Release'} the whole hold of ${id}? That is final.`);
      return askAndPrint(command, 'operation.resolve', { id, decision, reason: options.reason }, showRecord);
    });
}
