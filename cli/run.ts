import { spawn } from 'node:child_process';
import { constants } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Command } from 'commander';
import { Refusal } from '../src/base/refusal.ts';
import { dataDirectoryOf, inheritedEnvironment } from '../src/config/config.ts';
import { files, prepareDirectory } from '../src/files/data-directory.ts';
import { askServer } from '../src/operator/ask.ts';
import type { CommandInput, CommandName, CommandOutput } from '../src/operator/commands.ts';
import { clientEnvironment } from '../src/wire/client-settings.ts';
import { example, type Globals, parseBudget, parseExpiry, refuseJson } from './context.ts';
import { say } from './report.ts';
import { exactAndAgo } from './time.ts';
import { gatewayOf } from './wallet-env.ts';

const SHOW_MILLISECONDS = 1000;
const CLOSE_AGAIN_MILLISECONDS = 1000;
/** Exit codes of a shell for a command that does not exist and one that cannot be run. */
const NOT_FOUND = 127;
const NOT_RUN = 126;
/** Signals that end a program. */
const ENDING = ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGQUIT'] as const;
/** Passed on to the program; the terminal sends SIGINT and SIGQUIT to it as well. */
const SIGNALS = [...ENDING, 'SIGUSR1', 'SIGUSR2'] as const;

type RunOptions = { budget: number; account?: string; name?: string; expires?: number; model?: string };

/** Registers `purser run`: a program with a wallet of its own. */
export function runCommand(program: Command): void {
  program
    .command('run')
    .description('run a program (after --) with a wallet of its own, and close the wallet when it ends')
    .argument('<program>')
    .argument('[arguments...]')
    .requiredOption('--budget <amount>', 'what it may spend, as 5.00', parseBudget)
    .option('--account <account>', 'the account that pays: its id or name (default: the oldest)')
    .option('--name <name>', 'name of the wallet (default: the program)')
    .option(
      '--expires <duration>',
      'when the wallet expires in any case, as 30m, 12h or 7d, or never (default 1d)',
      parseExpiry,
    )
    .option('--model <id>', 'the model that its clients are set to (default: the first one for chats)')
    .addHelpText('after', example('purser run --budget 5.00 -- python agent.py', 'purser run --budget 5.00 -- claude'))
    .action(run);
}

async function run(program: string, args: string[], options: RunOptions, command: Command): Promise<void> {
  refuseJson(command, 'what the program does; options of the program stand after --');
  const socket = socketOf(command);
  const { budget: budget_cents, expires: expires_in_seconds = 86_400, name = program.slice(-80) } = options;
  const account = options.account ?? (await ask(socket, 'account.list', {})).accounts[0]?.id;
  if (account === undefined) throw new Refusal('not_found', 'There is no account yet: purser account create');
  using interrupted = catchInterrupts();
  const wallet = await ask(socket, 'wallet.create', { account, name, budget_cents, expires_in_seconds });
  say(`${wallet.id} is open for ${program}. ${expiryOf(wallet.expires_at)}`);
  let ended: Ended = { code: 1 };
  try {
    const { model } = options;
    const gateway = await ask(socket, 'wallet.gateway-key', {
      id: wallet.id,
      ...(model === undefined ? {} : { model }),
    });
    const { signal } = interrupted; // It came before the program was there to get it.
    ended = signal
      ? endedBy(signal)
      : await runProgram(program, args, environmentOf(wallet.env, gateway), () => showSpending(socket, wallet.id));
  } finally {
    // If the closing is interrupted, what is still pending is printed.
    const signal = await Promise.race([closeAndReport(socket, wallet.id), interrupted.again()]);
    if (signal) {
      await reportUnfinished(socket, wallet.id);
      ended = endedBy(signal);
    }
  }
  interrupted[Symbol.dispose]();
  if (ended.signal !== undefined) process.kill(process.pid, ended.signal); // Dies of the same signal, for the calling process.
  process.exitCode = ended.code;
}

/** Returns when a wallet expires, and the options that change that, as sentences. */
const expiryOf = (at: number | null) =>
  at === null ? 'It never expires.' : `It expires at ${exactAndAgo(at)}; other times: --expires 7d, --expires never.`;

/**
 * Catches the signals that would end this command until it is disposed, so that a wallet that it has opened is closed first.
 * `signal` is the first that came. `again` resolves with the next one.
 */
function catchInterrupts() {
  let first: NodeJS.Signals | undefined;
  let next = Promise.withResolvers<NodeJS.Signals>();
  const take = (signal: NodeJS.Signals) => {
    first ??= signal;
    next.resolve(signal);
  };
  for (const signal of ENDING) process.on(signal, take);
  return {
    get signal() {
      return first;
    },
    again() {
      next = Promise.withResolvers();
      return next.promise;
    },
    [Symbol.dispose]() {
      for (const signal of ENDING) process.off(signal, take);
    },
  };
}

