import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import type { TestContext } from 'node:test';
import { fileURLToPath } from 'node:url';
import { Agent, request as send } from 'undici';
import { stringify } from 'yaml';
import { files } from '../../src/files/data-directory.ts';
import { askServer } from '../../src/operator/ask.ts';
import type { CommandInput, CommandName, CommandOutput } from '../../src/operator/commands.ts';
import { MODELS } from './models.ts';
import type { Answer, Asked } from './server.ts'; // Its types alone: the module loads all of Purser, in half a second.
import { waitFor } from './waiting.ts';

/** The built product; `npm test` builds it first. */
export const EXECUTABLE = fileURLToPath(new URL('../../dist/purser', import.meta.url));

/** Returns the files of such names that the build leaves beside it, each byte of them as one character. Throws if there is none. */
export function builtFiles(names: RegExp, directory = dirname(EXECUTABLE)): { name: string; text: string }[] {
  const found = readdirSync(directory).filter((it) => names.test(it));
  assert(found.length > 0, `${directory} has ${names}`);
  return found.map((name) => ({ name, text: readFileSync(join(directory, name), 'latin1') }));
}

/** The environment variable that holds the upstream's key. The key itself is in no file. */
const UPSTREAM_KEY_VARIABLE = 'HOUSE_KEY';

export type Ended = { code: number | null; signal: NodeJS.Signals | null };
/** The output of a command, and how it ended. */
export type Said = Ended & { stdout: string; stderr: string };
export type LogLine = { event: string } & Record<string, unknown>;

/** A running `purser serve`. */
export type Serving = {
  pid: number;
  url: string;
  /** The time from the start of the process to its log line `serving`. */
  readyMilliseconds: number;
  output: { stdout: string; stderr: string };
  ask(method: string, path: string, asked?: Asked): Promise<Answer>;
  /** Resolves with the `count`-th log line of `event`, past or future. */
  logged(event: string, count?: number): Promise<LogLine>;
  kill(signal: NodeJS.Signals): void;
  ended: Promise<Ended>;
  /** Sends a signal and waits until the process has ended. */
  stop(signal?: NodeJS.Signals): Promise<Ended>;
};

export type Installation = {
  directory: string;
  /** Runs one command in this installation and waits until it has ended. */
  cli(...args: string[]): Promise<Said>;
  /** Runs a command with --json, which has to succeed. Returns the JSON value on stdout. */
  json(...args: string[]): Promise<Answer['body']>;
  /**
   * Runs a command on the running server, by its socket, as the command line does. For what a test only prepares: a process for
   * each command takes most of the time of such a test.
   */
  operate<N extends CommandName>(name: N, input: CommandInput<N>): Promise<CommandOutput<N>>;
  /** Starts `purser serve` and waits until it serves. */
  serve(...args: string[]): Promise<Serving>;
  /** Starts one command and does not wait. `serving` rejects if it ends before it serves. */
  launch(...args: string[]): Launched;
};
export type Launched = {
  child: ChildProcess;
  output: { stdout: string; stderr: string };
  ended: Promise<Ended>;
  serving: Promise<Serving>;
};

export type InstallationOptions = {
  /** Merged over the settings of a test installation. Null: no purser.yaml. */
  settings?: Record<string, unknown> | null;
  env?: Record<string, string>;
  /** The data directory. Default: a new temporary directory. It is removed at the end. */
  directory?: string;
  upstream?: { url: string; key?: string };
  /** The seconds that the upstream may take for a request. Default: longer than any request that does not hang. */
  upstreamSeconds?: number;
  /** The command that starts the executable, for example through another program. Default: the executable alone. */
  command?: readonly string[];
  /** Arguments before every command. Default: --data with the directory. */
  globals?: readonly string[];
  /** `router.uncertain`. */
  uncertain?: { after_seconds: number; policy: 'charge' | 'release' };
};

/** Makes a data directory with a purser.yaml, to run the real executable on. Everything it starts ends with the test. */
export function installation(t: Pick<TestContext, 'after'>, options: InstallationOptions = {}): Installation {
  assert(existsSync(EXECUTABLE), `${EXECUTABLE} is missing: \`npm run build\` makes it`);
  const directory = options.directory ?? mkdtempSync(join(tmpdir(), 'purser-executable-'));
  mkdirSync(directory, { recursive: true });
  const { upstream, settings = {}, command = [EXECUTABLE], globals = ['--data', directory] } = options;
  const env = { ...(upstream?.key ? { [UPSTREAM_KEY_VARIABLE]: upstream.key } : {}), ...options.env };
  if (settings) writeFileSync(join(directory, 'purser.yaml'), stringify({ ...defaults(options), ...settings }));

  const running = new Map<ChildProcess, Promise<Ended>>();
  const agent = new Agent({ connections: null, pipelining: 1 });
  t.after(async () => {
    for (const child of running.keys()) child.kill('SIGKILL');
    await Promise.all(running.values());
    await agent.destroy();
    rmSync(directory, { recursive: true, force: true });
  });

  const own: Installation = {
    directory,
    cli: (...args) => run([...globals, ...args], { env, command }),
    async json(...args) {
      const said = await own.cli('--json', ...args);
      assert.equal(said.code, 0, `purser ${args.join(' ')} failed: ${said.stdout}${said.stderr}`);
      return JSON.parse(said.stdout);
    },
    async operate(name, input) {
      const answer = await askServer(files(directory).socket, name, input);
      assert(answer, `a server runs that can be asked for ${name}`);
      return answer.value as never;
    },
    serve: (...args) => own.launch('serve', ...args).serving,
    launch(...args) {
      const started = performance.now();
      const { child, output, ended } = start([...globals, ...args], { env, command });
      running.set(child, ended);
      void ended.then(() => running.delete(child));
      const log = followLog(child, output, ended);
      const serving = log('serving', 1).then((line) => {
        const url = String(line.listen);
        return {
          pid: child.pid as number,
          url,
          readyMilliseconds: performance.now() - started,
          output,
          ask: (method: string, path: string, asked?: Asked) => ask(agent, url, method, path, asked),
          logged: (event: string, count = 1) => log(event, count),
          kill: (signal: NodeJS.Signals) => void child.kill(signal),
          ended,
          stop(signal: NodeJS.Signals = 'SIGTERM') {
            child.kill(signal);
            return waitFor(() => `${signal} ends the server`, ended);
          },
        };
      });
      serving.catch(() => {}); // Callers that await it get the error.
      return { child, output, ended, serving };
    },
  };
  return own;
}

