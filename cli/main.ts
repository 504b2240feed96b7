import './hang-up.ts';

import { CommanderError } from 'commander';
import { actAsService } from './as-service.ts';
import { createProgram } from './program.ts';
import { reportFailure, reportUsage } from './report.ts';

async function main(): Promise<void> {
  process.umask(0o077); // Files are created for their owner alone.
  process.stdout.on('error', (error: NodeJS.ErrnoException) => {
    if (error.code === 'EPIPE') return; // The reader closed the pipe (`| head`): not an error.
    console.error(
      `The output cannot be written (${error.code}). What the command did stands: revoke a key that it made and that you did not see.`,
    );
    process.exitCode = 5;
  });
  // The terminal was closed, the reader is gone, or the disk is full: the message is lost, and the work continues.
  process.stderr.on('error', () => {});
  const [major] = process.versions.node.split('.');
  if (Number(major) < 24) {
    console.error(
      `Purser needs Node 24; this is ${process.versions.node}. Use \`npm start\` or node_modules/.bin/node.`,
    );
    process.exitCode = 1;
    return;
  }
  const program = createProgram().hook('preAction', (_, command) => actAsService(command));
  try {
    await program.parseAsync();
  } catch (error) {
    // Parsing may have failed before it reached `--json`, so look at the raw arguments.
    const json = process.argv.includes('--json') || program.opts<{ json?: true }>().json === true;
    if (error instanceof CommanderError) reportUsage(error, json);
    else reportFailure(error, json);
  }
}

void main();
