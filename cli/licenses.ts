import type { Command } from 'commander';
import { type Notice, notices } from '../src/files/bundle.ts';
import { example } from './context.ts';
import { print } from './report.ts';

const RULE = '-'.repeat(80);

const sectionOf = ({ name, version, license, text }: Notice) =>
  `${RULE}\n${[name, version].filter(Boolean).join(' ')} (${license})\n${RULE}\n\n${text.trim()}\n`;

/** Registers `licenses`. */
export function licensesCommand(program: Command): void {
  program
    .command('licenses')
    .description('print the licenses of everything that is in this executable')
    .addHelpText('after', example('purser licenses', 'purser licenses --json'))
    .action((_, command: Command) => {
      const { json } = command.optsWithGlobals<{ json?: boolean }>();
      print(json ? JSON.stringify({ licenses: notices() }) : notices().map(sectionOf).join('\n'));
    });
}
