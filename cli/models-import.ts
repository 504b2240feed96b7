import { existsSync, readFileSync } from 'node:fs';
import { type Command, InvalidArgumentError } from 'commander';
import { Refusal } from '../src/base/refusal.ts';
import { checkSettings, dataDirectoryOf, settingsFile } from '../src/config/config.ts';
import { ConfigurationFault } from '../src/config/fault.ts';
import { type ImportedPrices, importPrices } from '../src/config/import-prices.ts';
import { readPriceList } from '../src/config/price-list.ts';
import { replaceSettings } from '../src/config/replace-settings.ts';
import { files } from '../src/files/data-directory.ts';
import { askYesOrNo } from './confirm.ts';
import { example, type Globals, output, readGiven } from './context.ts';
import { say, show } from './report.ts';
import { table } from './table.ts';
import { canAsk } from './terminal.ts';

type ImportOptions = { add: string[]; upstream?: string; name: [string, string][]; yes?: boolean };

const collect = (value: string, all: string[]) => [...all, value];

function parseName(value: string, all: [string, string][]): [string, string][] {
  const [, id, name] = /^([^=]+)=(.+)$/.exec(value) ?? [];
  if (!id || !name) throw new InvalidArgumentError('It must be MODEL=NAME IN THE LIST.');
  return [...all, [id, name]];
}

/** Registers `models import`: imports prices from a list. */
export function importCommand(group: Command): void {
  group
    .command('import')
    .argument('<file>', 'a price list as LiteLLM or OpenRouter publish it')
    .description('compare the prices in purser.yaml with a price list, show the differences, and write them')
    .option(
      '--name <model=name>',
      'the name of a model in the list, where it is another; may be repeated',
      parseName,
      [],
    )
    .option('--add <name>', 'add this model of the list; may be repeated', collect, [])
    .option('--upstream <name>', 'the upstream of the models that are added')
    .option('-y, --yes', 'write without asking; without a terminal nothing is written otherwise')
    .addHelpText(
      'after',
      example(
        'purser models import model_prices_and_context_window.json',
        'purser models import openrouter.json --add openai/gpt-5 --upstream openrouter --yes',
      ),
    )
    .action(importFile);
}

async function importFile(path: string, options: ImportOptions, command: Command): Promise<void> {
  const globals = command.optsWithGlobals<Globals>();
  const file = settingsFile(globals);
  if (file === undefined || !existsSync(file))
    throw new Refusal('not_found', 'There is no purser.yaml yet: purser init');
  const imported = importPrices(file, readFileSync(file, 'utf8'), {
    list: readList(path),
    names: new Map(options.name),
    add: { names: options.add, upstream: options.upstream },
  });
  if (imported.changes.length) checkSettings(file, imported.text);
  const { text, ...report } = imported;
  if (!globals.json) show(describe(imported));
  const written = imported.changes.length > 0 && (options.yes || (await isWanted(file, globals)));
  if (written) replaceSettings(file, text);
  if (globals.json) return output(command, { file, ...report, written }, () => '');
  if (written) {
    const isServing = existsSync(files(dataDirectoryOf(globals)).socket);
    say(`Wrote ${file}. ${isServing ? 'Next: purser reload' : 'The next start reads it.'}`);
  } else if (imported.changes.length) say('Nothing was written. --yes writes it.');
}

const isWanted = async (file: string, { json }: Globals) =>
  !json && canAsk() && (await askYesOrNo(`Write this into ${file}?`));

function readList(path: string) {
  const text = readGiven(path);
  try {
    return readPriceList(text);
  } catch (error) {
    throw new ConfigurationFault([`${path}: ${(error as Error).message}`]);
  }
}

function describe({ changes, unmatched, tiered }: ImportedPrices): string {
  const rows = changes.map(({ price, ...it }) => ({
    ...it,
    price: /^(request|image)$/.test(price) ? `${price}, each` : `${price}, per million`,
  }));
  return [
    rows.length
      ? table(rows, ['model', 'upstream', 'price', 'before_usd', 'after_usd'])
      : 'No price differs from the list.',
    ...unmatched.map(({ model, candidates }) =>
      candidates.length
        ? `${model}: the list has ${candidates.join(', ')} at different prices. Choose: --name ${model}=${candidates[0]}`
        : `${model}: not in the list. Under another name: --name ${model}=NAME`,
    ),
    ...tiered.map((id) => `${id}: the list has dearer rates for long prompts. Write them as tiers by hand.`),
  ].join('\n');
}
