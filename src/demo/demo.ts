import { randomUUID } from 'node:crypto';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { stringify } from 'yaml';
import { readConfig } from '../config.ts';
import { verifyLedger } from '../ledger/verify.ts';
import type { Log } from '../log.ts';
import { type CommandInput, type CommandName, type CommandOutput, runCommand } from '../operator/commands.ts';
import { serve } from '../serve.ts';
import { ECHO_MODEL, openEchoModel } from './echo-model.ts';
import { DEMO_PRICING, liveOnce } from './life.ts';

export type DemoOptions = {
  log: Log;
  print: (line: string) => void;
  /** After the life has been shown: resolves when the demo should end. Undefined ends it at once. */
  keepServing: (() => Promise<void>) | undefined;
  fatal: (error: unknown) => void;
};

/**
 * The main job against embedded parts: a real server on a temporary data directory, and a model behind real HTTP on
 * loopback. Returns how many figures were wrong. The directory is gone afterwards.
 */
export async function runDemo(options: DemoOptions): Promise<number> {
  const { print } = options;
  await using open = new AsyncDisposableStack();
  const directory = open.adopt(mkdtempSync(join(tmpdir(), 'purser-demo-')), (it) =>
    rmSync(it, { recursive: true, force: true }),
  );
  const model = open.adopt(await openEchoModel(), (it) => it.close());
  const file = join(directory, 'purser.yaml');
  const settings = {
    listen: '127.0.0.1:0',
    router: {
      upstreams: [{ name: 'embedded', base_url: model.baseUrl }],
      models: [
        { id: ECHO_MODEL, upstream: 'embedded', context_length: 300, max_output_tokens: 100, pricing: DEMO_PRICING },
      ],
    },
  };
  writeFileSync(file, stringify(settings));
  const { config, secrets } = readConfig({ data: directory, config: file });
  const app = open.use(
    await serve(config, secrets, { log: options.log, who: 'purser demo', create: true, fatal: options.fatal }),
  );
  const run = <N extends CommandName>(name: N, input: CommandInput<N>) =>
    runCommand(app, name, input) as Promise<CommandOutput<N>>;

  const account = (await run('account.list', {})).accounts[0] as { id: string };
  const { key: operatorKey } = await run('operator-key.mint', { name: 'demo' });
  print(`Purser is serving on ${app.baseUrl} from ${directory}.`);
  const wrong = await liveOnce(
    {
      baseUrl: app.baseUrl,
      operatorKey,
      credit: async (cents) => void (await run('account.credit', { id: account.id, cents, reason: 'demo' })),
      problems: () => verifyLedger(app.ledger.client).problems,
    },
    print,
  );
  print(wrong ? `\n${wrong} figures are wrong.` : '\nEvery figure is what arithmetic says.');

  if (options.keepServing) {
    const wallet = await run('wallet.create', { account: account.id, name: 'yours', budget_cents: 500 });
    print(pasteable(app.baseUrl, operatorKey, wallet.agent_token));
    await options.keepServing();
  }
  return wrong;
}

function pasteable(baseUrl: string, operatorKey: string, walletToken: string): string {
  return `
Now it is yours, until Ctrl-C. A wallet of 5 USD is open:

  base URL      ${baseUrl}
  operator key  ${operatorKey}
  wallet token  ${walletToken}

curl:
  curl ${baseUrl}/v1/chat/completions \\
    -H 'Authorization: Bearer ${walletToken}' \\
    -H 'Idempotency-Key: ${randomUUID()}' -H 'Content-Type: application/json' \\
    -d '{"model":"${ECHO_MODEL}","messages":[{"role":"user","content":"Hello, Purser."}],"max_tokens":50}'
  curl ${baseUrl}/v1/budget -H 'Authorization: Bearer ${walletToken}'

OpenAI SDK (JavaScript):
  const client = new OpenAI({ baseURL: '${baseUrl}/v1', apiKey: '${walletToken}' });
  await client.chat.completions.create(
    { model: '${ECHO_MODEL}', messages: [{ role: 'user', content: 'Hello, Purser.' }], max_tokens: 50 },
    { headers: { 'Idempotency-Key': crypto.randomUUID() } },
  );
`;
}
