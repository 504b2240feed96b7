import { CommanderError } from 'commander';
import { createProgram } from './program.ts';
import { reportFailure, reportUsage } from './report.ts';

async function main(): Promise<void> {
  process.umask(0o077); // Whatever is created is its owner's alone.
  process.stdout.on('error', (error: NodeJS.ErrnoException) => {
    if (error.code !== 'EPIPE') throw error; // Who read our output has had enough (`| head`): no fault of ours.
  });
  const [major] = process.versions.node.split('.');
  if (Number(major) < 24) {
    console.error(
      `Purser needs Node 24; this is ${process.versions.node}. Use \`npm start\` or node_modules/.bin/node.`,
    );
    process.exitCode = 1;
    return;
  }
  try {
    await createProgram().parseAsync();
  } catch (error) {
    // What could not be parsed may stand before `--json`: so the words themselves are asked.
    const json = process.argv.includes('--json');
    if (error instanceof CommanderError) reportUsage(error, json);
    else reportFailure(error, json);
  }
}

void main();
