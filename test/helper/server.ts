import { randomUUID } from 'node:crypto';
import { cpSync, mkdtempSync, readFileSync, rmSync, symlinkSync, truncateSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import Client from 'better-sqlite3';
import { Agent, request as send } from 'undici';
import { stringify } from 'yaml';
import { readMasterKey } from '../../src/access/master-key.ts';
import type { TimeSource } from '../../src/base/clock.ts';
import { createLog } from '../../src/base/log.ts';
import { redactedTexts } from '../../src/base/secret.ts';
import type { StorageOptions } from '../../src/books/storage.ts';
import type { LocalCompute } from '../../src/compute/settings.ts';
import { type Config, readConfig } from '../../src/config/config.ts';
import { reserveOn } from '../../src/db/disk-reserve.ts';
import { openDatabase } from '../../src/db/open.ts';
import type { Outside } from '../../src/egress/outside.ts';
import { files } from '../../src/files/data-directory.ts';
import { verifyLedger } from '../../src/ledger/verify.ts';
import { findWallet, type Wallet } from '../../src/ledger/wallet.ts';
import { type Served, serve } from '../../src/main/serve.ts';
import { urlOf } from '../../src/net/listen.ts';
import { type CommandInput, type CommandName, type CommandOutput, runCommand } from '../../src/operator/commands.ts';
import { type Pair, placePair } from './certificate.ts';
import { crossing } from './closures.ts';
import { MODELS } from './models.ts';
import { type FakeUpstream, openUpstream } from './upstream.ts';

/** A clock that the test controls. It stands still until the test moves it. */
export type HandClock = TimeSource & {
  /** Lets time pass: the wall clock and the monotonic clock move together. */
  advance(seconds: number): void;
  /** Sets the wall clock alone. */
  leap(seconds: number): void;
  /** Boots the machine again: its uptime does not include the time before. */
  bootAgain(): void;
  /** True if the machine's time service vouches for the clock; undefined where there is none. */
  isSynced?: boolean;
};

export function handClock(): HandClock {
  let id: string = randomUUID();
  let booted = 0;
  let wall = Date.now();
  let monotonic = 0;
  return {
    wall: () => wall,
    monotonic: () => monotonic,
    boot: () => ({ id, seconds: (monotonic - booted) / 1000 }),
    advance(seconds) {
      wall += seconds * 1000;
      monotonic += seconds * 1000;
    },
    leap(seconds) {
      wall += seconds * 1000;
    },
    bootAgain() {
      id = randomUUID();
      booted = monotonic;
    },
  };
}

export { MODELS };

/** A create is answered when the machine is ready, however slow that is. A test whose backend hangs sets less. */
const ANSWER_SECONDS = 600;
export const UPSTREAM_KEY = 'sk-upstream-canary-0123456789';

export type TestServerOptions = {
  /** Credit of the default account, in cents (default 100000). */
  creditCents?: number;
  /** Settings of purser.yaml, merged over the defaults of a test server. */
  settings?: Record<string, unknown>;
  /** Changes the merged settings, for a nested setting. */
  change?: (settings: Record<string, any>) => Record<string, unknown>;
  time?: HandClock;
  /** Name servers and connections for the proxy of leases. */
  outside?: Outside;
  /** Milliseconds for which the client of a stream may read nothing. */
  stallMilliseconds?: number;
  /** Unknown outcomes in a row that open the circuit of a route (default 3). */
  unknownCountMax?: number;
  env?: Record<string, string>;
  /** Speaks TLS with this certificate. */
  tls?: Pair | undefined;
  /**
   * Writes in the test's own thread (default): to start another one from source takes longer than most tests. The data and the
   * result of a write cross as they do between threads. Tests that use the writing connection, or write with a function, need
   * this. The tests of the executable have the thread.
   */
  writesHere?: boolean;
  /** Leases that are processes of this machine, as in the demo. */
  local?: LocalCompute;
  /** The machine id from the next start on. Default: that of this machine. */
  machine?: { id: string | undefined };
  /** Called in place of the end of the process. Default: it fails the test. */
  fatal?: (error: unknown) => void;
  /** How the file system under the data directory is judged. Default: not at all. */
  storage?: StorageOptions;
};

export type Answer = {
  status: number;
  headers: Record<string, string | string[] | undefined>;
  body: any;
  text: string;
};
export type Asked = {
  token?: string | undefined;
  /** An object is sent as JSON, text and bytes as they are. */
  body?: unknown;
  /** The Idempotency-Key. */
  key?: string | undefined;
  headers?: Record<string, string>;
  /** The client leaves when it is aborted. */
  signal?: AbortSignal;
};

/** A real server on a real file and a free port. The test controls the clock and the upstream. */
export type TestServer = {
  directory: string;
  url: string;
  clock: HandClock;
  upstream: FakeUpstream;
  app: Served;
  accountId: string;
  operatorKey: string;
  accountKey: string;
  /** All lines of the log so far. */
  log: string[];
  ask(method: string, path: string, asked?: Asked): Promise<Answer>;
  /** Opens a wallet by POST /v1/wallets. */
  openWallet(body?: Record<string, unknown>): Promise<{ id: string; token: string }>;
  /** POST /v1/chat/completions with a fresh key unless one is given. */
  chat(token: string, body?: Record<string, unknown>, key?: string): Promise<Answer>;
  /** GET /v1/budget. */
  budget(token: string): Promise<any>;
  /** Runs an operator command in process. */
  run<N extends CommandName>(name: N, input: CommandInput<N>): Promise<CommandOutput<N>>;
  wallet(id: string): Wallet;
  /** Changes the database without the server's knowledge. */
  tamper(sql: string, ...values: unknown[]): void;
  /** Returns the faults that `ledger verify` finds in the open file. */
  problems(): string[];
  /** Closes the server and opens it again on the same files, which `meanwhile` may change in between. */
  reopen(meanwhile?: () => void, options?: { acceptLoss?: boolean; acceptClock?: boolean }): Promise<void>;
  /**
   * Abandons the server in the middle of its work, like a crash, and opens another on a copy of the present files. After the
   * test, `release` ends all that the abandoned server still waits for.
   */
  crash(release: () => void): Promise<void>;
  close(): Promise<void>;
};

let template: Buffer | undefined;

/**
 * Creates the disk reserve without its blocks. A server writes them two seconds after its start, so on a busy machine more
 * servers of tests would write them.
 */
export function makeReserve(directory: string): void {
  const { reserve } = files(directory);
  writeFileSync(reserve, '');
  truncateSync(reserve, reserveOn(Number.MAX_SAFE_INTEGER));
}

/**
 * Gives a new installation its master key and an empty database, as a first start leaves them if it ends immediately. The
 * database is created once per test file.
 */
function prepareDatabase(directory: string, { masterKey }: Config): void {
  readMasterKey(masterKey, { create: true });
  const { database } = files(directory);
  makeReserve(directory);
  if (template) writeFileSync(database, template);
  else {
    openDatabase(database, { migrate: true }).client.close();
    template = readFileSync(database);
  }
}

/** The last lines of a failed test's log that are printed: they say why its server refused what it did. */
const SAID_LINES_MAX = 40;
const isWarning = (line: string) => /^\{"level":[456]/.test(line);

/** Copies the data directory of a server that runs or has died. */
export function copyDirectory(from: string, to: string): void {
  // Files of the head and the clock are replaced by another thread: a new one may disappear before it is copied.
  const filter = (name: string) => !/purser\.(sock|lock)|\/leases|\/reserve|\.new$/.test(name);
  cpSync(from, to, { recursive: true, filter });
}

export async function openTestServer(
  t: Pick<TestContext, 'after'> & { passed?: boolean },
  options: TestServerOptions = {},
): Promise<TestServer> {
  let directory = mkdtempSync(join(tmpdir(), 'purser-test-'));
  const upstream = await openUpstream(t);
  const clock = options.time ?? handClock();
  const connect = options.tls ? { ca: options.tls.cert } : {};
  const agent = new Agent({ connections: null, pipelining: 1, connect });
  const log: string[] = [];
  const graves: { dead: Served; release: () => void; directory: string }[] = [];
  const settings = {
    listen: '127.0.0.1:0',
    ssh: { listen: '127.0.0.1:0' },
    close_wait_seconds: 300, // A test whose backend hangs sets a short one.
    drain_seconds: 1,
    storage: { stall_seconds: 300 }, // A busy disk is no lost one.
    limits: {
      wallet_requests_per_minute: 0,
      account_requests_per_minute: 0,
      failed_auth_per_minute: 0,
      funds_wait_seconds: 0, // A test of the wait sets its own.
    },
    router: {
      upstreams: [{ name: 'local', base_url: upstream.url, api_key: UPSTREAM_KEY, timeout_seconds: 600 }],
      models: MODELS,
      cancel_grace_seconds: 600, // A busy machine is slower than a client that comes again. A test of the grace sets its own.
    },
    ...(options.tls ? { tls: placePair(directory, options.tls) } : {}),
    ...options.settings,
  };
  writeFileSync(join(directory, 'purser.yaml'), stringify(options.change?.(settings) ?? settings));

  async function start({ acceptLoss = false, acceptClock = false, isNew = false } = {}): Promise<Served> {
    const config = readConfig({ data: directory }, options.env ?? {});
    if (isNew) prepareDatabase(directory, config);
    const writesHere = options.writesHere ?? true;
    const served = await serve(config, {
      log: createLog('debug', redactedTexts(config), (line) => log.push(line)),
      who: 'a test',
      create: true,
      acceptLoss,
      acceptClock,
      isSynced: async () => clock.isSynced,
      reread: () => readConfig({ data: directory }, options.env ?? {}),
      ...(options.local ? { local: options.local } : {}),
      ...(options.machine ? { machineId: () => options.machine?.id } : {}),
      ...(options.storage ? { storage: options.storage } : {}),
      time: clock,
      writesHere,
      ...(options.unknownCountMax === undefined ? {} : { unknownCountMax: options.unknownCountMax }),
      ...(options.outside === undefined ? {} : { outside: options.outside }),
      ...(options.stallMilliseconds === undefined ? {} : { stallMilliseconds: options.stallMilliseconds }),
      fatal(error) {
        if (!options.fatal) throw error;
        options.fatal(error);
      },
    });
    served.answerSeconds = ANSWER_SECONDS;
    if (writesHere) crossing(served.ledger);
    return served;
  }

  const server: TestServer = {
    directory,
    clock,
    upstream,
    log,
    url: '',
    app: undefined as unknown as Served,
    accountId: '',
    operatorKey: '',
    accountKey: '',
    async ask(method, path, { token, body, key, headers = {}, signal } = {}) {
      const isRaw = typeof body === 'string' || Buffer.isBuffer(body);
      const response = await send(`${server.url}${path}`, {
        method: method as 'GET',
        dispatcher: agent,
        headersTimeout: 0,
        bodyTimeout: 0,
        ...(signal ? { signal } : {}),
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
      const answer = await server.ask('POST', '/v1/wallets', {
        token: server.accountKey,
        key: randomUUID(),
        body: { name: 'test', budget_cents: 1000, expires_in_seconds: 3600, ...body },
      });
      if (answer.status !== 201) throw new Error(`no wallet: ${answer.status} ${answer.text}`);
      return { id: answer.body.id, token: answer.body.agent_token };
    },
    chat: (token, body = {}, key = randomUUID()) =>
      server.ask('POST', '/v1/chat/completions', {
        token,
        key,
        body: { model: 'chat', messages: [{ role: 'user', content: 'hi' }], max_tokens: 100, ...body },
      }),
    budget: async (token) => (await server.ask('GET', '/v1/budget', { token })).body,
    run: (name, input) => runCommand(server.app, name, input) as Promise<never>,
    wallet: (id) => findWallet(server.app.ledger.read, id) as Wallet,
    tamper(sql, ...values) {
      const client = new Client(files(directory).database);
      if (values.length) client.prepare(sql).run(...values);
      else client.exec(sql);
      client.close();
      const { client: reading } = server.app.ledger;
      if (reading.inTransaction) reading.exec('commit'); // Its snapshot of this turn is out of date.
    },
    problems: () => verifyLedger(server.app.ledger.client).problems,
    async reopen(meanwhile = () => {}, over = {}) {
      await server.app[Symbol.asyncDispose]();
      meanwhile();
      server.app = await start(over);
      server.url = urlOf(server.app.address, options.tls);
    },
    async crash(release) {
      const dead = server.app;
      await dead.reaper.stop();
      await dead.notifier.stop();
      // The copy below ends this process's locks on these files. Another one that examines them would be the first to have them open, by
      // what it sees, and cut short the index that is mapped here: that is a SIGBUS.
      await dead.booksWatch.stop();
      const copy = mkdtempSync(join(tmpdir(), 'purser-test-'));
      const left = directory;
      // The thread of the abandoned server may still be writing.
      const held = new Client(files(left).database);
      held.exec('begin immediate');
      copyDirectory(left, copy);
      held.close();
      makeReserve(copy);
      symlinkSync(join(left, 'leases'), join(copy, 'leases')); // Running containers have it mounted.
      directory = copy;
      server.directory = copy;
      graves.push({ dead, release, directory: left });
      server.app = await start();
      server.url = urlOf(server.app.address, options.tls);
    },
    async close() {
      await server.app[Symbol.asyncDispose]();
    },
  };
  server.app = await start({ isNew: true });
  t.after(async () => {
    const said = log.filter(isWarning).slice(-SAID_LINES_MAX).join('');
    if (t.passed === false && said) console.log(said);
    await upstream.close().catch(() => {});
    // Closed together: a server that stops waits a moment for further requests on open connections. Requests to an abandoned
    // server are not waited for: they may hang for as long as their answer may take.
    await Promise.all([server.app[Symbol.asyncDispose](), graves.length ? agent.destroy() : agent.close()]);
    for (const grave of graves) {
      grave.release();
      await grave.dead[Symbol.asyncDispose]();
      rmSync(grave.directory, { recursive: true, force: true });
    }
    await agent.destroy();
    rmSync(directory, { recursive: true, force: true });
  });
  server.url = urlOf(server.app.address, options.tls);
  server.accountId = (await server.run('account.list', {})).accounts[0]?.id as string;
  if (options.creditCents !== 0)
    await server.run('account.credit', { id: server.accountId, cents: options.creditCents ?? 100_000 });
  server.operatorKey = (await server.run('operator-key.mint', {})).key;
  server.accountKey = (await server.run('key.create', { account: server.accountId, name: 'test' })).key;
  return server;
}
