import sea from 'node:sea';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Command } from 'commander';
import { Refusal } from '../src/base/refusal.ts';
import { files } from '../src/files/data-directory.ts';
import { askServer } from '../src/operator/ask.ts';
import { SERVICE } from '../src/service/unit.ts';
import { completionOf } from './completion.ts';
import { confirm } from './confirm.ts';
import { example, output } from './context.ts';
import { discoveryOptions, firstSettings, type InitOptions, offered } from './init.ts';
import { say } from './report.ts';
import { whileWaiting } from './spinner.ts';

type InstallOptions = InitOptions & { remove?: boolean };

/** A first start migrates empty books; one on old books may migrate and examine them. */
const READY_MILLISECONDS = 60_000;
const TRY_MILLISECONDS = 100;

/** Registers `install`: makes this executable the service of the machine. */
export function installCommand(program: Command): void {
  discoveryOptions(program.command('install'))
    .description(
      'as root: install this executable as a service of systemd, with user, unit, completion and first settings; again after a change of backup.directory',
    )
    .option('--remove', 'stop the service and remove what was installed; settings, books and master key stay')
    .addHelpText('after', example('purser install', 'purser install --remove'))
    .action(async (options: InstallOptions, command: Command) => {
      const { install, remove, runsSystemd } = await import('../src/service/install.ts');
      if (options.remove) {
        await confirm(command, 'Stop the service and remove it? Settings, books and master key stay.');
        const done = remove();
        return output(command, { done }, () => done.join('\n'));
      }
      if (!sea.isSea()) throw new Refusal('conflict', 'Only the executable can be installed. Run: npm run build');
      let notes: string[] = [];
      const done = await install({
        executable: process.execPath,
        settings: async () => {
          const { text, models } = await firstSettings(command, options);
          notes = offered(models);
          return text;
        },
        completion: completionOf,
      });
      const isStarted = runsSystemd();
      const isServing = isStarted && (await whileWaiting('waiting for the server', untilServing()));
      output(command, { done, is_serving: isServing }, () => [...done, ...notes].join('\n'));
      if (isStarted && !isServing) {
        say('The service does not answer yet. What it says: journalctl -u purser');
        process.exitCode = 5;
      }
    });
}

/** Waits until the service answers on its socket. Returns false where it does not within a minute. */
async function untilServing(): Promise<boolean> {
  const { socket } = files(SERVICE.data);
  const deadline = performance.now() + READY_MILLISECONDS;
  while (performance.now() < deadline) {
    if (await askServer(socket, 'status', {})) return true;
    await sleep(TRY_MILLISECONDS);
  }
  return false;
}
