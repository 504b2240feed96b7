import { type Command, InvalidArgumentError } from 'commander';
import type { Config, Secrets } from '../src/config/config.ts';
import type { Log } from '../src/log.ts';
import type { CommandInput, CommandName, CommandOutput } from '../src/operator/commands.ts';
import { lines, print, table, withTimes } from './report.ts';

export type Globals = { data?: string; config?: string; json?: boolean };

/** The configuration in force, and a log that shows warnings and errors unless the configured level is another than `info`. */
export type CommandContext = { config: Config; secrets: Secrets; log: Log; globals: Globals };

/** Reads the configuration from the global options, the environment and purser.yaml. Throws ConfigurationFault. */
export async function readContext(command: Command): Promise<CommandContext> {
  const globals = command.optsWithGlobals<Globals>();
  const [{ readConfig }, { createLog }] = await Promise.all([
    import('../src/config/config.ts'),
    import('../src/log.ts'),
  ]);
  const { config, secrets } = readConfig(globals);
  const log = createLog(config.logLevel === 'info' ? 'warn' : config.logLevel, secretsOf(secrets));
  return { config, secrets, globals, log };
}

/** Returns the literal secrets that the log must redact. */
export function secretsOf(secrets: Secrets): string[] {
  return [
    ...secrets.upstreamKeys.values(),
    ...secrets.slotKeys.values(),
    ...(secrets.billingKeys ? [secrets.billingKeys.secret_key, ...secrets.billingKeys.webhook_secrets] : []),
    ...(secrets.transferKeys ? Object.values(secrets.transferKeys) : []),
    ...(secrets.masterKey.text ? [secrets.masterKey.text.trim()] : []),
  ];
}

/** Runs an operator command and prints its result, as JSON or formatted by `show`. Throws like `ask`. */
export async function askAndPrint<N extends CommandName>(
  command: Command,
  name: N,
  input: CommandInput<N>,
  show: (value: CommandOutput<N>) => string,
): Promise<void> {
  const { ask } = await import('./operator-client.ts');
  const value = await ask(command, name, input);
  print(command.optsWithGlobals<Globals>().json ? JSON.stringify(value) : show(value));
}

export const showRecord = (record: Record<string, unknown>) => lines(withTimes(record));
export const showTable = (rows: readonly Record<string, unknown>[], ...columns: string[]) =>
  table(rows.map(withTimes), columns);

/** Parses an argument as a whole number. Throws a usage error otherwise. */
export function parseWholeNumber(value: string): number {
  if (!/^-?\d{1,15}$/.test(value)) throw new InvalidArgumentError('It must be a whole number.');
  return Number(value);
}

/** Formats example commands for the end of a help text. */
export function example(...text: string[]): string {
  return `\nExample:\n${text.map((line) => `  ${line}`).join('\n')}`;
}
