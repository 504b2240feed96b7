import type { Command } from 'commander';
import { askAndPrint, example, showRecord } from './context.ts';

/** Registers `freeze` and `unfreeze`: the stop of all new holds. */
export function freezeCommands(program: Command): void {
  program
    .command('freeze')
    .option('--reason <text>', 'why, for later readers')
    .description('no new holds anywhere; reads, settlements and cleanup go on')
    .addHelpText('after', example('purser freeze --reason "an agent loops"'))
    .action((options: { reason?: string }, command: Command) => askAndPrint(command, 'freeze', options, showRecord));
  program
    .command('unfreeze')
    .description('allow new holds again')
    .addHelpText('after', example('purser unfreeze'))
    .action((_, command: Command) => askAndPrint(command, 'unfreeze', {}, showRecord));
}
