import type { Command } from 'commander';
import { files, prepareDirectory } from '../src/data-directory.ts';
import { askAndPrint, example, readHouse, showRecord } from './house.ts';
import { print, printLine, say } from './report.ts';

/** Verify and export read a snapshot of the file by themselves: the server's event loop stays free, and nothing is written. */
async function openSnapshot(command: Command) {
  const { config, globals } = await readHouse(command);
  const at = files(config.dataDirectory);
  prepareDirectory(config.dataDirectory, false);
  const { openDatabase } = await import('../src/db/open.ts');
  return { at, globals, database: openDatabase(at.database, { migrate: false, readonly: true }) };
}

export function ledgerCommands(program: Command): void {
  const group = program.command('ledger').description('the journal: every movement of money, hash-chained');
  group
    .command('verify')
    .description('rebuild every balance from the journal and name every fault')
    .addHelpText('after', example('purser ledger verify --json'))
    .action(async (_, command: Command) => {
      const { at, globals, database } = await openSnapshot(command);
      const { verifyLedger } = await import('../src/ledger/verify.ts');
      const { findGap, readHeadFile } = await import('../src/ledger/head.ts');
      try {
        const head = await readHeadFile(at.head).catch((error: Error) => error);
        const verdict = verifyLedger(database.client);
        const gap = head instanceof Error ? head.message : findGap(database.read, head);
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
