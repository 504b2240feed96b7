import { readFileSync } from 'node:fs';
import type { Command } from 'commander';
import type { CommandOutput } from '../src/operator/commands.ts';
import { example, type Globals, showRecord } from './context.ts';
import { print, say } from './report.ts';

export function masterKeyCommands(program: Command): void {
  const group = program.command('master-key').description('the key under which wallet and gateway tokens are derived');
  group
    .command('rotate')
    .description('make new tokens under a new key; live wallets keep theirs')
    .option('--key-file <file>', 'take the new key from this file (64 hex digits, or 32 bytes in base64)')
    .addHelpText('after', example('purser master-key rotate'))
    .action(async (options: { keyFile?: string }, command: Command) => {
      const { ask } = await import('./operator-client.ts');
      const key = options.keyFile === undefined ? {} : { key: readFileSync(options.keyFile, 'utf8') };
      const rotated = await ask(command, 'master-key.rotate', key);
      const { key: fresh, ...record } = rotated;
      if (command.optsWithGlobals<Globals>().json) print(JSON.stringify(rotated));
      else print(showRecord(fresh === null ? record : rotated));
      say(whatToDo(rotated));
    });
}

function whatToDo({ from, file, is_in_place: isInPlace, previous_master_key_id: previous }: Rotated): string {
  const kept = `Backups made before the rotation need the previous key, ${previous}: keep a copy of it for as long as you keep them.`;
  if (isInPlace) return `${file} holds the new key. Copy it to where you keep the old one. ${kept}`;
  const place = from === 'environment' ? 'PURSER_MASTER_KEY' : file;
  return `Put the new key into ${place} before you withdraw the old one: until then Purser starts with the old one, and anyone who has it can unwrap the new one. ${kept}`;
}
type Rotated = CommandOutput<'master-key.rotate'>;
