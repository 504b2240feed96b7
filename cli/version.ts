import type { Command } from 'commander';
import { assetText } from '../src/files/asset.ts';
import { example } from './context.ts';
import { print } from './report.ts';

export const VERSION = (JSON.parse(assetText('package.json')) as { version: string }).version;

export function versionCommand(program: Command): void {
  program
    .command('version')
    .description('print the version')
    .addHelpText('after', example('purser version'))
    .action((_, command: Command) => {
      const { json } = command.optsWithGlobals<{ json?: boolean }>();
      print(json ? JSON.stringify({ version: VERSION, node: process.versions.node }) : VERSION);
    });
}
