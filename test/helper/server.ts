import { randomUUID } from 'node:crypto';
import { cpSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { Agent, request as send } from 'undici';
import { stringify } from 'yaml';
import type { TimeSource } from '../../src/clock.ts';
import { readConfig } from '../../src/config/config.ts';
import { verifyLedger } from '../../src/ledger/verify.ts';
import { findWallet, type Wallet } from '../../src/ledger/wallet.ts';
import { createLog } from '../../src/log.ts';
import { type CommandInput, type CommandName, type CommandOutput, runCommand } from '../../src/operator/commands.ts';
import { type Served, serve } from '../../src/serve.ts';
import { type FakeUpstream, openUpstream } from './upstream.ts';

/** The clock in a test's hand. It stands still unless it is moved. */
export type HandClock = TimeSource & {
  /** Time passes: wall clock and monotonic clock move together. */
  advance(seconds: number): void;
  /** Somebody sets the wall clock. */
  leap(seconds: number): void;
};

export function handClock(): HandClock {
  let wall = Date.now();
  let monotonic = 0;
  return {
    wall: () => wall,
    monotonic: () => monotonic,
    advance(seconds) {
      wall += seconds * 1000;
      monotonic += seconds * 1000;
    },
    leap(seconds) {
      wall += seconds * 1000;
    },
  };
}

/** The models every house offers unless it is told otherwise. Prices are USD. */
export const MODELS = [
  {
    id: 'chat',
    upstream: 'house',
    upstream_model: 'real/chat',
    context_length: 32768,
    max_output_tokens: 1000,
    pricing: { prompt: '0.000001', completion: '0.000002', request: '0.0001' },
  },
  { id: 'flat', upstream: 'house', context_length: 32768, max_output_tokens: 1000, pricing: { request: '0.01' } },
  { id: 'free', upstream: 'house', context_length: 32768, max_output_tokens: 1000, pricing: { request: '0' } },
  {
    id: 'dear',
    upstream: 'house',
    context_length: 32768,
    max_output_tokens: 1000,
    pricing: { prompt: '0', completion: '0.01', request: '0' },
  },
  { id: 'unpriced', upstream: 'house', context_length: 32768, max_output_tokens: 1000 },
];
export const UPSTREAM_KEY = 'sk-upstream-canary-0123456789';

export type TestServerOptions = {
  /** Credit of the default account, in cents (default 100000). */
  creditCents?: number;
  /** Settings of purser.yaml, laid over the defaults of a test house. */
  settings?: Record<string, unknown>;
  /** The settings as they are to be, where one inside another is to differ. */
  change?: (settings: Record<string, any>) => Record<string, unknown>;
  time?: HandClock;
  /** How long a client of a stream may take nothing. */
  stallMilliseconds?: number;
  env?: Record<string, string>;
  /** The id of the machine, from the next start on; that of this machine unless given. */
  machine?: { id: string | undefined };
};

export type Answer = {
  status: number;
  headers: Record<string, string | string[] | undefined>;
  body: any;
  text: string;
};
export type Asked = {
  token?: string | undefined;
  /** An object is sent as JSON; text and bytes are sent as they are. */
  body?: unknown;
  /** The Idempotency-Key. */
  key?: string | undefined;
  headers?: Record<string, string>;
};

/** The real server on a real file and a free port, with the clock and the upstream in the test's hand. */
export type TestServer = {
  directory: string;
  url: string;
  clock: HandClock;
  upstream: FakeUpstream;
  app: Served;
  accountId: string;
  operatorKey: string;
  accountKey: string;
  /** Every line of the log so far. */
  log: string[];
  ask(method: string, path: string, asked?: Asked): Promise<Answer>;
  /** A new wallet by POST /v1/wallets. */
  openWallet(body?: Record<string, unknown>): Promise<{ id: string; token: string }>;
  /** POST /v1/chat/completions with a fresh key unless one is given. */
  chat(token: string, body?: Record<string, unknown>, key?: string): Promise<Answer>;
  /** GET /v1/budget. */
  budget(token: string): Promise<any>;
  /** An operator command, in process. */
  run<N extends CommandName>(name: N, input: CommandInput<N>): Promise<CommandOutput<N>>;
  wallet(id: string): Wallet;
  /** `ledger verify` on the open file; empty when the books agree. */
  problems(): string[];
  /** Closes and opens again on the same file; in between, `meanwhile` may do something to the files. */
  reopen(meanwhile?: () => void, options?: { acceptLoss?: boolean }): Promise<void>;
  /**
   * Leaves the house for dead in the middle of whatever it does, and opens another on a copy of its files as they are at
   * this moment. `release` ends what the dead one still waits for, after the test.
   */
  crash(release: () => void): Promise<void>;
  close(): Promise<void>;
};

export async function openTestServer(
  t: Pick<TestContext, 'after'>,
  options: TestServerOptions = {},
): Promise<TestServer> {
  let directory = mkdtempSync(join(tmpdir(), 'purser-test-'));
  const upstream = await openUpstream(t);
  const clock = options.time ?? handClock();
  const agent = new Agent({ connections: null, pipelining: 1 });
  const log: string[] = [];
  const graves: { dead: Served; release: () => void; directory: string }[] = [];
  const settings = {
    listen: '127.0.0.1:0',
    ssh: { listen: '127.0.0.1:0' },
    close_wait_seconds: 1,
    drain_seconds: 1,
    limits: { wallet_requests_per_minute: 0, account_requests_per_minute: 0, failed_auth_per_minute: 0 },
    router: {
      upstreams: [{ name: 'house', base_url: upstream.url, api_key: UPSTREAM_KEY, timeout_seconds: 30 }],
      models: MODELS,
    },
    ...options.settings,
  };
  writeFileSync(join(directory, 'purser.yaml'), stringify(options.change?.(settings) ?? settings));

  async function start({ acceptLoss = false } = {}): Promise<Served> {
    const { config, secrets } = readConfig({ data: directory }, options.env ?? {});
    const hidden = [
      ...secrets.upstreamKeys.values(),
      ...secrets.slotKeys.values(),
      ...Object.values(secrets.transferKeys ?? {}),
      ...(secrets.billingKeys ? [secrets.billingKeys.secret_key, ...secrets.billingKeys.webhook_secrets] : []),
    ];
    return serve(config, secrets, {
      log: createLog('debug', hidden, (line) => log.push(line)),
      who: 'a test',
      create: true,
      acceptLoss,
      ...(options.machine ? { machineId: () => options.machine?.id } : {}),
      time: clock,
      ...(options.stallMilliseconds === undefined ? {} : { stallMilliseconds: options.stallMilliseconds }),
      fatal: (error) => {
        throw error;
      },
    });
  }

  const house: TestServer = {
    directory,
    clock,
    upstream,
    log,
    url: '',
    app: undefined as unknown as Served,
    accountId: '',
    operatorKey: '',
    accountKey: '',
    async ask(method, path, { token, body, key, headers = {} } = {}) {
      const isRaw = typeof body === 'string' || Buffer.isBuffer(body);
      const response = await send(`${house.url}${path}`, {
        method: method as 'GET',
        dispatcher: agent,
        headersTimeout: 0,
        bodyTimeout: 0,
        headers: {
          ...(body === undefined ? {} : { 'content-type': 'application/json' }),
          ...(token === undefined ? {} : { authorization: `Bearer ${token}` }),
          ...(key === undefined ? {} : { 'idempotency-key': key }),
          ...headers,
        },
        body: body === undefined ? null : isRaw ? (body as string) : JSON.stringify(body),
      });
      const text = await response.body.text();
      let parsed: unknown;
      try {
        parsed = JSON.parse(text);
      } catch {}
      return { status: response.statusCode, headers: response.headers, body: parsed, text };
    },
    async openWallet(body = {}) {
      const answer = await house.ask('POST', '/v1/wallets', {
        token: house.accountKey,
        key: randomUUID(),
        body: { name: 'test', budget_cents: 1000, expires_in_seconds: 3600, ...body },
      });
      if (answer.status !== 201) throw new Error(`no wallet: ${answer.status} ${answer.text}`);
      return { id: answer.body.id, token: answer.body.agent_token };
    },
    chat: (token, body = {}, key = randomUUID()) =>
      house.ask('POST', '/v1/chat/completions', {
        token,
        key,
        body: { model: 'chat', messages: [{ role: 'user', content: 'hi' }], max_tokens: 100, ...body },
      }),
    budget: async (token) => (await house.ask('GET', '/v1/budget', { token })).body,
    run: (name, input) => runCommand(house.app, name, input) as Promise<never>,
    wallet: (id) => findWallet(house.app.ledger.read, id) as Wallet,
    problems: () => verifyLedger(house.app.ledger.client).problems,
    async reopen(meanwhile = () => {}, over = {}) {
      await house.app[Symbol.asyncDispose]();
      meanwhile();
      house.app = await start(over);
      house.url = `http://${house.app.address.host}:${house.app.address.port}`;
    },
    async crash(release) {
      const dead = house.app;
      await dead.reaper.stop();
      const copy = mkdtempSync(join(tmpdir(), 'purser-test-'));
      const left = directory;
      cpSync(left, copy, { recursive: true, filter: (name) => !/purser\.(sock|lock)|\/leases/.test(name) });
      symlinkSync(join(left, 'leases'), join(copy, 'leases')); // Running containers have it mounted.
      directory = copy;
      house.directory = copy;
      graves.push({ dead, release, directory: left });
      house.app = await start();
      house.url = `http://${house.app.address.host}:${house.app.address.port}`;
    },
    async close() {
      await house.app[Symbol.asyncDispose]();
    },
  };
  house.app = await start();
  t.after(async () => {
    await upstream.close().catch(() => {});
    // Together: a server that stops waits a moment for what a client may still ask on a connection that it keeps. What was
    // asked of a dead one is not waited for: it may hang for as long as its answer may take.
    await Promise.all([house.app[Symbol.asyncDispose](), graves.length ? agent.destroy() : agent.close()]);
    for (const grave of graves) {
      grave.release();
      await grave.dead[Symbol.asyncDispose]();
      rmSync(grave.directory, { recursive: true, force: true });
    }
    await agent.destroy();
    rmSync(directory, { recursive: true, force: true });
  });
  house.url = `http://${house.app.address.host}:${house.app.address.port}`;
  house.accountId = (await house.run('account.list', {})).accounts[0]?.id as string;
  if (options.creditCents !== 0)
    await house.run('account.credit', { id: house.accountId, cents: options.creditCents ?? 100_000 });
  house.operatorKey = (await house.run('operator-key.mint', {})).key;
  house.accountKey = (await house.run('key.create', { account: house.accountId, name: 'test' })).key;
  return house;
}
