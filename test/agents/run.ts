import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import type { TestContext } from 'node:test';
import { fileURLToPath } from 'node:url';
import type { ClientName, ClientSettings } from '../../src/wire/client-settings.ts';
import { AGENT_DIRECTORIES } from '../components.ts';
import { installation, type Serving } from '../helper/executable.ts';
import { type Counted, costOf, type ModelServer, nanosOf, openModelServer } from '../helper/model-server.ts';
import { type FakeUpstream, type Handler, openUpstream } from '../helper/upstream.ts';
import { until, waitFor } from '../helper/waiting.ts';
import { MODEL, PRICES } from './model.ts';
import { openNamespace } from './namespace.ts';
import { type Settings, together } from './page.ts';
import { type Exchange, openRecorder, type Served } from './recorder.ts';
import { newNote, taskModel } from './task.ts';

const COMPILED = fileURLToPath(new URL('node_modules/.cache/purser-agents', import.meta.url));
/** Leaves a cent of a dollar. */
const FILLER = { ...MODEL, id: 'filler', pricing: { prompt: '0', completion: '0', request: '0.99' } };

/** What happens to the requests of an agent, where the model server would only answer. */
export type Fault = (models: ModelServer, upstream: FakeUpstream, serving: Serving) => Handler;

export type Asked = {
  /** The client of `purser wallet env` that it is. Default: none. */
  client?: ClientName;
  /** What else it reads, from docs/mcp.md. */
  settings?: Settings;
  /** What follows the last command of the settings. */
  args: readonly string[];
  /** Nearly all of its wallet is spent before it begins. */
  isPoor?: boolean;
  fault?: Fault;
  /** What the model is called. Default: as in model.ts. */
  modelId?: string;
  /** What the model does. Default: the task. */
  model?: (body: Record<string, any>) => Record<string, any>;
  /** What else the agent finds at Purser's address. */
  served?: Served;
};

export type Ran = {
  code: number | null;
  /** Both outputs. */
  said: string;
  /** What proof.txt says, and what it should. */
  proof: string | undefined;
  note: string;
  directory: string;
  exchanges: Exchange[];
  upstream: FakeUpstream;
  counted: Counted[];
  /** What the wallet has paid, and what it should have paid by the model server's own count; nano-dollars. */
  used: bigint;
  cost: bigint;
  held: bigint;
  /** How many answers the executable had to estimate. */
  estimatedCount: number;
};

const NOTHING: Settings = { files: [], script: '' };
/** What the executable is asked at in the namespace. */
const URL_INSIDE = 'http://127.0.0.1:7420';

const settingsOf = ({ file, block, start }: ClientSettings): Settings =>
  file === null
    ? { files: [], script: `${block}\n${start}` }
    : { files: [{ path: file, text: `${block}\n` }], script: start as string };

/**
 * Runs an agent on a wallet of its own: a home directory with what `purser wallet env` prints and nothing else, and a network
 * that ends at the executable. Checks the books.
 */
