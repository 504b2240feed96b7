import { randomUUID } from 'node:crypto';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { freePort } from '../test/helper/free-port.ts';
import { type Child, run, start, untilAnswers } from './process.ts';

export const EXECUTABLE = join(import.meta.dirname, '..', 'dist', 'purser');
const CREDIT_CENTS = 100_000_000_000; // The maximum of an account, so that no round runs out of money.
const WALLET_CENTS = 1_000_000;
const OPENING_COUNT = 64;

export type Installation = {
  directory: string;
  log: string;
  port: number;
  metricsPort: number;
  accountId: string;
  accountKey: string;
};

/** A running Purser. */
export type Purser = {
  child: Child;
  port: number;
  /** Milliseconds from spawn to the first 200 on /readyz. */
  readyMilliseconds: number;
  /** Returns the number of ledger commits since the start. */
  commits(): Promise<number>;
  stop(signal?: NodeJS.Signals): Promise<void>;
};

/** The command that serves an installation: the executable, unless a row compares it with something else. */
export type Server = (installation: Installation) => readonly [command: string, ...args: string[]];
export const purserServe: Server = ({ directory }) => [EXECUTABLE, '--data', directory, 'serve'];

/**
 * Makes a new installation in `directory`: no rate limits, three models, the default account with the maximum credit, and
 * one key. For each of the `broken` ports there is one more model, which is asked for there first. Everything else has its default, including the log level `info` (the log goes to a file).
 */
export async function install(
  directory: string,
  upstreamPort: number,
  broken: Record<string, number> = {},
): Promise<Installation> {
  mkdirSync(directory, { mode: 0o700 });
  const [port, metricsPort] = [await freePort(), await freePort()];
  const settings = {
    listen: `127.0.0.1:${port}`,
    metrics: { listen: `127.0.0.1:${metricsPort}` },
    limits: { wallet_requests_per_minute: 0, account_requests_per_minute: 0, failed_auth_per_minute: 0 },
    router: {
      upstreams: Object.entries({ mock: upstreamPort, ...broken }).map(([name, at]) => ({
        name,
        base_url: `http://127.0.0.1:${at}/v1`,
      })),
      models: [
        { ...MODEL, id: 'mock-1', pricing: PRICING },
        { ...MODEL, id: 'long', pricing: PRICING },
        { ...MODEL, id: 'one-cent', pricing: { request: '0.01' } },
        ...Object.keys(broken).map((name) => ({
          ...MODEL,
          id: name,
          upstream: name,
          pricing: PRICING,
          fallbacks: [{ upstream: 'mock', pricing: PRICING }],
        })),
      ],
    },
  };
  writeFileSync(join(directory, 'purser.yaml'), JSON.stringify(settings)); // JSON is YAML.
  const log = join(directory, 'purser.log');
  const bare: Installation = { directory, log, port, metricsPort, accountId: '', accountKey: '' };
  const purser = await startPurser(bare);
  try {
    const { accounts } = await command<{ accounts: { id: string }[] }>(bare, 'account', 'list');
    const accountId = accounts[0]?.id as string;
    await command(bare, 'account', 'credit', accountId, `${CREDIT_CENTS}c`);
    const { key } = await command<{ key: string }>(bare, 'key', 'create', '--account', accountId, '--name', 'bench');
    return { ...bare, accountId, accountKey: key };
  } finally {
    await purser.stop();
  }
}
const PRICING = { prompt: '0.0000001', completion: '0.0000004', request: '0' };
const MODEL = { upstream: 'mock', context_length: 2_000_000, max_output_tokens: 1000 };

/** Runs one CLI command and returns its JSON. */
export async function command<T>({ directory }: Installation, ...args: string[]): Promise<T> {
  return JSON.parse(await run(EXECUTABLE, ['--data', directory, '--json', ...args])) as T;
}

export async function startPurser(installation: Installation, server = purserServe): Promise<Purser> {
  const { port, log } = installation;
  const [program, ...args] = server(installation);
  const from = performance.now();
  const child = start(program, args, log);
  await untilAnswers(child, `http://127.0.0.1:${port}/readyz`, log).catch(async (error) => {
    await child.stop('SIGKILL');
    throw error;
  });
  const readyMilliseconds = performance.now() - from;
  return {
    child,
    port,
    readyMilliseconds,
    commits: () => commitsOf(installation),
    stop: (signal) => child.stop(signal),
  };
}

const commitsOf = (it: Installation) => metricOf(it, /^purser_commits (\d+)$/m);

/** Returns the number that a pattern finds in the metrics. */
export async function metricOf({ metricsPort }: Installation, pattern: RegExp): Promise<number> {
  const metrics = await (await fetch(`http://127.0.0.1:${metricsPort}/metrics`)).text();
  return Number(pattern.exec(metrics)?.[1]);
}

/** Opens `count` wallets on a running Purser and returns their tokens. */
export async function openWallets(
  { port, accountKey }: Installation,
  count: number,
  budgetCents = WALLET_CENTS,
): Promise<string[]> {
  const open = async () => {
    const response = await fetch(`http://127.0.0.1:${port}/v1/wallets`, {
      method: 'POST',
      headers: {
        authorization: `Bearer ${accountKey}`,
        'content-type': 'application/json',
        'idempotency-key': randomUUID(),
      },
      body: JSON.stringify({ name: 'bench', budget_cents: budgetCents, expires_in_seconds: 0 }),
    });
    const answer = (await response.json()) as { agent_token?: string };
    if (!answer.agent_token) throw new Error(`no wallet: ${response.status} ${JSON.stringify(answer)}`);
    return answer.agent_token;
  };
  const tokens: string[] = [];
  while (tokens.length < count) {
    const some = Math.min(OPENING_COUNT, count - tokens.length);
    tokens.push(...(await Promise.all(Array.from({ length: some }, open))));
  }
  return tokens;
}

/** Opens a gateway key for each wallet. */
export function openRouterKeys({ port }: Installation, tokens: readonly string[]): Promise<string[]> {
  return Promise.all(
    tokens.map(async (token) => {
      const response = await fetch(`http://127.0.0.1:${port}/v1/router/key`, {
        method: 'POST',
        headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json' },
        body: '{}',
      });
      return ((await response.json()) as { api_key: string }).api_key;
    }),
  );
}
