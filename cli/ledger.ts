import type { Command } from 'commander';
import { files, prepareDirectory } from '../src/data-directory.ts';
import { askAndPrint, example, type Globals, showRecord } from './house.ts';
import { print, printLine, say } from './report.ts';

/**
 * Verify and export read a snapshot of the file by themselves: the server's event loop stays free, and nothing is written.
 * The books need no configuration, so a broken one keeps nobody from examining them.
 */
async function openSnapshot(command: Command) {
  const globals = command.optsWithGlobals<Globals>();
  const { dataDirectoryOf } = await import('../src/config.ts');
  const directory = dataDirectoryOf(globals);
  const at = files(directory);
  prepareDirectory(directory, false);
  const { openDatabase } = await import('../src/db/open.ts');
  return { at, globals, database: openDatabase(at.database, { migrate: false, readonly: true }) };
}

/** What cannot be read has a fault that the audit has named. */
function gapIn(look: () => string | undefined): string | undefined {
  try {
    return look();
  } catch (error) {
    return `the newest entries cannot be read: ${(error as Error).message}`;
  }
}

export function ledgerCommands(program: Command): void {
  const group = program.command('ledger').description('the journal: every movement of money, hash-chained');
  group
    .command('verify')
    .description('examine the file, rebuild every balance from the journal, check every row, and name every fault')
    .addHelpText('after', example('purser ledger verify --json'))
    .action(async (_, command: Command) => {
      const { at, globals, database } = await openSnapshot(command);
      const { audit } = await import('../src/ledger/audit.ts');
      const { findGap, readHeadFile, readTip } = await import('../src/ledger/head.ts');
      try {
        const tip = readTip(at.tip); // Before the books: those may have gone on meanwhile, never back.
        const head = await readHeadFile(at.head).catch((error: Error) => error);
        const verdict = audit(database.client);
        const gap = head instanceof Error ? head.message : gapIn(() => findGap(database.read, head, tip));
        if (gap && !verdict.problems.includes(gap)) verdict.problems.push(gap);
        verdict.ok = verdict.problems.length === 0;
        if (globals.json) print(JSON.stringify(verdict));
        else if (verdict.ok)
          say(`${verdict.entries} entries, every balance agrees. Head: ${verdict.head.seq} ${verdict.head.hash}`);
        else
          say([`${verdict.problems.length} problems in ${verdict.entries} entries:`, ...verdict.problems].join('\n  '));
        process.exitCode = verdict.ok ? 0 : 1;
      } finally {
        database.client.close();
      }
    });
  group
    .command('export')
    .description('print every entry of the journal')
    .option('--format <format>', 'jsonl or csv', 'jsonl')
    .addHelpText('after', example('purser ledger export --format csv > journal.csv'))
    .action(async (options: { format: string }, command: Command) => {
      const { format } = options;
      if (format !== 'jsonl' && format !== 'csv') return command.error('error: --format is jsonl or csv');
      const { database, globals } = await openSnapshot(command);
      const { exportEntries } = await import('../src/ledger/export.ts');
      try {
        if (globals.json) await printLine('{"entries":[');
        let between = '';
        for (const line of exportEntries(database.read, globals.json ? 'jsonl' : format)) {
          if (!(await printLine(between + line))) return;
          if (globals.json) between = ',';
        }
        if (globals.json) await printLine(']}');
      } finally {
        database.client.close();
      }
    });
  group
    .command('head')
    .description('print the number and hash of the newest entry')
    .addHelpText('after', example('purser ledger head'))
    .action((_, command: Command) => askAndPrint(command, 'ledger.head', {}, showRecord));
}