export async function runAgent(t: Pick<TestContext, 'after'>, asked: Asked): Promise<Ran> {
  const home = mkdtempSync(join(tmpdir(), 'purser-agent-'));
  const directory = join(home, 'project');
  const note = newNote();
  mkdirSync(directory);
  writeFileSync(join(directory, 'note.txt'), `${note}\n`);

  const upstream = await openUpstream(t);
  const models = openModelServer(asked.model ?? taskModel(directory));
  const router = {
    upstreams: [{ name: 'local', base_url: upstream.url, timeout_seconds: 300 }],
    models: [{ ...MODEL, id: asked.modelId ?? MODEL.id }, FILLER],
  };
  const purser = installation(t, { settings: { router, public_url: URL_INSIDE } });
  const serving = await purser.serve();
  const faulty = asked.fault?.(models, upstream, serving) ?? models.handle;
  // What has no tools is not of the task: agents ask for titles too.
  upstream.handle = (call, response) => (call.body.tools ? faulty : models.handle)(call, response);
  const { accounts } = await purser.json('account', 'list');
  await purser.json('account', 'credit', accounts[0].id, '1000c');
  const order = ['--account', accounts[0].id, '--name', 'agent', '--budget-cents', '100'];
  const { id: wallet, agent_token: token } = await purser.json('wallet', 'create', ...order);
  const { body: key } = await serving.ask('POST', '/v1/router/key', { token, body: {} });

  if (asked.isPoor) {
    const body = { model: 'filler', messages: [{ role: 'user', content: 'hi' }] };
    assert.equal((await serving.ask('POST', '/v1/router/chat/completions', { token: key.api_key, body })).status, 200);
    upstream.calls.length = 0;
  }

  const recorder = await openRecorder(t, serving.url, asked.served);
  const namespace = await openNamespace(t, recorder.port);
  const own = asked.client ? settingsOf(await purser.json('wallet', 'env', wallet, '--for', asked.client)) : NOTHING;
  const settings = together(own, asked.settings ?? NOTHING);
  for (const { path, text } of settings.files) {
    const file = path.startsWith('~/') ? join(home, path.slice(2)) : join(directory, path);
    mkdirSync(dirname(file), { recursive: true });
    writeFileSync(file, text);
  }
  const script = `set -e\n${settings.script.trimEnd()} "$@"`;
  const [program, ...before] = namespace.command as [string, ...string[]];
  const child = spawn(program, [...before, 'sh', '-c', script, 'sh', ...asked.args], {
    cwd: directory,
    detached: true, // Agents start others; all of them are its group.
    stdio: ['ignore', 'pipe', 'pipe'],
    env: {
      PATH: [...AGENT_DIRECTORIES, dirname(process.execPath), process.env.PATH].join(':'),
      HOME: home,
      TERM: 'dumb',
      NODE_COMPILE_CACHE: COMPILED, // Those that run on Node compile megabytes at each start.
      SVC_BROKER_URL: URL_INSIDE,
      SVC_BROKER_TOKEN: token,
    },
  });
  const endGroup = () => {
    try {
      process.kill(-(child.pid as number), 'SIGKILL');
    } catch {} // All have ended.
  };
  t.after(endGroup);
  // Last: a daemon that it left behind lives until its namespace is ended, and writes again what is removed before.
  t.after(() => rmSync(home, { recursive: true, force: true, maxRetries: 3 }));
  let said = '';
  for (const output of [child.stdout, child.stderr])
    output.setEncoding('utf8').on('data', (text: string) => {
      said += text;
    });
  const ended = new Promise<number | null>((resolve) => child.once('exit', resolve));
  const code = await waitFor(() => `the agent ends: ${said.slice(-4000)}`, ended);
  endGroup();

  // It may have ended without waiting for its last answer.
  const budget = await until('everything asked is settled or in doubt', async () => {
    const { body } = await serving.ask('GET', '/v1/budget', { token });
    return body.holds.every(({ state }: { state: string }) => state === 'uncertain') && body;
  });
  assert.deepEqual((await purser.json('ledger', 'verify')).problems, []);
  assert(!serving.output.stderr.includes(key.api_key) && !serving.output.stderr.includes(token));
  const file = join(directory, 'proof.txt');
  return {
    code,
    said,
    note,
    directory,
    proof: existsSync(file) ? readFileSync(file, 'utf8').trim() : undefined,
    exchanges: recorder.exchanges,
    upstream,
    counted: models.counted,
    used: nanosOf(budget.used_usd),
    cost: models.counted.reduce((sum, it) => sum + costOf(it, it.model === FILLER.id ? FILLER.pricing : PRICES), 0n),
    held: nanosOf(budget.held_usd),
    estimatedCount: serving.output.stderr.split('"event":"operation.estimated"').length - 1,
  };
}
