import type { Command } from 'commander';
import type { CommandOutput } from '../src/operator/commands.ts';
import type { LostKeyReport } from '../src/recovery/lost-key.ts';
import { confirm, confirmAlways, irreversible } from './confirm.ts';
import { example, output, readContext, readGiven, showRecord, showTable } from './context.ts';
import { print, say, show } from './report.ts';

/** Registers `master-key`: its rotation, and its replacement where it is lost. */
export function masterKeyCommands(program: Command): void {
  const group = program.command('master-key').description('the key under which wallet and gateway tokens are derived');
  irreversible(group.command('rotate'))
    .description('make new tokens under a new key; live wallets keep theirs')
    .option('--key-file <file>', 'take the new key from this file (64 hex digits, or 32 bytes in base64)')
    .addHelpText('after', example('purser master-key rotate'))
    .action(async (options: { keyFile?: string }, command: Command) => {
      const key = options.keyFile === undefined ? {} : { key: readGiven(options.keyFile) };
      await confirm(command, 'Rotate the master key? Backups made before need the key of now.');
      const { ask } = await import('./operator-client.ts');
      const rotated = await ask(command, 'master-key.rotate', key);
      const { key: fresh, ...record } = rotated;
      output(command, rotated, () => showRecord(fresh === null ? record : rotated));
      say(whatToDo(rotated));
    });
  group
    .command('replace')
    .description('open an installation whose master key is lost: open wallets get new tokens; stop the server first')
    .requiredOption('--lost', 'the master key is lost, and there is no copy of it')
    .option('--dry-run', 'only say what would happen')
    .option('--yes', 'do not ask')
    .addHelpText('after', example('purser master-key replace --lost --dry-run', 'purser master-key replace --lost'))
    .action(replace);
}

async function replace(options: { dryRun?: boolean }, command: Command): Promise<void> {
  const { config, globals } = await readContext(command, { withoutKey: true });
  const { replaceLostKey } = await import('../src/recovery/lost-key.ts');
  const plan = await replaceLostKey(config, { apply: false });
  if (!globals.json) show(planned(plan));
  if (options.dryRun) {
    if (globals.json) print(JSON.stringify(plan));
    return say('Nothing was changed.');
  }
  await confirmAlways(command, 'The tokens that are out stop working. Replace the key?');
  const done = await replaceLostKey(config, { apply: true });
  if (globals.json) print(JSON.stringify(done));
  if (done.kept) say(`The file that was there is ${done.kept}.`);
  say(
    `The master key is ${done.master_key_id} now${done.file ? `, in ${done.file}. Copy that file to another place: no backup contains it` : ''}. Start the server, give each agent its new token (purser wallet token ID), and make a backup: earlier ones belong to the lost key.`,
  );
}

function planned({ lost_master_key_id: lost, wallets, gateway_keys, leases, ...plan }: LostKeyReport): string {
  const keySource = plan.file ?? 'PURSER_MASTER_KEY';
  const next = plan.master_key_id
    ? `${plan.master_key_id}, the one in ${keySource}`
    : `a new key, made in ${keySource}`;
  return [
    `The lost master key is ${lost}. In its place comes ${next}.`,
    ...(plan.from === 'data directory'
      ? [
          'It is not lost where the service gets it from PURSER_MASTER_KEY or PURSER_MASTER_KEY_FILE: set the same here instead.',
        ]
      : []),
    '',
    `Open wallets, which get a new token in place of their present one: ${wallets.length}`,
    showTable(wallets, ['id', 'name', 'account_id?', 'status']),
    '',
    `Gateway keys of theirs, which get a new secret: ${gateway_keys}`,
    `Live leases, which get a new SSH key: ${leases}`,
    ...(leases
      ? ['Secrets of their account (accounts in purser.yaml) and variables of sandboxes work in new leases only.']
      : []),
    '',
    'The books, budgets, holds, leases and histories stay as they are.',
    'Account keys, operator keys and sign-ins go on working, and what purser.yaml holds (model servers, payments, object store, receivers) was never under this key: nothing of it has to be set again.',
    'Backups made until now belong to the lost key: `purser restore --without-key` opens them, followed by this command.',
  ].join('\n');
}

function whatToDo({
  from,
  file,
  kept: keptFile,
  is_in_place: isInForce,
  previous_master_key_id: previous,
}: Rotated): string {
  const kept = `Backups made before the rotation need the previous key, ${previous}: keep a copy of it for as long as you keep them.`;
  if (isInForce)
    return `${file} holds the new key. Copy it to where you keep the old one.${keptFile ? ` The previous key is kept in ${keptFile}.` : ''} ${kept}`;
  const keySource = from === 'environment' ? 'PURSER_MASTER_KEY' : file;
  return `Put the new key into ${keySource} before you withdraw the old one: until then Purser starts with the old one, and anyone who has it can unwrap the new one. ${kept}`;
}
type Rotated = CommandOutput<'master-key.rotate'>;