function defaults({ upstream, upstreamSeconds = 300, uncertain }: InstallationOptions) {
  const upstreamSettings = {
    name: 'local',
    base_url: upstream?.url,
    timeout_seconds: upstreamSeconds,
    ...(upstream?.key ? { api_key: `\${${UPSTREAM_KEY_VARIABLE}}` } : {}),
  };
  return {
    listen: '127.0.0.1:0',
    ssh: { listen: '127.0.0.1:0' },
    close_wait_seconds: 1,
    drain_seconds: 1,
    storage: { stall_seconds: 300 }, // A busy disk is no lost one.
    limits: { wallet_requests_per_minute: 0, account_requests_per_minute: 0, failed_auth_per_minute: 0 },
    ...(upstream
      ? { router: { upstreams: [upstreamSettings], models: MODELS, ...(uncertain ? { uncertain } : {}) } }
      : {}),
  };
}

type RunOptions = { env?: Record<string, string>; cwd?: string; command?: readonly string[] };

/** Starts the executable with its own environment, without the tester's. */
function start(args: readonly string[], { env = {}, cwd, command = [EXECUTABLE] }: RunOptions = {}) {
  const [program, ...before] = command as [string, ...string[]];
  const child = spawn(program, [...before, ...args], {
    env: { PATH: process.env.PATH ?? '/usr/bin:/bin', ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
    ...(cwd === undefined ? {} : { cwd }),
  });
  const output = { stdout: '', stderr: '' };
  for (const name of ['stdout', 'stderr'] as const)
    child[name].setEncoding('utf8').on('data', (text: string) => {
      output[name] += text;
    });
  const ended = new Promise<Ended>((resolve, reject) => {
    child.once('close', (code, signal) => resolve({ code, signal })); // Not `exit`: on `close` all its output has been read.
    child.once('error', reject);
  });
  return { child, output, ended };
}

/** Runs the executable and waits until it has ended. `command` may put another program before it. */
export async function run(args: readonly string[], options: RunOptions = {}): Promise<Said> {
  const { child, output, ended } = start(args, options);
  try {
    return { ...(await waitFor(() => `\`purser ${args.join(' ')}\` ends: ${output.stderr}`, ended)), ...output };
  } finally {
    child.kill('SIGKILL');
  }
}

/** Waits for log lines: JSON lines on stderr, among plain text. */
function followLog(child: ChildProcess, output: { stderr: string }, ended: Promise<Ended>) {
  const lines: string[] = []; // Parsed on demand: a server under load writes thousands.
  const waiting = new Set<() => void>();
  let rest = '';
  child.stderr?.on('data', (text: string) => {
    const parts = (rest + text).split('\n');
    rest = parts.pop() as string;
    lines.push(...parts);
    for (const check of [...waiting]) check();
  });
  return (event: string, count: number): Promise<LogLine> => {
    const waited = Promise.withResolvers<LogLine>();
    const check = () => {
      const found = lines.filter((line) => line.startsWith('{') && line.includes(`"event":"${event}"`))[count - 1];
      if (found) waited.resolve(JSON.parse(found) as LogLine);
    };
    waiting.add(check);
    check();
    void ended.then(({ code, signal }) => {
      check();
      waited.reject(
        new Error(`the server ended (${code ?? signal}) before it logged ${event}:\n${output.stderr.slice(-2000)}`),
      );
    });
    const clean = waited.promise.finally(() => waiting.delete(check));
    return waitFor(() => `the log says ${event}, ${count} times:\n${output.stderr.slice(-2000)}`, clean);
  };
}

/** Sends one HTTP request. Throws if the answer was not complete: then the outcome is unknown. */
export async function ask(agent: Agent, url: string, method: string, path: string, asked: Asked = {}): Promise<Answer> {
  const { token, body, key, headers = {}, signal } = asked;
  const response = await send(`${url}${path}`, {
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
    body: body === undefined ? null : typeof body === 'string' ? body : JSON.stringify(body),
  });
  const text = await response.body.text();
  let parsed: unknown;
  try {
    parsed = JSON.parse(text);
  } catch {}
  return { status: response.statusCode, headers: response.headers, body: parsed, text };
}
