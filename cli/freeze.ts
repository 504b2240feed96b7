import type { Command } from 'commander';
import { askAndPrint, example, showRecord } from './context.ts';

export function freezeCommands(program: Command): void {
  program
    .command('freeze')
    .description('no new holds anywhere; reads, settlements and cleanup go on')
    .addHelpText('after', example('purser freeze'))
    .action((_, command: Command) => askAndPrint(command, 'freeze', {}, showRecord));
  program
    .command('unfreeze')
    .description('allow new holds again')
    .addHelpText('after', example('purser unfreeze'))
    .action((_, command: Command) => askAndPrint(command, 'unfreeze', {}, showRecord));
}
