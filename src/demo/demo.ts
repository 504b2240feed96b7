import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { stringify } from 'yaml';
import type { Log } from '../base/log.ts';
import { readConfig } from '../config/config.ts';
import { verifyLedger } from '../ledger/verify.ts';
import { serve } from '../main/serve.ts';
import { type CommandInput, type CommandName, type CommandOutput, runCommand } from '../operator/commands.ts';
import { ECHO_MODEL, openEchoModel } from './echo-model.ts';
import { CHIP, DEMO_COMPUTE } from './providers.ts';
import { DEMO_PRICING, runScenario } from './scenario.ts';

type DemoOptions = {
  log: Log;
  print: (line: string) => void;
  /** Ends the demo at any point. */
  signal: AbortSignal;
  /** True to keep serving after the scenario, until the signal. */
  keepServing: boolean;
  fatal: (error: unknown) => void;
};

/** Leases need /proc: here they are processes that are found by their environment (proc(5)). */
const canRent = () => existsSync('/proc/self/environ');

/**
 * Runs the demo against embedded parts: a real server on a temporary data directory, a model behind real HTTP on loopback, and
 * leases that are processes of this machine. Returns how many figures were wrong, or undefined if the signal came before the last
 * of them. Leaves neither a process nor a file behind.
 */
export async function runDemo(options: DemoOptions): Promise<number | undefined> {
  const { print, signal } = options;
  await using open = new AsyncDisposableStack();
  const directory = open.adopt(mkdtempSync(join(tmpdir(), 'purser-demo-')), (it) =>
    rmSync(it, { recursive: true, force: true }),
  );
  const model = open.adopt(await openEchoModel(), (it) => it.close());
  const file = join(directory, 'purser.yaml');
  const settings = {
    listen: '127.0.0.1:0',
    ssh: { listen: '127.0.0.1:0' },
    drain_seconds: 1,
    router: {
      upstreams: [{ name: 'embedded', base_url: model.baseUrl }],
      models: [
        { id: ECHO_MODEL, upstream: 'embedded', context_length: 300, max_output_tokens: 100, pricing: DEMO_PRICING },
      ],
    },
  };
  writeFileSync(file, stringify(settings));
  const config = readConfig({ data: directory, config: file }, {}); // Without the environment of an installation on this machine.
  const rents = canRent();
  const local = rents ? DEMO_COMPUTE : {};
  const app = open.use(
    await serve(config, {
      local,
      log: options.log,
      who: 'purser demo',
      create: true,
      fatal: options.fatal,
    }),
  );
  const run = <N extends CommandName>(name: N, input: CommandInput<N>) =>
    runCommand(app, name, input) as Promise<CommandOutput<N>>;

  const account = (await run('account.list', {})).accounts[0] as { id: string };
  const { key: operatorKey } = await run('operator-key.mint', { name: 'demo' });
  print(`Purser is serving on ${app.state.baseUrl} from ${directory}.`);
  if (!rents) print('Leases are left out: here they are processes, and this machine has no /proc to find them by.');
  let wrong: number;
  try {
    const server = {
      baseUrl: app.state.baseUrl,
      operatorKey,
      rents,
      directory,
      credit: async (cents: number) => void (await run('account.credit', { id: account.id, cents, reason: 'demo' })),
      problems: () => verifyLedger(app.ledger.client).problems,
    };
    wrong = await runScenario(server, print, signal);
  } catch (error) {
    if (!signal.aborted) throw error;
    print('\nInterrupted before the end.');
    return undefined;
  }
  print(wrong ? `\n${wrong} figures are wrong.` : '\nEvery figure is what arithmetic says.');

  if (options.keepServing) {
    const wallet = await run('wallet.create', { account: account.id, name: 'yours', budget_cents: 500 });
    const more = rents ? rentable(app.state.baseUrl, wallet.agent_token) : '';
    print(pasteable(app.state.baseUrl, operatorKey, wallet.agent_token, more));
    if (!signal.aborted) await once(signal, 'abort');
  }
  return wrong;
}

function pasteable(baseUrl: string, operatorKey: string, walletToken: string, more: string): string {
  return `
Now try it yourself, until Ctrl-C. A wallet of 5 USD is open:

  base URL      ${baseUrl}
  operator key  ${operatorKey}
  wallet token  ${walletToken}

curl:
  curl ${baseUrl}/v1/chat/completions \\
    -H 'Authorization: Bearer ${walletToken}' \\
    -H 'Idempotency-Key: ${randomUUID()}' -H 'Content-Type: application/json' \\
    -d '{"model":"${ECHO_MODEL}","messages":[{"role":"user","content":"Hello, Purser."}],"max_tokens":50}'
  curl ${baseUrl}/v1/budget -H 'Authorization: Bearer ${walletToken}'
${more}
OpenAI SDK (JavaScript):
  const client = new OpenAI({ baseURL: '${baseUrl}/v1', apiKey: '${walletToken}' });
  await client.chat.completions.create(
    { model: '${ECHO_MODEL}', messages: [{ role: 'user', content: 'Hello, Purser.' }], max_tokens: 50 },
    { headers: { 'Idempotency-Key': crypto.randomUUID() } },
  );
`;
}

function rentable(baseUrl: string, walletToken: string): string {
  return `
Rent ten minutes, run a command, and stop the lease; it is a process of this machine, and ends with the demo:
  rent() { curl -s "${baseUrl}/v1/compute/$1" -H 'Authorization: Bearer ${walletToken}' \\
    -H 'Idempotency-Key: ${randomUUID()}' -H 'Content-Type: application/json' -d "$2"; echo; }
  rent create '{"provider":"provider_two","spec":{"chip":"${CHIP}","max_seconds":600}}'
  rent exec '{"id":"res_…","command":"pwd"}'        # the id that create returned
  rent stop '{"id":"res_…"}'
`;
}
