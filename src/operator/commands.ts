import type * as v from 'valibot';
import { safeParse } from 'valibot';
import { Refusal } from '../base/refusal.ts';
import { accounts } from './accounts.ts';
import { checkouts } from './checkouts.ts';
import type { Command, OperatorApp } from './command.ts';
import { events } from './events.ts';
import { examination } from './examination.ts';
import { installation } from './installation.ts';
import { keys } from './keys.ts';
import { masterKey } from './master-key.ts';
import { models } from './models.ts';
import { operations } from './operations.ts';
import { page } from './page.ts';
import { passkeys } from './passkeys.ts';
import { resources } from './resources.ts';
import { spend } from './spend.ts';
import { status } from './status.ts';
import { wallets } from './wallets.ts';

/** All commands of the CLI. The same table serves in process and over the socket (design, section 4). */
const COMMANDS = {
  ...accounts,
  ...checkouts,
  ...keys,
  ...wallets,
  ...resources,
  ...models,
  ...operations,
  ...events,
  ...spend,
  ...status,
  ...installation,
  ...examination,
  ...masterKey,
  ...page,
  ...passkeys,
};

export type CommandName = keyof typeof COMMANDS;
export type CommandInput<N extends CommandName> = v.InferInput<(typeof COMMANDS)[N]['input']>;
export type CommandOutput<N extends CommandName> = Awaited<ReturnType<(typeof COMMANDS)[N]['run']>>;

/**
 * Runs one command. Throws `not_found` for an unknown command, `invalid_request` for invalid input, `read_only` when the
 * database is not served, and the command's own refusals.
 */
export async function runCommand(app: OperatorApp, name: string, input: unknown): Promise<unknown> {
  const command = (COMMANDS as Record<string, Command>)[name];
  if (!command || !Object.hasOwn(COMMANDS, name))
    throw new Refusal('not_found', `This version of Purser has no command ${name}.`);
  if (app.health.fault && name !== 'status')
    throw new Refusal(
      'read_only',
      `The database is not served: ${app.health.fault}. \`purser doctor\` says what to do.`,
    );
  const parsed = safeParse(command.input, input);
  if (!parsed.success) {
    const [issue] = parsed.issues;
    throw new Refusal('invalid_request', `${issue.path?.map((it) => it.key).join('.') ?? name}: ${issue.message}`);
  }
  return command.run(app, parsed.output);
}
