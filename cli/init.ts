import { existsSync, writeFileSync } from 'node:fs';
import { resolve } from 'node:path';
import type { Command } from 'commander';
import { Refusal } from '../src/base/refusal.ts';
import { dataDirectoryOf, settingsFile } from '../src/config/config.ts';
import { EXAMPLE_PRICES, settingsText } from '../src/config/template.ts';
import { files, prepareDirectory } from '../src/files/data-directory.ts';
import type { DiscoveredServer } from '../src/router/discover.ts';
import { askYesOrNo } from './confirm.ts';
import { example, type Globals, output, repeated } from './context.ts';
import { say } from './report.ts';
import { whileWaiting } from './spinner.ts';
import { canAsk } from './terminal.ts';

export type InitOptions = { server: string[]; yes?: boolean };

/** Adds the options of a command that looks for model servers. */
export const discoveryOptions = (command: Command): Command =>
  command
    .option(
      '--server <url>',
      'look there, and not on the usual ports; may be repeated',
      (url: string, all: string[]) => [...all, url],
      [],
    )
    .option('-y, --yes', 'do not ask: offer every model that is found');

/** Registers `init`: a first purser.yaml. */
export function initCommand(program: Command): void {
  discoveryOptions(program.command('init'))
    .description(
      'write a commented purser.yaml; offers the model servers that run on this machine, on their usual ports',
    )
    .addHelpText('after', example('purser init', 'purser init --yes --server http://10.0.0.5:8000'))
    .action(init);
}

async function init(options: InitOptions, command: Command): Promise<void> {
  const globals = command.optsWithGlobals<Globals>();
  const directory = dataDirectoryOf(globals);
  const file = settingsFile(globals) ?? resolve(directory, 'purser.yaml');
  const taken = () =>
    new Refusal(
      'conflict',
      `${file} is there already, and init never overwrites. Edit it, or name another with --config.`,
    );
  if (existsSync(file)) throw taken();
  const { discovered, servers, text, models } = await firstSettings(command, options);
  prepareDirectory(directory, true);
  try {
    writeFileSync(file, text, { flag: 'wx', mode: 0o600 });
  } catch (error) {
    throw (error as NodeJS.ErrnoException).code === 'EEXIST' ? taken() : error;
  }
  const isServing = existsSync(files(directory).socket);
  output(
    command,
    { file, servers: discovered.map((it) => ({ ...it, is_offered: servers.includes(it) })).map(record), models },
    () =>
      [`Wrote ${file}.`, ...offered(models), `Next: purser${repeated(globals)} ${isServing ? 'reload' : 'serve'}`].join(
        '\n',
      ),
  );
}

/** Looks for model servers, asks which to offer where it can ask, and returns the text of a first purser.yaml. */
export async function firstSettings(command: Command, { server: others, yes }: InitOptions) {
  const globals = command.optsWithGlobals<Globals>();
  for (const url of others)
    if (!/^https?:\/\//.test(url) || !URL.canParse(url))
      command.error(`error: --server takes an address, as http://10.0.0.5:8000, not ${url}`);

  const { discoverServers } = await import('../src/router/discover.ts');
  const discovered = await whileWaiting('looking for model servers', discoverServers(others));
  const isInteractive = !yes && !globals.json && canAsk();
  const servers: DiscoveredServer[] = [];
  for (const it of discovered) {
    say(describe(it));
    if (
      it.models.length &&
      (!isInteractive || (await askYesOrNo(`  Offer ${it.models.length === 1 ? 'it' : 'them'}?`, true)))
    )
      servers.push(it);
  }
  if (!discovered.length)
    say(
      others.length
        ? `No model server answers at ${others.join(' or ')}. The file names none: add it there once it runs.`
        : 'No model server answers on the usual ports of this machine. Name one with --server, or in the file.',
    );

  return { discovered, servers, ...settingsText(servers) };
}

/** Names the models that the first settings offer, and notes that their prices are examples. */
export const offered = (models: readonly { id: string }[]): string[] =>
  models.length
    ? [
        `It offers ${models.map(({ id }) => id).join(', ')} at ${EXAMPLE_PRICES.prompt} USD per million prompt tokens and ${EXAMPLE_PRICES.completion} per million completion tokens: examples, set your own.`,
      ]
    : [];

function describe({ software, baseUrl, models, isLocked }: DiscoveredServer): string {
  if (isLocked) return `${baseUrl} wants a key: add it to the file by hand, with api_key.`;
  if (!models.length) return `${software} at ${baseUrl} has no models.`;
  const listed = models.map(({ id, contextLength }) => (contextLength ? `${id} (${contextLength} tokens)` : id));
  return `${software} at ${baseUrl} has ${listed.join(', ')}.`;
}

const record = ({ software, baseUrl, models, isLocked, is_offered }: DiscoveredServer & { is_offered: boolean }) => ({
  software,
  base_url: baseUrl,
  is_locked: isLocked,
  is_offered,
  models: models.map(({ id, kind, contextLength }) => ({ id, kind, context_length: contextLength ?? null })),
});
