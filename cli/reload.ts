import type { Command } from 'commander';
import { Refusal } from '../src/base/refusal.ts';
import { dataDirectoryOf } from '../src/config/config.ts';
import { files, prepareDirectory } from '../src/files/data-directory.ts';
import { askServer } from '../src/operator/ask.ts';
import type { CommandOutput } from '../src/operator/commands.ts';
import { example, type Globals, output } from './context.ts';
import { lines } from './table.ts';

/** Registers `reload`: makes the running server read its settings again. */
export function reloadCommand(program: Command): void {
  program
    .command('reload')
    .description('make the running server read its settings again: models, prices, upstreams, keys, limits, receivers')
    .addHelpText('after', example('purser config check && purser reload'))
    .action(async (_, command: Command) => {
      const globals = command.optsWithGlobals<Globals>();
      const directory = dataDirectoryOf(globals);
      prepareDirectory(directory, false);
      const answered = await askServer(files(directory).socket, 'reload', {});
      if (!answered)
        throw new Refusal('read_only', `No server runs in ${directory}: the next start reads the settings.`);
      const change = answered.value as CommandOutput<'reload'>;
      output(command, change, describe);
    });
}

function describe({ models, upstreams, receivers, settings }: CommandOutput<'reload'>): string {
  const parts = Object.entries({ models, upstreams, receivers }).flatMap(([what, it]) =>
    Object.entries(it).flatMap(([how, names]) => (names.length ? [[`${what} ${how}`, names.join(', ')]] : [])),
  );
  if (settings.length) parts.push(['settings changed', settings.join(', ')]);
  return parts.length ? lines(Object.fromEntries(parts)) : 'Nothing is different.';
}