function socketOf(command: Command): string {
  const { ofService, ...globals } = command.optsWithGlobals<Globals & { ofService?: true }>();
  const directory = dataDirectoryOf(globals);
  // Root, whose program needs root's rights, writes nothing in the service's directory: it only speaks to the server there. In
  // another user's, that user would answer.
  if (!ofService) prepareDirectory(directory, false);
  return files(directory).socket;
}

/** Sends a command to the running server. Unlike other commands this one needs a server: its program would have none to call. */
async function ask<N extends CommandName>(socket: string, name: N, input: CommandInput<N>): Promise<CommandOutput<N>> {
  const answered = await askServer(socket, name, input);
  if (!answered) throw new Refusal('read_only', 'No server is running on this data directory. Start it: purser serve');
  return answered.value as CommandOutput<N>;
}

/** Returns the variables that agents and SDKs read: the interface's own, and those of model clients. */
function environmentOf(
  { SVC_BROKER_URL, SVC_BROKER_TOKEN }: { SVC_BROKER_URL: string; SVC_BROKER_TOKEN: string },
  answered: CommandOutput<'wallet.gateway-key'>,
): NodeJS.ProcessEnv {
  const { PURSER_MASTER_KEY: _, ...inherited } = inheritedEnvironment(); // It would let a program derive tokens itself.
  const { model, ...access } = gatewayOf(answered);
  // By name: the program may be root's, and the server, which is not, would choose what it loads (LD_PRELOAD).
  return { ...clientEnvironment(inherited, access, model), SVC_BROKER_URL, SVC_BROKER_TOKEN };
}

type Ended = { code: number; signal?: NodeJS.Signals };
const endedBy = (signal: NodeJS.Signals): Ended => ({ code: 128 + constants.signals[signal], signal });

function runProgram(program: string, args: string[], env: NodeJS.ProcessEnv, show: () => Promise<void>) {
  return new Promise<Ended>((resolve) => {
    const child = spawn(program, args, { stdio: 'inherit', env });
    const pass = (signal: NodeJS.Signals) => {
      // A terminal has already sent these to the whole foreground group.
      if (process.stdin.isTTY && (signal === 'SIGINT' || signal === 'SIGQUIT')) return;
      child.kill(signal);
    };
    for (const signal of SIGNALS) process.on(signal, pass);
    const timer = process.stderr.isTTY ? setInterval(() => void show().catch(() => {}), SHOW_MILLISECONDS) : undefined;
    const end = (ended: Ended) => {
      clearInterval(timer);
      for (const signal of SIGNALS) process.off(signal, pass);
      resolve(ended);
    };
    child.on('error', (error: NodeJS.ErrnoException) => {
      say(`${program} cannot be run: ${error.message}`);
      end({ code: error.code === 'ENOENT' ? NOT_FOUND : NOT_RUN });
    });
    child.on('exit', (code, signal) => end(signal ? endedBy(signal) : { code: code ?? 1 }));
  });
}

/** Shows the spending in the terminal's title: the screen belongs to the program. */
async function showSpending(socket: string, id: string): Promise<void> {
  const { used_usd, held_usd, budget_usd } = await ask(socket, 'wallet.show', { id });
  const held = Number(held_usd) > 0 ? `, ${held_usd} held` : '';
  process.stderr.write(`\u001b]2;${used_usd} of ${budget_usd} USD spent${held}\u0007`);
}

/** Closes the wallet and prints its cost. */
async function closeAndReport(socket: string, id: string): Promise<undefined> {
  for (;;) {
    try {
      const { used_usd, budget_usd } = await ask(socket, 'wallet.close', { id });
      say(`${id} is closed: ${used_usd} of ${budget_usd} USD spent.`);
      return;
    } catch (error) {
      if (!(error instanceof Refusal) || error.code !== 'cleanup_pending') {
        say(`The wallet ${id} was not closed: ${(error as Error).message} Close it: purser wallet close ${id}`);
        return;
      }
      say(error.message);
    }
    await sleep(CLOSE_AGAIN_MILLISECONDS);
  }
}

async function reportUnfinished(socket: string, id: string): Promise<void> {
  try {
    const { status, used_usd, held_usd, budget_usd } = await ask(socket, 'wallet.show', { id });
    say(`${id} is ${status}: ${used_usd} of ${budget_usd} USD spent, ${held_usd} held. The server closes it.`);
  } catch (error) {
    say(`The wallet ${id} was not closed: ${(error as Error).message} Close it: purser wallet close ${id}`);
  }
}
