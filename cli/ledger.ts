import type { Command } from 'commander';
import { askAndPrint, example, type Globals, showRecord } from './context.ts';
import { print, printLine } from './report.ts';
import { whileWorking } from './spinner.ts';

/**
 * Returns the paths of the database for `verify` and `export`. Both read a snapshot in this process: they write nothing and do not
 * slow the server. They do not read the configuration, so they work even if it is invalid.
 */
async function booksOf(command: Command) {
  const [{ dataDirectoryOf }, { enterDirectory }] = await Promise.all([
    import('../src/config/config.ts'),
    import('../src/books/open.ts'),
  ]);
  const globals = command.optsWithGlobals<Globals>();
  return { at: await enterDirectory(dataDirectoryOf(globals)), globals };
}

/** Registers `ledger`: verifies and exports the journal. */
export function ledgerCommands(program: Command): void {
  const group = program.command('ledger').description('the journal: every movement of money, hash-chained');
  group
    .command('verify')
    .description('examine the file, rebuild every balance from the journal, check every row, and name every fault')
    .addHelpText('after', example('purser ledger verify --json'))
    .action(async (_, command: Command) => {
      const { at, globals } = await booksOf(command);
      const [{ auditFiles }, { printVerdict }] = await Promise.all([
        import('../src/books/examine.ts'),
        import('../src/ledger/verify.ts'),
      ]);
      const verdict = await whileWorking('verifying the books', () => auditFiles(at));
      if (globals.json) print(printVerdict(verdict));
      else if (verdict.ok)
        print(`${verdict.entries} entries, every balance agrees. Head: ${verdict.head.seq} ${verdict.head.hash}`);
      else print([`${verdict.faults} problems in ${verdict.entries} entries:`, ...verdict.problems].join('\n  '));
      process.exitCode = verdict.ok ? 0 : 1;
    });
  group
    .command('export')
    .description('print every entry of the journal')
    .option('--format <format>', 'jsonl or csv', 'jsonl')
    .addHelpText('after', example('purser ledger export --format csv > journal.csv'))
    .action(async (options: { format: string }, command: Command) => {
      const { format } = options;
      if (format !== 'jsonl' && format !== 'csv') return command.error('error: --format is jsonl or csv');
      const { at, globals } = await booksOf(command);
      const [{ openBooks }, { exportEntries }] = await Promise.all([
        import('../src/books/open.ts'),
        import('../src/ledger/export.ts'),
      ]);
      using books = openBooks(at.database, { access: 'read' });
      if (globals.json) await printLine('{"entries":[');
      let between = '';
      for (const line of exportEntries(books.read, globals.json ? 'jsonl' : format)) {
        if (!(await printLine(between + line))) return;
        if (globals.json) between = ',';
      }
      if (globals.json) await printLine(']}');
    });
  group
    .command('head')
    .description('print the number and hash of the newest entry')
    .addHelpText('after', example('purser ledger head'))
    .action((_, command: Command) => askAndPrint(command, 'ledger.head', {}, showRecord));
}
