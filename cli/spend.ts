import { type Command, Option } from 'commander';
import { csvCell } from '../src/base/csv.ts';
import type { CommandInput } from '../src/operator/commands.ts';
import {
  example,
  type Globals,
  type ListView,
  listOptions,
  output,
  parseTime,
  showTable,
  withoutView,
} from './context.ts';
import { print } from './report.ts';

type SpendOptions = {
  by: CommandInput<'spend'>['by'];
  since?: number;
  until?: number;
  wallet?: string;
  account?: string;
  csv?: boolean;
};

/** Registers `spend`: how much was spent, by whom and on what. */
export function spendCommand(program: Command): void {
  listOptions(program.command('spend'))
    .description('who spent how much, and on what')
    .addOption(
      new Option('--by <what>', 'what to sum by')
        .choices(['model', 'wallet', 'account', 'day', 'tag', 'kind'])
        .default('model'),
    )
    .option('--since <time>', 'charged at or after: 7d (ago), 2026-11-22, or Unix seconds', parseTime)
    .option('--until <time>', 'charged before', parseTime)
    .option('--wallet <wallet>', 'of this wallet and all below it: its id or name')
    .option('--account <account>', 'of this account: its id or name')
    .option('--csv', 'print comma-separated values with a heading')
    .addHelpText('after', example('purser spend --since 7d', 'purser spend --by wallet --account research --csv'))
    .action(spend);
}

async function spend({ csv, ...options }: SpendOptions & ListView, command: Command): Promise<void> {
  const { ask } = await import('./operator-client.ts');
  const { names, ...body } = await ask(command, 'spend', withoutView(options));
  if (command.optsWithGlobals<Globals>().json) return print(JSON.stringify(body));
  const columns = ['key', 'operations', 'prompt_tokens', 'completion_tokens', 'charged_usd'] as const;
  const { others, rounding_usd } = body;
  const isRounded = rounding_usd !== '0.00';
  if (csv) {
    // Whoever adds up the lines gets what was spent.
    const rounding = { key: '(rounding)', operations: 0, prompt_tokens: 0, completion_tokens: 0 };
    const all = [
      ...body.rows,
      ...(others ? [{ key: '(others)', ...others }] : []),
      ...(isRounded ? [{ ...rounding, charged_usd: rounding_usd }] : []),
    ];
    const lines = all.map((row) => columns.map((name) => csvCell(row[name])).join(','));
    return print([columns.join(','), ...lines].join('\n'));
  }
  const rows = body.rows.map((row) => ({
    ...row,
    [options.by as string]: row.key || '(none)',
    name: names[row.key] ?? undefined,
  }));
  const isNamed = options.by === 'wallet' || options.by === 'account';
  const rest = others ? [{ ...others, key: '', name: undefined, [options.by as string]: '(others)' }] : [];
  const sums = sumsOf(options.by, others ? [...body.rows, others] : body.rows);
  const rounding = isRounded ? [{ [options.by as string]: '(rounding)', charged_usd: rounding_usd }] : [];
  const total = { [options.by as string]: 'total', charged_usd: body.spent_usd, ...sums };
  const all = [...rows, ...rest, ...rounding, total];
  const shown = [
    options.by as string,
    ...(isNamed ? ['name'] : []),
    'operations?',
    'prompt_tokens?',
    'completion_tokens?',
    'charged_usd',
  ];
  output(command, body, (_, view) => showTable(all, shown, view));
}

/** Returns the sums of the other columns; none by tag, as an operation may be in several rows. */
function sumsOf(
  by: SpendOptions['by'],
  rows: { operations: number; prompt_tokens: number; completion_tokens: number }[],
) {
  if (by === 'tag') return {};
  const sum = (name: 'operations' | 'prompt_tokens' | 'completion_tokens') =>
    rows.reduce((total, row) => total + row[name], 0);
  return {
    operations: sum('operations'),
    prompt_tokens: sum('prompt_tokens'),
    completion_tokens: sum('completion_tokens'),
  };
}
