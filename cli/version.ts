import type { Command } from 'commander';
import { bundleDigest } from '../src/files/bundle.ts';
import { VERSION } from '../src/files/version.ts';
import { example } from './context.ts';
import { print } from './report.ts';

/** Registers `version`. */
export function versionCommand(program: Command): void {
  program
    .command('version')
    .description('print the version')
    .addHelpText('after', example('purser version'))
    .action((_, command: Command) => {
      const { json } = command.optsWithGlobals<{ json?: boolean }>();
      const printed = { version: VERSION, node: process.versions.node, bundle_sha256: bundleDigest() };
      print(json ? JSON.stringify(printed) : VERSION);
    });
}
