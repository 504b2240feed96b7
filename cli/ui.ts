import type { Command } from 'commander';
import { dataDirectoryOf } from '../src/config/config.ts';
import { files } from '../src/files/data-directory.ts';
import { example, type Globals } from './context.ts';
import { print, say } from './report.ts';

/** Registers `ui`: a link to the page of the running server. */
export function uiCommand(program: Command): void {
  program
    .command('ui')
    .description('print a link that opens the page in a browser as the operator, once, within a minute')
    .option('--no-open', 'on a desktop: only print the link, and open no browser')
    .addHelpText(
      'after',
      example('purser ui', 'ssh -L 7420:127.0.0.1:7420 host, then open the path of the link on http://127.0.0.1:7420'),
    )
    .action(ui);
}

async function ui({ open }: { open: boolean }, command: Command): Promise<void> {
  const { ask } = await import('./operator-client.ts');
  const globals = command.optsWithGlobals<Globals>();
  const { url, expires_at } = await ask(command, 'ui.link', {});
  if (globals.json) return print(JSON.stringify({ url, expires_at }));
  print(url);
  say('Open it in a browser within a minute. It works once, and signs that browser in as the operator.');
  const { isDesktop, openInBrowser } = await import('./browser.ts');
  if (!open || !isDesktop()) return;
  const code = url.slice(url.lastIndexOf('/') + 1);
  const isWaiting = async () => (await ask(command, 'ui.waits', { code })).waits;
  say('Opening it in the browser of this desktop …');
  if (!(await openInBrowser(url, files(dataDirectoryOf(globals)).signIn, isWaiting)))
    say('No browser could be opened here.');
}
