import { type Command, Option } from 'commander';
import { Refusal } from '../src/base/refusal.ts';
import type { CommandOutput } from '../src/operator/commands.ts';
import { CLIENT_NAMES, type ClientName, type ClientSettings, clientSettings } from '../src/wire/client-settings.ts';
import { example, type Globals } from './context.ts';
import { print, say } from './report.ts';

/** Registers `wallet env`: the settings by which a client of models spends from a wallet. */
export function walletEnvCommand(group: Command): void {
  group
    .command('env')
    .argument('<id>')
    .description('print the settings of a model client, with a gateway key of the wallet')
    .addOption(new Option('--for <client>', 'the client').choices(CLIENT_NAMES).makeOptionMandatory())
    .option('--model <id>', 'the model (default: the first one for chats)')
    .addHelpText(
      'after',
      example('purser wallet env agent-7 --for codex', 'eval "$(purser wallet env agent-7 --for claude)"'),
    )
    .action(printEnv);
}

async function printEnv(id: string, options: { for: ClientName; model?: string }, command: Command): Promise<void> {
  const { ask } = await import('./operator-client.ts');
  const { model } = options;
  const gateway = gatewayOf(
    await ask(command, 'wallet.gateway-key', { id, ...(model === undefined ? {} : { model }) }),
  );
  if (!gateway.model) throw new Refusal('model_not_found', 'No model for chats is configured: purser models list');
  const settings = clientSettings(options.for, { ...gateway, model: gateway.model });
  if (command.optsWithGlobals<Globals>().json) return print(JSON.stringify(settings));
  print(settings.block);
  sayWhere(settings);
}

/** Prints on stderr where the block belongs, as stdout has nothing else. */
function sayWhere({ file, start }: ClientSettings): void {
  const then = start === null ? '' : `Then run: ${start}`;
  if (file !== null) say(`This is ${file}. ${then}`);
  else if (then) say(then);
}

/** Returns what a client needs of an answered gateway key. */
export const gatewayOf = ({ api_key, base_url, model }: CommandOutput<'wallet.gateway-key'>) => ({
  apiKey: api_key,
  baseUrl: base_url,
  model: model
    ? { id: model.id, contextLength: model.context_length, maxOutputTokens: model.max_output_tokens }
    : undefined,
});
